// Package program is shared by the programs that measure: their start, their arguments, and the
// search for servers.
package program

import (
	"bytes"
	"context"
	"encoding/json"
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

// Parse reads arguments: the flags that define names, and the arguments of `sidecar serve` behind
// them, which Parse returns.
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
	return built(ctx, "cmd/sidecar")
}

// built builds the program in a folder of the repository.
func built(ctx context.Context, folder string) (string, error) {
	root, err := parts.Root()
	if err != nil {
		return "", err
	}
	return parts.Program(ctx, root, folder, false)
}

// Redis returns the path of a redis-server.
func Redis(ctx context.Context) (string, error) {
	root, err := parts.Root()
	if err != nil {
		return "", err
	}
	return parts.FindRedis(ctx, root)
}

// Portable builds cmd/sidecar into dir as on a system without raw sockets, where package net makes
// the system calls of the lane.
func Portable(ctx context.Context, dir string) (string, error) {
	root, err := parts.Root()
	if err != nil {
		return "", err
	}
	lane := filepath.Join(root, "internal", "wire", "laneserver")
	other, err := os.ReadFile(filepath.Join(lane, "socket_other.go"))
	if err != nil {
		return "", err
	}
	replaced, overlay, binary := filepath.Join(dir, "socket.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "portable")
	text, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(lane, "socket_other.go"): replaced, filepath.Join(lane, "socket_linux.go"): "",
	}})
	if err != nil {
		return "", err
	}
	other = bytes.Replace(other, []byte("//go:build !linux\n"), nil, 1)
	if err := errors.Join(os.WriteFile(replaced, other, 0o600), os.WriteFile(overlay, text, 0o600)); err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, "go", "build", "-tags", "grpcnotrace", "-o", binary, "-overlay="+overlay, "./cmd/sidecar")
	command.Dir, command.Env = root, append(os.Environ(), "CGO_ENABLED=0") // as in the image
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the portable sidecar: %w\n%s", err, out)
	}
	return binary, nil
}

// A Bare is a running server that answers a constant: bench/bare or bench/floor.
type Bare struct {
	*parts.Process
	GRPC string // host:port, or the path of a Unix socket
}

// StartBare builds bench/bare and starts it with arguments.
func StartBare(ctx context.Context, args ...string) (*Bare, error) {
	return startBare(ctx, "bare", args)
}

// StartFloor builds bench/floor and starts it with arguments.
func StartFloor(ctx context.Context, args ...string) (*Bare, error) {
	return startBare(ctx, "floor", args)
}

func startBare(ctx context.Context, name string, args []string) (*Bare, error) {
	binary, err := built(ctx, "bench/"+name)
	if err != nil {
		return nil, err
	}
	process, err := parts.Start(name, binary, args...)
	if err != nil {
		return nil, err
	}
	line, err := process.AwaitMessage(ctx, 0, "listening")
	if err != nil {
		process.Kill()
		return nil, err
	}
	return &Bare{process, parts.ParseLog(line).Address}, nil
}
