package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Exit codes.
const (
	exitBad   = 1 // settings or rules with mistakes, or what was asked for failed
	exitUsage = 2 // a command line or an input line that means nothing
)

// failure is an error with what the process makes of it.
type failure struct {
	error
	code int
	bare bool // its lines stand for themselves, such as "rules/edge.yaml:12: …"; others are said to come from the sidecar
}

// Unwrap returns the error.
func (f failure) Unwrap() error { return f.error }

// usage is a failure of the command line.
func usage(format string, args ...any) error {
	return failure{error: fmt.Errorf(format, args...), code: exitUsage}
}

// bad is the failure of rules or an input, whose lines stand for themselves.
func bad(err error, code int) error { return failure{error: err, code: code, bare: true} }

// reported is a failure whose reasons have been written already.
func reported() error { return failure{error: errors.New(""), code: exitBad, bare: true} }

// report writes an error, one reason per line, and returns the exit code; 0 for nil.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	f, ok := errors.AsType[failure](err)
	if !ok {
		f = failure{error: err, code: exitBad}
	}
	for line := range strings.Lines(f.Error()) {
		line = strings.TrimSuffix(line, "\n")
		if !f.bare {
			line = "sidecar: " + line
		}
		fmt.Fprintln(stderr, line)
	}
	return f.code
}
