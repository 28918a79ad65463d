package descriptors

import (
	"fmt"
	"strings"
)

// Error is one mistake in a document.
type Error struct {
	File string // the name of its Source
	Line int    // from 1; 0 when unknown
	Path string // of the value, such as descriptors[1].rate_limit.unit; "" for the whole document
	Text string // the mistake, and what is allowed instead
}

// Error returns `file:line: path: text`, without unknown parts.
func (e Error) Error() string { return message(e.File, e.Line, "", e.Path, e.Text) }

// Errors is every mistake of a set of documents, at least one, sorted by file and line.
type Errors []Error

// Error returns the mistakes, one per line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the mistakes one by one.
func (e Errors) Unwrap() []error {
	errs := make([]error, len(e))
	for i := range e {
		errs[i] = e[i]
	}
	return errs
}

// Warning is about something in a document that Load accepts and the author probably did not mean.
type Warning Error

// String returns `file:line: warning: path: text`, without unknown parts.
func (w Warning) String() string { return message(w.File, w.Line, "warning: ", w.Path, w.Text) }

func message(file string, line int, kind, path, text string) string {
	var b strings.Builder
	if p := position(file, line); p != "" {
		b.WriteString(p + ": ")
	}
	b.WriteString(kind)
	if path != "" {
		b.WriteString(path + ": ")
	}
	b.WriteString(text)
	return b.String()
}

// position returns `file:line`, without unknown parts.
func position(file string, line int) string {
	switch {
	case line == 0:
		return file
	case file == "":
		return fmt.Sprintf("line %d", line)
	default:
		return fmt.Sprintf("%s:%d", file, line)
	}
}

// line formats a line number, "" when the line is unknown.
func line(format string, n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(format, n)
}

// maxShown bounds a text of a document in a message, in bytes.
const maxShown = 80

// quote quotes a text of a document for a message, and cuts a long text.
func quote(s string) string {
	if len(s) > maxShown {
		return fmt.Sprintf("%q…", strings.ToValidUTF8(s[:maxShown], ""))
	}
	return fmt.Sprintf("%q", s)
}
