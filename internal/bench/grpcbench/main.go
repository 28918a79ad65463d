// Grpcbench measures what a rate limit request costs Weir: the CPU time of the server process for each ShouldRateLimit over
// gRPC, beside that of a bare grpc-go server that answers a constant (internal/bench/bare), both built from this tree and
// driven in turns by h2load in one run. Turns and medians keep it honest on a machine that does other things as well.
//
//	go run ./internal/bench/grpcbench -rounds 7 -requests 300000
//
// It needs h2load, of nghttp2, and Linux: CPU time comes from /proc.
package main

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
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "grpcbench:", err)
		os.Exit(1)
	}
}

// options is what a run does.
type options struct {
	rounds, requests int
	load             load
	rules            string
	sidecar          string
	gogc             string
	timeout          time.Duration
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("grpcbench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.rounds, "rounds", 5, "rounds, in each of which every server has a turn")
	flags.IntVar(&o.requests, "requests", 200_000, "requests of a turn")
	flags.IntVar(&o.load.connections, "connections", 4, "connections of h2load")
	flags.IntVar(&o.load.streams, "streams", 50, "requests at once on a connection")
	flags.StringVar(&o.rules, "rules", "", "a rule file to load besides the benchmark's own")
	flags.StringVar(&o.sidecar, "sidecar", "", "a binary to measure instead of building ./cmd/sidecar")
	flags.StringVar(&o.gogc, "gogc", "", "GOGC of Weir; empty leaves it to Weir. The bare server has Go's default")
	flags.DurationVar(&o.timeout, "timeout", 10*time.Minute, "end of all patience")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.rounds < 1, o.requests < 1, o.load.connections < 1, o.load.streams < 1:
		return o, errors.New("rounds, requests, connections and streams must be at least 1")
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.load.path, err = exec.LookPath("h2load"); err != nil {
		return errors.New("h2load is missing: it drives the load; install the package nghttp2-client (Debian, Ubuntu) or nghttp2 (others)")
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "grpcbench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	contenders, stop, err := start(ctx, o, dir, stderr)
	defer stop()
	if err != nil {
		return err
	}
	o.load.requests = max(o.requests/10, 1)
	for i := range contenders { // warm up
		if _, err := contenders[i].turn(ctx, o.load); err != nil {
			return err
		}
	}
	o.load.requests = o.requests
	for round := range o.rounds {
		for i := range contenders {
			cost, err := contenders[i].turn(ctx, o.load)
			if err != nil {
				return fmt.Errorf("round %d: %w", round+1, err)
			}
			contenders[i].costs = append(contenders[i].costs, cost)
		}
	}
	report(stdout, o, contenders)
	return nil
}

// start builds and starts the servers and prepares what each is asked. stop ends what was started, also after an error.
func start(ctx context.Context, o options, dir string, stderr io.Writer) (all []contender, stop func(), err error) {
	var started []*server
	stop = func() {
		for _, s := range started {
			s.stop()
		}
	}
	allowed, denied := filepath.Join(dir, "allowed"), filepath.Join(dir, "denied")
	rules := filepath.Join(dir, "rules.yaml")
	if err := errors.Join(
		os.WriteFile(allowed, body("/search"), 0o600),
		os.WriteFile(denied, body("/login"), 0o600),
		os.WriteFile(rules, []byte(ruleFile), 0o600),
	); err != nil {
		return nil, stop, err
	}
	bare := filepath.Join(dir, "bare")
	if err := build(ctx, bare, "./internal/bench/bare", stderr); err != nil {
		return nil, stop, err
	}
	if o.sidecar == "" {
		o.sidecar = filepath.Join(dir, "sidecar")
		if err := build(ctx, o.sidecar, "./cmd/sidecar", stderr); err != nil {
			return nil, stop, err
		}
	}
	arguments := []string{
		"serve", "--log-format=json", "--rules=" + rules,
		"--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=",
	}
	if o.rules != "" {
		arguments = append(arguments, "--rules="+o.rules)
	}
	for _, one := range []struct {
		gogc    string
		command []string
	}{{"", []string{bare}}, {o.gogc, append([]string{o.sidecar}, arguments...)}} {
		s, err := launch(ctx, one.gogc, one.command)
		if err != nil {
			return nil, stop, fmt.Errorf("start %s: %w", filepath.Base(one.command[0]), err)
		}
		started = append(started, s)
	}
	return []contender{
		{name: "bare grpc-go", server: started[0], body: allowed, want: codeOK},
		{name: "weir, allowed", server: started[1], body: allowed, want: codeOK},
		{name: "weir, over limit", server: started[1], body: denied, want: codeOverLimit},
	}, stop, nil
}
