// Grpcbench measures the CPU time of Weir's process for each ShouldRateLimit over gRPC. A bare grpc-go server that answers a constant
// (bench/bare) shows the share of gRPC. h2load drives both in turns in one run; both are built from this tree. Turns and medians keep
// it honest on a machine that does other things as well.
//
//	go -C bench run ./grpcbench -rounds 7 -requests 300000
//
// With -store redis the counts are in a Redis of the run. The report shows the CPU time of that Redis beside the sidecar's, and the
// sum. A key over its limit is measured with a sidecar that counts in memory too. The row "alone" is requests decided without Redis,
// which should be none.
//
// h2load sends one body, so it asks for one key. With -keys a client in this process asks instead, for one of many at random:
//
//	go -C bench run ./grpcbench -store redis -keys 100000
//
// Grpcbench needs h2load of nghttp2, or -keys. With -store redis, grpcbench needs a redis-server or valkey-server too, as
// scripts/redis.sh finds it. All runs need Linux: CPU time comes from /proc.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/weirproxy/weir/bench/program"
)

func main() { os.Exit(program.Main("grpcbench", run)) }

// options are the settings of a run.
type options struct {
	rounds, requests int
	load             load
	redis            bool
	redisTimeout     time.Duration
	rules            string
	sidecar          string
	gogc             string
	timeout          time.Duration
	more             []string // arguments of serve
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var store string
	var err error
	o.more, err = program.Parse("grpcbench", args, stderr, func(flags *flag.FlagSet) {
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
		flags.DurationVar(&o.timeout, "timeout", 10*time.Minute, "longest time of the run")
	})
	if err != nil {
		return o, err
	}
	switch {
	case o.rounds < 1, o.requests < 1, o.load.connections < 1, o.load.streams < 1, o.load.keys < 1:
		return o, errors.New("rounds, requests, connections, streams and keys must be at least 1")
	case store != "memory" && store != "redis":
		return o, fmt.Errorf("store %q: must be memory or redis", store)
	}
	o.load.timeout = 20 * time.Millisecond // as Envoy has it
	if o.redis = store == "redis"; o.redis {
		o.load.timeout = max(o.load.timeout, 2*o.redisTimeout)
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

	b := &bench{o: o, dir: dir}
	defer b.end()
	contenders, err := b.start(ctx)
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
