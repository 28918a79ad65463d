// Package printable makes texts that others have chosen fit for logs and terminals.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// maxShown is the most bytes of a text from a client that a line for people shows.
const maxShown = 200

// Text returns a text that a terminal can show without harm. The end of a long text is cut
// off, and every character that is not printable is escaped as in Go. Others choose keys and
// values, and a terminal obeys control characters.
func Text(text string) string {
	rest := ""
	if len(text) > maxShown {
		cut := maxShown
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		rest = "…(" + strconv.Itoa(len(text)-cut) + " more bytes)"
		text = text[:cut]
	}
	return Escaped(text) + rest
}

// Escaped returns a text with each character escaped that is not printable.
func Escaped(text string) string {
	odd := func(r rune) bool { return !strconv.IsPrint(r) }
	if utf8.ValidString(text) && !strings.ContainsFunc(text, odd) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		if part := text[:size]; strconv.IsPrint(r) && (r != utf8.RuneError || size > 1) {
			b.WriteString(part)
		} else {
			quoted := strconv.Quote(part)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[size:]
	}
	return b.String()
}

// JSON escapes the characters in a JSON text that a terminal may obey. JSON itself escapes
// only those below space.
func JSON(data []byte) []byte {
	out := make([]byte, 0, len(data))
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		switch {
		case r < 0x7f || strconv.IsPrint(r):
			out = append(out, data[:size]...)
		case r > 0xffff:
			r -= 0x10000
			out = appendUnicode(appendUnicode(out, 0xd800+r>>10), 0xdc00+r&0x3ff)
		default:
			out = appendUnicode(out, r)
		}
		data = data[size:]
	}
	return out
}

// appendUnicode appends a UTF-16 unit as JSON escapes it.
func appendUnicode(dst []byte, unit rune) []byte {
	const digits = "0123456789abcdef"
	return append(dst, '\\', 'u', digits[unit>>12&15], digits[unit>>8&15], digits[unit>>4&15], digits[unit&15])
}

// MaxEntries is the most entries of a descriptor that a line for people shows.
const MaxEntries = 16

// Entries returns entries as an argument of a command, such as "path=/search,client_id=c1", and
// printable. An argument that a shell would change is in single quotes. No command takes an empty
// key, a text that is not printable, or one that is too long to show. Such a text is in double
// quotes, escaped as in Go. The end of many entries is cut off.
func Entries(entries []descriptors.Entry) string {
	if argument, ok := entriesArgument(entries); ok {
		return argument
	}
	var parts []string
	for i, e := range entries {
		if i == MaxEntries {
			parts = append(parts, fmt.Sprintf("…(%d more)", len(entries)-i))
			break
		}
		parts = append(parts, Key(e.Key)+"="+entryPart(e.Value, false))
	}
	return strings.Join(parts, ",")
}

// inShell are the characters that a shell changes, or ends a word at.
const inShell = " \t\"'\\$&;|<>()`*?[]{}#~!^"

// entriesArgument returns entries as an argument, if there is one that can be shown.
func entriesArgument(entries []descriptors.Entry) (argument string, ok bool) {
	if len(entries) > MaxEntries {
		return "", false
	}
	value := strings.NewReplacer(`\`, `\\`, `,`, `\,`)
	key := strings.NewReplacer(`\`, `\\`, `,`, `\,`, `=`, `\=`)
	var parts []string
	for _, e := range entries {
		if e.Key == "" || Text(e.Key) != e.Key || Text(e.Value) != e.Value {
			return "", false
		}
		parts = append(parts, key.Replace(e.Key)+"="+value.Replace(e.Value))
	}
	if argument = strings.Join(parts, ","); strings.ContainsAny(argument, inShell) {
		argument = "'" + strings.ReplaceAll(argument, "'", `'\''`) + "'"
	}
	return argument, true
}

// Key returns the key of an entry, as Entries does.
func Key(text string) string { return entryPart(text, true) }

// entryPart returns a key or a value, quoted where it could be read in another way.
func entryPart(text string, key bool) string {
	odd := " ,\"\\"
	if key {
		odd += "="
	}
	shown := Text(text)
	if shown == text && !strings.ContainsAny(text, odd) && (text != "" || !key) {
		return text
	}
	if len(text) <= maxShown {
		return strconv.Quote(text)
	}
	return `"` + shown + `"`
}
