// Command ratelimit is Weir in the place of envoyproxy/ratelimit. The program reads that service's
// environment, rule files and xDS resources, and has the same ports, answers, counts and metrics.
// docs/migrating.md lists the differences.
//
// The program ignores arguments, as the original does, except for a lone help or version, check and
// compare. check says whether rules would load, and compare asks two services the same. The program
// translates its environment to an app.Config, as sidecar does with its settings.
//
// Exit codes: 0 after a signal; 1 variables or rules with mistakes, different answers, or a
// failure.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/app"
	"github.com/weirproxy/weir/internal/version"
)

// drainTimeout bounds a drain. The original has no bound; Kubernetes kills after 30 seconds.
const drainTimeout = 10 * time.Second

func main() {
	if about(os.Args[1:], os.Stdout) {
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "check" {
		os.Exit(report(os.Stderr, check(os.Environ(), os.Args[2:], os.Stdout, os.Stderr)))
	}
	if len(os.Args) > 1 && os.Args[1] == "compare" {
		os.Exit(report(os.Stderr, compareServices(context.Background(), os.Environ(), os.Args[2:], os.Stdout, os.Stderr)))
	}
	os.Exit(report(os.Stderr, run(context.Background(), os.Environ(), os.Stderr)))
}

// about answers a lone help or version. Platforms pass other arguments, which count for nothing.
func about(args []string, stdout io.Writer) bool {
	if len(args) != 1 {
		return false
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, help())
	case "version", "-version", "--version":
		fmt.Fprintln(stdout, version.Read())
	default:
		return false
	}
	return true
}

func help() string {
	var b strings.Builder
	b.WriteString("ratelimit is Weir in the place of envoyproxy/ratelimit. The environment has all settings:\n")
	does, idle := effects()
	for _, g := range table(new(config)) {
		fmt.Fprintf(&b, "\n%s:\n", g.title)
		for _, v := range g.variables {
			if !idle[v.name] {
				fmt.Fprintf(&b, "  %s=%s\n      %s\n", v.name, v.usual, does[v.name])
			}
		}
	}
	b.WriteString("\nratelimit check [PATH…] says whether these files, and all files below these directories, would load as rules; without a path\n" +
		"the directory of RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY.\n" +
		"ratelimit compare OLD NEW asks two services, each a host:port of gRPC, about each of these rules, and prints different answers.\n" +
		"With [RECORD…] it asks the requests of these files (docs/records.md). All requests count, so compare services on trial.\n")
	b.WriteString("\ndocs/migrating-variables.md also lists the variables without an effect.\n")
	return b.String()
}

func run(ctx context.Context, environ []string, stderr io.Writer) error {
	c, err := configure(environ, stderr)
	if err != nil {
		return err
	}
	return app.Named(app.Run(ctx, c), partVariables())
}

// configure translates the environment. The service logs to stderr.
func configure(environ []string, stderr io.Writer) (app.Config, error) {
	c, err := readConfig(environ)
	if err == nil {
		err = c.finish()
	}
	if err != nil {
		return app.Config{}, err
	}
	c.Logger = newLogger(stderr, &c)
	warn(c.Logger, environ, c.Backend)
	if c.raw.spareAdmin {
		c.Admin.Spare = func(err error) {
			c.Logger.Warn("an endpoint is off", slog.String("server", "admin"),
				slog.String("setting", "WEIR_ADMIN_ADDRESS"), slog.String("error", err.Error()))
		}
	}
	return c.Config, nil
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
