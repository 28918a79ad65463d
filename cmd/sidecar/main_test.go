package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/test/parts"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sidecar": main})
}

// TestScripts runs the binary as its users do.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", "atexit_sleep_ms=0") // it would wait a second at the end of each command that succeeds
			env.Setenv("TOMORROW", time.Now().AddDate(0, 0, 1).UTC().Format(time.RFC3339))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"code": exitCode, "keep": keep, "serving": serveBeside},
	})
}

// exitCode is the script command `code N program args…`: the program must end with that exit code.
func exitCode(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: code N program args…")
	}
	got := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		got = "1"
		if ended, ok := err.(interface{ ExitCode() int }); ok {
			got = decimal(ended.ExitCode())
		}
	}
	if got != args[0] {
		ts.Fatalf("%v: exit code %s, want %s", args[1:], got, args[0])
	}
}

// serveBeside is the script command `serving args…`: it runs `sidecar serve args…` beside the rest
// of the script. $ADMIN is then the address of the admin service.
func serveBeside(ts *testscript.TestScript, _ bool, args []string) {
	binary := filepath.Join(filepath.SplitList(ts.Getenv("PATH"))[0], "sidecar")
	args = append([]string{"--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=127.0.0.1:0"}, args...)
	for i, arg := range args {
		if name, path, ok := strings.Cut(arg, "=./"); ok {
			args[i] = name + "=" + ts.MkAbs(path)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	s, err := parts.StartSidecar(ctx, binary, args...)
	ts.Check(err)
	ts.Defer(s.Kill)
	ts.Setenv("ADMIN", s.Admin)
}

// keep is the script command `keep NAME REGEXP`: $NAME is then the first group of the expression in
// the last output.
func keep(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: keep NAME REGEXP")
	}
	found := regexp.MustCompile(args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if len(found) < 2 {
		ts.Fatalf("the output has no %s", args[1])
	}
	ts.Setenv(args[0], found[1])
}

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{"internal/lab", "internal/lab/cases", "internal/wire/certificates", "internal/regular", "internal/wire", "internal/durations", "internal/headers", "internal/admin", "internal/admin/grants", "internal/printable", "internal/wire/web", "internal/lane", "pkg/quota", "internal/wire/laneserver", "internal/lockfile", "internal/loglimit", "internal/metrics", "internal/admin/page", "internal/rawio", "internal/lab/records", "internal/redis", "internal/rules/reload", "internal/admin/render", "internal/redis/resp", "internal/app", "internal/settings", "internal/lab/simulate", "internal/snapshots", "internal/ranges", "internal/spelling", "internal/timespan", "internal/zones", "internal/statistics", "internal/lab/suggest", "internal/top", "internal/tracing", "internal/version", "internal/admin/watch", "internal/rules/xds", "pkg/...", "proto/..."},
		Third: []string{
			"github.com/spf13/cobra", "github.com/spf13/pflag", "github.com/spf13/viper",
			"golang.org/x/term", "google.golang.org/grpc/...", "google.golang.org/protobuf/...",
		},
		Never: []string{"testing"},
	})
}

// unset removes an environment variable until the test ends.
func unset(t *testing.T, name string) {
	t.Helper()
	t.Setenv(name, "") // puts it back
	if err := os.Unsetenv(name); err != nil {
		t.Fatal(err)
	}
}
