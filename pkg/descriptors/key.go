package descriptors

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// NewLimit returns a limit for the keys of [AppendKey]. unit and multiplier are for clients;
// NewLimit does not compare them with l.Period. ordinal counts the limits of one rule with the same
// algorithm and period, from 1; anything below 1 means 1.
func NewLimit(l algorithms.Limit, unit Unit, multiplier uint32, countRejected bool, ordinal int) Limit {
	return Limit{Limit: l, CountRejected: countRejected, Unit: unit, Multiplier: multiplier, suffix: suffixOf(l, ordinal)}
}

func suffixOf(l algorithms.Limit, ordinal int) string {
	b := append([]byte{'#'}, l.Algorithm.String()...)
	if l.Algorithm != algorithms.Concurrency {
		b = appendPeriod(append(b, '/'), l.Period)
	}
	if l.Calendar != nil {
		b = appendAligned(append(b, '@'), l.Calendar)
	}
	if ordinal > 1 {
		b = strconv.AppendInt(append(b, '.'), int64(ordinal), 10)
	}
	return string(b)
}

// AppendKey appends to dst the key under which the descriptor's own hits are counted, as for an
// override and a domain's default. A rule without share_threshold gives the same descriptor the
// same key. So an override and a rule of the same algorithm and period share one count. The limit
// must come from [Load] or [NewLimit].
//
// A key is text, readable where domain and entries are:
//
//	4:edge|4:path=7:/search|9:client_id=2:c1#token_bucket/1s
//
// The parts are the domain, each entry's key and value, and the limit's algorithm and period;
// concurrency has no period. A rule's second limit of the same algorithm and period ends in ".2".
// Every text follows its length in bytes, so that different descriptors always have different keys.
// Requests and burst are not part of the key: counts outlive their change.
func AppendKey(dst []byte, domain string, entries []Entry, limit *Limit) []byte {
	return appendKey(dst, domain, nil, entries, limit)
}

// AppendKey appends to dst the key of a charge for one of the rule's limits, made by a descriptor
// that the rule matches. The function [AppendKey] makes the same key, except at a level with
// share_threshold. There the pattern replaces the value, with a mark of its own: "6*free_*" for
// "6:free_a". The pattern of a match has another mark, as in "15~{prefix: free_}". So all values
// of the pattern share one count, and a rule that does not share keeps its own count for "free_*".
// A level with a path template, or with group_by, has the template or the subnet in place of the
// value, as in "10~10.1.2.0/24".
//
// The entry that names a holder is not part of the key: all holders share one count.
func (r *Rule) AppendKey(dst []byte, domain string, entries []Entry, limit *Limit) []byte {
	return appendKey(dst, domain, r.Levels, r.WithoutHolder(entries), limit)
}

// Label returns the end of the keys of the limit, without the mark before it, such as
// "token_bucket/1s". Each limit of a rule has a label of its own, also without a name.
func (l *Limit) Label() string { return strings.TrimPrefix(l.suffix, "#") }

// Base returns the part of a key of the limit that names domain and entries, as a part of key. All
// limits of a rule share that part. The key must come from an AppendKey with this limit.
func (l *Limit) Base(key []byte) []byte { return key[:len(key)-len(l.suffix)] }

func appendKey(dst []byte, domain string, levels []Level, entries []Entry, limit *Limit) []byte {
	dst = appendText(dst, ':', domain)
	for i := range entries {
		dst = appendText(append(dst, '|'), ':', entries[i].Key)
		if dst = append(dst, '='); i < len(levels) && (levels[i].ShareThreshold || levels[i].Match != nil) {
			dst = levels[i].appendValue(dst, entries[i].Value)
		} else {
			dst = appendText(dst, ':', entries[i].Value)
		}
	}
	return append(dst, limit.suffix...)
}

// KeyDomain returns the domain in a key that either AppendKey made, as a part of key: "edge" of the
// key above. For other texts it returns nil.
func KeyDomain(key []byte) []byte {
	domain, mark, rest := cutText(key)
	if mark != ':' || len(rest) == 0 || rest[0] != '|' && rest[0] != '#' {
		return nil
	}
	return domain
}

// KeyBase returns domain and entries of a key that either AppendKey made, as a part of key: all but
// "#token_bucket/1s" of the key above. All limits of a rule share that part. For other texts it
// returns nil.
func KeyBase(key []byte) []byte {
	_, mark, rest := cutText(key)
	for mark == ':' && len(rest) > 0 && rest[0] == '|' {
		if _, mark, rest = cutText(rest[1:]); mark != ':' || len(rest) == 0 || rest[0] != '=' {
			return nil
		}
		if _, mark, rest = cutText(rest[1:]); mark == '*' || mark == '~' {
			mark = ':' // a pattern
		}
	}
	if mark != ':' || len(rest) == 0 || rest[0] != '#' {
		return nil
	}
	base := len(key) - len(rest)
	return key[:base:base]
}

