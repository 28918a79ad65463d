// Grpcbench measures what a rate limit request costs Weir: the CPU time of the server process for each ShouldRateLimit over
// gRPC, beside that of a bare grpc-go server that answers a constant (internal/bench/bare), both built from this tree and
// driven in turns by h2load in one run. Turns and medians keep it honest on a machine that does other things as well.
//
//	go run ./internal/bench/grpcbench -rounds 7 -requests 300000
//
// With -store redis the counts are in a Redis of its own, whose CPU time is shown beside the sidecar's and added to it; beside a
// key over its limit there stands the same of a sidecar that counts in memory. The row "alone" is requests decided without
// Redis, which should be none.
//
// h2load sends one body, so it asks for one key. With -keys a client in this process asks instead, for one of many at random:
//
//	go run ./internal/bench/grpcbench -store redis -keys 100000
//
// It needs h2load, of nghttp2, or -keys; redis-server or valkey-server, as scripts/redis.sh finds it, for -store redis; and Linux:
// CPU time comes from /proc.
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
	"slices"
	"strconv"
	"time"

	"github.com/weirproxy/weir/internal/bench/drive"
	"github.com/weirproxy/weir/test/parts"
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
	redis            bool
	redisTimeout     time.Duration
	rules            string
	sidecar          string
	gogc             string
	timeout          time.Duration
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var store string
	flags := flag.NewFlagSet("grpcbench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.rounds, "rounds", 5, "rounds, in each of which every server has a turn")
	flags.IntVar(&o.requests, "requests", 200_000, "requests of a turn")
	flags.IntVar(&o.load.connections, "connections", 4, "connections of h2load")
	flags.IntVar(&o.load.streams, "streams", 50, "requests at once on a connection")
	flags.IntVar(&o.load.keys, "keys", 1, "keys to ask for at random; more than 1 does without h2load, and without a key over its limit")
	flags.StringVar(&store, "store", "memory", "where counts are kept: memory or redis")
	flags.DurationVar(&o.redisTimeout, "redis-timeout", time.Second, "--redis-timeout of Weir, and then also grpc-timeout: on a busy machine 200 requests at once wait longer than is usual")
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
	case o.rounds < 1, o.requests < 1, o.load.connections < 1, o.load.streams < 1, o.load.keys < 1:
		return o, errors.New("rounds, requests, connections, streams and keys must be at least 1")
	case store != "memory" && store != "redis":
		return o, fmt.Errorf("store %q: must be memory or redis", store)
	}
	o.load.patience = 20 * time.Millisecond // as Envoy has it
	if o.redis = store == "redis"; o.redis {
		o.load.patience = max(o.load.patience, 2*o.redisTimeout)
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.load.path, err = exec.LookPath("h2load"); err != nil && o.load.keys == 1 {
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

// bench is the servers of a run.
type bench struct {
	o       options
	dir     string
	stderr  io.Writer
	servers []*server
	redis   *parts.Redis // nil: none
}

// end ends what was started.
func (b *bench) end() {
	for _, s := range b.servers {
		s.stop()
	}
	if b.redis != nil {
		b.redis.Kill()
	}
}

// start builds and starts the servers and prepares what each is asked. stop ends what was started, also after an error.
func start(ctx context.Context, o options, dir string, stderr io.Writer) (all []contender, stop func(), err error) {
	b := &bench{o: o, dir: dir, stderr: stderr}
	all, err = b.start(ctx)
	return all, b.end, err
}

func (b *bench) start(ctx context.Context) ([]contender, error) {
	if err := b.write("rules.yaml", []byte(ruleFile)); err != nil {
		return nil, err
	}
	if err := build(ctx, filepath.Join(b.dir, "bare"), "./internal/bench/bare", b.stderr); err != nil {
		return nil, err
	}
	if b.o.sidecar == "" {
		b.o.sidecar = filepath.Join(b.dir, "sidecar")
		if err := build(ctx, b.o.sidecar, "./cmd/sidecar", b.stderr); err != nil {
			return nil, err
		}
	}
	bare, err := b.launch(ctx, "", filepath.Join(b.dir, "bare"))
	if err != nil {
		return nil, err
	}
	weir, err := b.sidecar(ctx)
	if err != nil {
		return nil, err
	}
	all := []contender{{name: "bare grpc-go", server: bare, path: "/search", want: codeOK}}
	denied := contender{name: "weir, over limit", server: weir, path: "/login", want: codeOverLimit}
	if !b.o.redis {
		all = append(all, contender{name: "weir, allowed", server: weir, path: "/search", want: codeOK}, denied)
	} else {
		shared, pid, err := b.sharing(ctx)
		if err != nil {
			return nil, err
		}
		denied.name = "over, in memory"
		all = append(all,
			contender{name: "fixed_window", server: shared, redis: pid, path: "/search", want: codeOK},
			contender{name: "token_bucket", server: shared, redis: pid, path: "/bucket", want: codeOK},
			contender{name: "over limit", server: shared, redis: pid, path: "/login", want: codeOverLimit},
			denied)
	}
	if b.o.load.keys > 1 {
		all = slices.DeleteFunc(all, func(c contender) bool { return c.want == codeOverLimit })
	}
	for i := range all {
		c := &all[i]
		c.body = filepath.Join(b.dir, filepath.Base(c.path))
		text, err := body(c.path)
		if err := errors.Join(err, b.write(filepath.Base(c.path), text)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (b *bench) write(name string, text []byte) error {
	return os.WriteFile(filepath.Join(b.dir, name), text, 0o600)
}

// launch starts a server.
func (b *bench) launch(ctx context.Context, gogc string, command ...string) (*server, error) {
	s, err := launch(ctx, gogc, command)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(command[0]), err)
	}
	b.servers = append(b.servers, s)
	return s, nil
}

// sidecar starts a sidecar, with further arguments.
func (b *bench) sidecar(ctx context.Context, more ...string) (*server, error) {
	command := []string{
		b.o.sidecar, "serve", "--log-format=json", "--rules=" + filepath.Join(b.dir, "rules.yaml"),
		"--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=",
	}
	if b.o.rules != "" {
		command = append(command, "--rules="+b.o.rules)
	}
	return b.launch(ctx, b.o.gogc, append(command, more...)...)
}

// sharing starts Redis and a sidecar that keeps its counts there, and returns that and the process of Redis.
func (b *bench) sharing(ctx context.Context) (*server, int, error) {
	root, err := parts.Root()
	if err != nil {
		return nil, 0, err
	}
	binary, err := parts.FindRedis(ctx, root)
	if err != nil {
		return nil, 0, err
	}
	if b.redis, err = parts.StartRedis(ctx, binary, b.dir, parts.RedisOptions{}); err != nil {
		return nil, 0, err
	}
	info, err := b.redis.Info(ctx, "server")
	if err != nil {
		return nil, 0, err
	}
	pid, err := strconv.Atoi(info["process_id"])
	if err != nil {
		return nil, 0, fmt.Errorf("the process of Redis: %w", err)
	}
	s, err := b.sidecar(ctx, "--store=redis", "--redis-url=redis://"+b.redis.Address(), "--redis-timeout="+b.o.redisTimeout.String())
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	address, err := s.http(ctx)
	if err != nil {
		return nil, 0, err
	}
	return s, pid, drive.AwaitRedis(ctx, address)
}
