// Package program is shared by the programs that measure: their start, their arguments, and the search for servers.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/weirproxy/weir/test/parts"
)

// Main runs a program until it ends or a signal says so, and returns its exit code.
func Main(name string, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

// Parse reads arguments: the flags that define names, and the arguments of `sidecar serve` behind them, which Parse returns.
func Parse(name string, args []string, stderr io.Writer, define func(*flag.FlagSet)) (serve []string, err error) {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "%s [flags] [-- further arguments of sidecar serve]\n", name)
		flags.PrintDefaults()
	}
	define(flags)
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	serve = flags.Args()
	if len(serve) > 0 && !strings.HasPrefix(serve[0], "-") {
		return nil, fmt.Errorf("unexpected argument %q", serve[0])
	}
	return serve, nil
}

// Sidecar returns the given binary, or builds cmd/sidecar where none is given.
func Sidecar(ctx context.Context, given string) (string, error) {
	if given != "" {
		return given, nil
	}
	root, err := parts.Root()
	if err != nil {
		return "", err
	}
	return parts.Program(ctx, root, "cmd/sidecar", false)
}

// Redis returns the path of a redis-server.
func Redis(ctx context.Context) (string, error) {
	root, err := parts.Root()
	if err != nil {
		return "", err
	}
	return parts.FindRedis(ctx, root)
}

// A Bare is a running bench/bare.
type Bare struct {
	*parts.Process
	GRPC string // host:port
}

// StartBare builds bench/bare into dir and starts it.
func StartBare(ctx context.Context, dir string) (*Bare, error) {
	root, err := parts.Root()
	if err != nil {
		return nil, err
	}
	binary := filepath.Join(dir, "bare")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./bare")
	build.Dir, build.Env = filepath.Join(root, "bench"), append(os.Environ(), "CGO_ENABLED=0") // as the sidecar is built
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building bench/bare: %w\n%s", err, out)
	}
	process, err := parts.Start("bare", binary)
	if err != nil {
		return nil, err
	}
	line, _, err := process.Await(ctx, 0, func(line string) bool { return parts.ParseLog(line).Message == "listening" })
	if err != nil {
		process.Kill()
		return nil, err
	}
	return &Bare{process, parts.ParseLog(line).Address}, nil
}