// ReadableKey returns the entries in a key that either AppendKey made, for people: "path=/search,
// client_id=c1" of the key above. A value that shares its count with others is the pattern. Any
// other text, and a key without entries, stays as it is.
func ReadableKey(key string) string {
	_, mark, rest := cutText([]byte(key))
	if mark != ':' {
		return key
	}
	var entries []string
	for len(rest) > 0 && rest[0] == '|' {
		name, mark, more := cutText(rest[1:])
		if mark != ':' || len(more) == 0 || more[0] != '=' {
			return key
		}
		value, mark, more := cutText(more[1:])
		if mark == 0 {
			return key
		}
		entries, rest = append(entries, string(name)+"="+string(value)), more
	}
	if len(rest) == 0 || rest[0] != '#' || len(entries) == 0 {
		return key
	}
	return strings.Join(entries, ", ")
}

// cutText splits a key behind its first text. The mark is 0 when the key begins with no text.
func cutText(key []byte) (text []byte, mark byte, rest []byte) {
	length, digits := 0, 0
	for digits < len(key) && digits <= maxDigits && key[digits] >= '0' && key[digits] <= '9' {
		length = 10*length + int(key[digits]-'0')
		digits++
	}
	if digits == 0 || digits > maxDigits || digits > 1 && key[0] == '0' || len(key)-digits-1 < length {
		return nil, 0, nil
	}
	if mark = key[digits]; mark != ':' && mark != '*' && mark != '~' {
		return nil, 0, nil
	}
	text, rest = key[digits+1:digits+1+length:digits+1+length], key[digits+1+length:]
	return text, mark, rest
}

// maxDigits is more than the digits of any length, and few enough for an int.
const maxDigits = 9

// appendText appends a text behind its length in bytes and a mark. Most texts have fewer than 100
// bytes: one append of the digits then costs a third of strconv.
func appendText(dst []byte, mark byte, text string) []byte {
	switch n := len(text); {
	case n < 10:
		dst = append(dst, '0'+byte(n), mark)
	case n < 100:
		dst = append(dst, '0'+byte(n/10), '0'+byte(n%10), mark)
	default:
		dst = append(strconv.AppendInt(dst, int64(n), 10), mark)
	}
	return append(dst, text...)
}

// appendPeriod appends a period as a whole number of the largest of d, h, m, s, ms, us and ns.
func appendPeriod(dst []byte, period time.Duration) []byte {
	names := [...]string{"d", "h", "m", "s", "ms", "us", "ns"}
	lengths := [...]time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second, time.Millisecond, time.Microsecond, time.Nanosecond}
	n := 0
	for period%lengths[n] != 0 {
		n++
	}
	return append(strconv.AppendInt(dst, int64(period/lengths[n]), 10), names[n]...)
}

// AppendOriginalKey appends to dst the key of envoyproxy/ratelimit for the same count, without the
// start of the window at the end. The result is "edge_path_/search_client_id_c1_" for this key,
// made by either AppendKey:
//
//	4:edge|4:path=7:/search|9:client_id=2:c1#fixed_window/1s
//
// For a key without an equivalent, the result is false and dst unchanged. The original counts only
// fixed windows of its units, and only one limit per rule. The original joins texts without their
// lengths, so that different keys may have the same result; the unit is not part of the result.
func AppendOriginalKey(dst, key []byte) (name []byte, counted bool) {
	before := len(dst)
	text, mark, rest := cutText(key)
	if mark != ':' {
		return dst, false
	}
	dst = append(append(dst, text...), '_')
	separator := byte('|') // of entries, and then '=' of the value
	for ; len(rest) > 0 && rest[0] == separator; separator ^= '|' ^ '=' {
		if text, mark, rest = cutText(rest[1:]); mark == 0 {
			return dst[:before], false
		}
		dst = append(append(dst, text...), '_')
	}
	if separator != '|' || !isOriginal(rest) {
		return dst[:before], false
	}
	return dst, true
}

func isOriginal(suffix []byte) bool {
	period, is := bytes.CutPrefix(suffix, []byte("#fixed_window/"))
	if !is {
		return false
	}
	switch string(period) {
	case "1s", "1m", "1h", "1d", "7d", "30d", "365d", "30d@month,UTC":
		return true
	}
	return false
}
