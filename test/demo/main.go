// Command demo shows Weir at work. The command starts a small backend, the sidecar with
// deploy/rules, and real Envoy with deploy/envoy.yaml, on the ports in those files. Then demo
// prints requests to try, and ends everything on Ctrl-C or SIGTERM.
//
// With `-example llm` the rules and the bootstrap come from deploy/llm, and the backend answers as
// a language model does. With `-example concurrency` both come from deploy/concurrency. With
// `-example rlqs` both come from deploy/rlqs, and two Envoys share the limits.
//
// Run demo inside the repository (`make demo`). Demo exits 0 after a signal, and 1 when a part
// could not be started or ended by itself; the error names the part.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// timeout is how long a part may take to start, or to stop.
const timeout = 30 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		stop()
		os.Exit(1)
	}
}

// run starts all parts and waits until ctx is done or a part has ended, which is an error. In both
// cases it ends all parts.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	binary := flags.String("sidecar", "", "`path` of the sidecar; built when empty")
	name := flags.String("example", "", "`folder` of deploy with another example: llm, concurrency or rlqs")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	invitation, err := invitationTo(*name)
	if err != nil {
		return err
	}
	needed := ports()
	if *name == "rlqs" {
		needed = append(needed, secondPorts()...)
	}
	if err := checkFree(needed); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "weir-demo-")
	if err != nil {
		return fmt.Errorf("making room for the demo: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	root, err := parts.Root()
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "Looking for Envoy …")
	envoy, err := parts.FindEnvoy(ctx, root)
	if err != nil {
		return quiet(ctx, err)
	}
	if *binary == "" {
		fmt.Fprintln(stdout, "Building the sidecar …")
		if *binary, err = parts.Program(ctx, root, "cmd/sidecar", false); err != nil {
			return quiet(ctx, err)
		}
	}
	s := stage{two: *name == "rlqs", example: filepath.Join(root, "deploy", *name), dir: dir, sidecar: *binary, envoy: envoy, invitation: invitation}
	return quiet(ctx, serve(ctx, s, stdout))
}

// quiet drops an error that is only there because the demo was asked to stop.
func quiet(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) || ctx.Err() != nil {
		return nil
	}
	return err
}

// A stage holds the paths of the demo's parts.
type stage struct {
	example    string // the folder with envoy.yaml and rules
	dir        string // for files of the moment
	sidecar    string // the binary
	envoy      string // the binary
	invitation string // the text with requests to try
	two        bool   // Envoys, of which the second one has other ports
}

// serve starts the parts one after the other, prints the requests to try, and waits.
func serve(ctx context.Context, s stage, stdout io.Writer) (err error) {
	backend, err := parts.StartBackend("127.0.0.1:18080")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()

	starting, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not ready within %s", timeout))
	defer cancel()
	sidecar, err := parts.StartSidecar(starting, s.sidecar, "--rules="+filepath.Join(s.example, "rules"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end(sidecar.Process)) }()
	envoy, err := parts.StartEnvoy(starting, s.envoy, filepath.Join(s.example, "envoy.yaml"), s.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end(envoy.Process)) }()
	second := envoy
	if s.two {
		if second, err = startSecond(starting, s); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end(second.Process)) }()
	}

	go warn(ctx, sidecar.Process, stdout)
	fmt.Fprint(stdout, s.invitation)
	select {
	case <-ctx.Done():
		fmt.Fprintln(stdout, "Stopping Envoy, the sidecar and the backend …")
		return nil
	case <-sidecar.Exited():
		return fmt.Errorf("the sidecar has ended by itself; its last lines:\n%s", sidecar.Tail(20))
	case <-envoy.Exited():
		return fmt.Errorf("Envoy has ended by itself; its last lines:\n%s", envoy.Tail(20))
	case <-second.Exited():
		return fmt.Errorf("the second Envoy has ended by itself; its last lines:\n%s", second.Tail(20))
	case err := <-backend.Ended():
		return fmt.Errorf("the backend has ended by itself: %w", err)
	}
}

// startSecond starts the second Envoy.
func startSecond(ctx context.Context, s stage) (*parts.Envoy, error) {
	first, err := os.ReadFile(filepath.Join(s.example, "envoy.yaml"))
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.dir, "second")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(config, []byte(secondEnvoy(string(first))), 0o600); err != nil {
		return nil, err
	}
	return parts.StartEnvoy(ctx, s.envoy, config, dir)
}

// warn prints the warnings and errors of the sidecar's log until the sidecar ends or ctx is done.
func warn(ctx context.Context, sidecar *parts.Process, stdout io.Writer) {
	for next := 0; ; {
		line, after, err := sidecar.Await(ctx, next, func(line string) bool {
			return strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR")
		})
		if err != nil {
			return
		}
		fmt.Fprintln(stdout, "sidecar:", line)
		next = after
	}
}

// end stops a part; one that has ended already is no error here.
func end(p *parts.Process) error {
	select {
	case <-p.Exited():
		return nil
	default:
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), timeout, fmt.Errorf("still there after %s", timeout))
	defer cancel()
	return p.Stop(ctx)
}
