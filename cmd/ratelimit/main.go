// Command ratelimit is Weir in the place of envoyproxy/ratelimit: it reads that service's environment, rule files and xDS
// resources, listens where it does, and answers, counts and tells figures as it does, without its faults. docs/migrating.md
// lists what differs.
//
// It takes no arguments and ignores those that it is given, as the original does. `ratelimit` is a thin program on the same
// packages as `sidecar`.
//
// Exit codes: 0 after a signal; 1 variables or rules with mistakes, or a failure.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	os.Exit(report(os.Stderr, run(context.Background(), os.Environ(), os.Stderr)))
}

// run runs the service until ctx ends or a signal says so.
func run(ctx context.Context, environ []string, stderr io.Writer) error {
	c, err := readConfig(environ)
	if err == nil {
		err = c.verify()
	}
	if err != nil {
		return err
	}
	return serve(ctx, &c, stderr)
}

// report writes an error, one reason per line, and returns the exit code; 0 for nil.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(stderr, "ratelimit: "+strings.TrimSuffix(line, "\n"))
	}
	return 1
}
