// Command demo shows Weir at work. The command starts a small backend, the sidecar with deploy/rules, and real Envoy with
// deploy/envoy.yaml, on the ports in those files. Then demo prints requests to try, and ends everything on Ctrl-C or SIGTERM.
//
// Run demo inside the repository (`make demo`). Demo exits 0 after a signal, and 1 when a part could not be started or ended by
// itself; the error names the part.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
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

// run starts all parts and waits until ctx is done or a part has ended, which is an error. In both cases it ends all parts.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	binary := flags.String("sidecar", "", "`path` of the sidecar; built when empty")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if err := checkFree(ports()); err != nil {
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
	fmt.Fprintln(stdout, "Looking for Envoy (the first time it is fetched) and building the sidecar …")
	envoy, err := parts.FindEnvoy(ctx, root)
	if err != nil {
		return quiet(ctx, err)
	}
	if *binary == "" {
		if *binary, err = parts.Program(ctx, root, "cmd/sidecar", false); err != nil {
			return quiet(ctx, err)
		}
	}
	return quiet(ctx, serve(ctx, stage{root: root, dir: dir, sidecar: *binary, envoy: envoy}, stdout))
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
	root    string // the repository
	dir     string // for files of the moment
	sidecar string // the binary
	envoy   string // the binary
}

// serve starts the parts one after the other, prints the requests to try, and waits.
func serve(ctx context.Context, s stage, stdout io.Writer) (err error) {
	backend, backendEnd, err := startBackend("127.0.0.1:18080")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()

	starting, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not ready within %s", timeout))
	defer cancel()
	sidecar, err := parts.StartSidecar(starting, s.sidecar, "--rules="+filepath.Join(s.root, "deploy", "rules"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end(sidecar.Process)) }()
	envoy, err := parts.StartEnvoy(starting, s.envoy, filepath.Join(s.root, "deploy", "envoy.yaml"), s.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end(envoy.Process)) }()

	fmt.Fprint(stdout, invitation)
	select {
	case <-ctx.Done():
		fmt.Fprintln(stdout, "Stopping Envoy, the sidecar and the backend …")
		return nil
	case <-sidecar.Exited():
		return fmt.Errorf("the sidecar has ended by itself; its last lines:\n%s", sidecar.Tail(20))
	case <-envoy.Exited():
		return fmt.Errorf("Envoy has ended by itself; its last lines:\n%s", envoy.Tail(20))
	case err := <-backendEnd:
		return fmt.Errorf("the backend has ended by itself: %w", err)
	}
}

// invitation is the text with requests to try. The numbers come from deploy/rules/edge.yaml.
const invitation = `
Envoy listens on :10000 and asks the sidecar on 127.0.0.1:8081 about every request. In another terminal:

  # /hello is limited to 3 per minute: three times 200, then 429 and when to come back
  for i in 1 2 3 4; do curl -si localhost:10000/hello | grep -iE '^(HTTP|x-ratelimit|retry-after)'; echo; done

  # an API key has a limit of its own: 10 per minute
  curl -i -H 'x-api-key: alice' localhost:10000/hello

  # what Weir decided, and by which rules
  curl -s localhost:8080/metrics | grep ^weir_decisions_total | grep -v ' 0$'
  curl -s localhost:8080/rules | less

  # change a limit in deploy/rules/edge.yaml and try again: the sidecar reloads it

Ctrl-C ends all of it.

`

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

// startBackend serves the backend of Envoy. The channel gets the error that ends it before Close does.
func startBackend(address string) (*http.Server, <-chan error, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("starting the backend: %w", err)
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "hello from the backend: %s\n", r.URL.Path)
		}),
		ReadHeaderTimeout: time.Second,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	return server, ended, nil
}
