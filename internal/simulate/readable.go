package simulate

import (
	"strconv"
	"strings"
)

// Readable returns the entries in a key of package descriptors for people, such as "path=/search, client_id=c1". A value that shares its
// count with others is the pattern. Any other text stays as it is.
func Readable(key string) string {
	_, rest, ok := cutText(key)
	if !ok {
		return key
	}
	var entries []string
	for strings.HasPrefix(rest, "|") {
		name, more, ok := cutText(rest[1:])
		if !ok || !strings.HasPrefix(more, "=") {
			return key
		}
		value, more, ok := cutText(more[1:])
		if !ok {
			return key
		}
		entries, rest = append(entries, name+"="+value), more
	}
	if !strings.HasPrefix(rest, "#") || len(entries) == 0 {
		return key
	}
	return strings.Join(entries, ", ")
}

// cutText cuts a text behind its length and a mark, ':' or '*', off a key.
func cutText(key string) (text, rest string, ok bool) {
	i := strings.IndexAny(key, ":*")
	if i < 0 {
		return "", "", false
	}
	n, err := strconv.ParseUint(key[:i], 10, 31)
	if err != nil || int(n) > len(key)-i-1 {
		return "", "", false
	}
	end := i + 1 + int(n)
	return key[i+1 : end], key[end:], true
}
