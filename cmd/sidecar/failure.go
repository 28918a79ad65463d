package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/weirproxy/weir/internal/app"
)

// Exit codes.
const (
	exitBad   = 1 // settings or rules with mistakes, or a failure
	exitUsage = 2 // a mistake in the command line or in an input line
	exitNone  = 3 // match found no rule, holds --release no holder that holds, or simulate denies more than --max-denied
)

// failure is an error with its exit code.
type failure struct {
	error
	code int
	bare bool // each line begins with a file, such as "rules/edge.yaml:12: …", and not with "sidecar: "
}

// Unwrap returns the error.
func (f failure) Unwrap() error { return f.error }

// usage is a failure of the command line.
func usage(format string, args ...any) error {
	return failure{error: fmt.Errorf(format, args...), code: exitUsage}
}

// bad is the failure of rules or an input: each line begins with a file.
func bad(err error, code int) error { return failure{error: err, code: code, bare: true} }

// reported is a failure whose reasons are written already.
func reported(code int) error { return failure{error: errors.New(""), code: code, bare: true} }

// report writes an error, one reason per line, and returns the exit code; 0 for nil.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	f, ok := errors.AsType[failure](err)
	if !ok {
		_, bare := errors.AsType[app.RulesError](err)
		f = failure{error: err, code: exitBad, bare: bare}
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
