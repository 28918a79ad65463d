// Grpcbench measures the CPU time of Weir's process for each ShouldRateLimit over gRPC. A bare
// grpc-go server that answers a constant (bench/bare) shows the share of gRPC. A server that walks
// frames and answers a constant (bench/floor) shows the share of the system. A client of this
// process drives all servers in turns in one run. As Envoy does, the client sends HEADERS and DATA
// of a request side by side. All servers are built from this tree. Turns and medians keep it honest
// on a machine that does other things as well.
//
//	go -C bench run ./grpcbench -shapes 4x50,2x25,1x8,1x1 -rounds 7
//
// Weir takes part with each --grpc-server. In memory "lane net.Conn" is the lane without raw
// sockets. "pair" is another process of the same binary, so the difference to "lane" is noise; with
// -pair it is another binary. With -network unix all servers have a Unix socket. With -network tls
// Weir has TLS, and the bare server has not.
//
// With -load h2load h2load asks, as always with TLS. h2load sends all HEADERS first and all DATA
// afterwards. Then nghttpd takes part too, a server in C that sends a file of the answer's size:
//
//	go -C bench run ./grpcbench -load h2load
//
// With -store redis the counts are in a Redis of the run. The report shows the CPU time of that
// Redis beside the sidecar's, and the sum. A key over its limit is measured with a sidecar that
// counts in memory too. The column "alone" is requests decided without Redis, which should be none.
//
// With -store leased the first server counts in memory, in place of the bare server. The others
// count in Redis, with --sharing=exact and with --sharing=leased.
//
// All requests have one key. With -keys they ask for one of many at random:
//
//	go -C bench run ./grpcbench -store redis -keys 10000
//
// With -holds each second request ends a holder that has begun before, of 20 000 under one key:
//
//	go -C bench run ./grpcbench -holds -store redis
//
// With -envoy h2load asks a real Envoy of two workers, which asks the servers. The report then
// shows how long the answers of Envoy took, also without the filter. With -idle the report shows
// the memory of a connection that has had one request, and with -profile where the CPU time of Weir
// goes.
//
// With -load h2load or -envoy grpcbench needs h2load of nghttp2. With -store redis or leased,
// grpcbench needs a redis-server or valkey-server, as scripts/redis.sh finds it, and with -envoy an
// Envoy, as scripts/envoy.sh finds it. All runs need Linux: CPU time comes from a clock of the
// process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/bench/program"
)

func main() { os.Exit(program.Main("grpcbench", run)) }

// options are the settings of a run.
type options struct {
	rounds, requests int
	shapes           []shape
	keys             int
	h2load           bool   // asks, in place of a client of this process
	network          string // tcp, unix or tls
	redis, envoy     bool
	leased           bool // beside redis
	holds            bool
	idle             int           // connections; 0: no measurement of them
	profile          time.Duration // 0: no profile
	servers          *regexp.Regexp
	grpcTimeout      time.Duration // of a request
	redisTimeout     time.Duration
	rules            string
	sidecar, pair    string
	gogc             string
	timeout          time.Duration
	more             []string // arguments of serve
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var store, shapes, servers, load string
	var err error
	o.more, err = program.Parse("grpcbench", args, stderr, func(flags *flag.FlagSet) {
		flags.IntVar(&o.rounds, "rounds", 5, "rounds, in each of which every server has a turn")
		flags.IntVar(&o.requests, "requests", 200_000, "requests of a turn; "+
			"a third with fewer than 48 requests at once, a sixth with fewer than 8, and a fourth through Envoy")
		flags.StringVar(&shapes, "shapes", "4x50", "connections x requests at once on each; several shapes have commas between them")
		flags.StringVar(&o.network, "network", "tcp", "tcp, unix, or tls for Weir beside plain tcp for the bare server")
		flags.StringVar(&servers, "servers", ".", "regular expression of the servers to measure beside the bare one")
		flags.IntVar(&o.keys, "keys", 1, "keys to ask for at random; more than 1 does without a key over its limit")
		flags.StringVar(&load, "load", "", "adjacent for HEADERS and DATA side by side, or h2load; empty is adjacent, but h2load with TLS and Envoy")
		flags.StringVar(&store, "store", "memory", "where counts are: memory, redis, or leased for memory, Redis and leases of Redis in turns")
		flags.BoolVar(&o.holds, "holds", false, "measure a limit without holders beside limits whose holders begin and end in turns")
		flags.BoolVar(&o.envoy, "envoy", false, "ask through Envoy")
		flags.IntVar(&o.idle, "idle", 0, "measure the memory of that many connections instead of CPU time")
		flags.DurationVar(&o.profile, "profile", 0, "profile each of Weir's servers that long instead")
		flags.DurationVar(&o.redisTimeout, "redis-timeout", time.Second, "--redis-timeout of Weir, and half of grpc-timeout: "+
			"on a busy machine 200 requests at once wait longer than is usual")
		flags.DurationVar(&o.grpcTimeout, "grpc-timeout", 20*time.Millisecond, "of a request; with Redis at least twice redis-timeout")
		flags.StringVar(&o.rules, "rules", "", "a rule file to load besides the benchmark's own")
		flags.StringVar(&o.sidecar, "sidecar", "", "a binary to measure instead of building ./cmd/sidecar")
		flags.StringVar(&o.pair, "pair", "", "a binary to measure beside; empty measures the same one again")
		flags.StringVar(&o.gogc, "gogc", "", "GOGC of Weir; empty leaves it to Weir. The bare server has Go's default")
		flags.DurationVar(&o.timeout, "timeout", time.Hour, "longest time of the run")
	})
	if err != nil {
		return o, err
	}
	if o.servers, err = regexp.Compile(servers); err != nil {
		return o, fmt.Errorf("servers: %w", err)
	}
	if o.shapes, err = parseShapes(shapes); err != nil {
		return o, err
	}
	o.leased = store == "leased"
	o.redis = store == "redis" || o.leased
	needs := o.network == "tls" || o.envoy
	o.h2load = load == "h2load" || needs
	switch {
	case !slices.Contains([]string{"", "adjacent", "h2load"}, load) || load == "adjacent" && needs:
		return o, fmt.Errorf("load %q: must be adjacent or h2load; with TLS and through Envoy h2load", load)
	case load == "h2load" && (o.keys > 1 || o.holds || o.idle > 0):
		return o, errors.New("load h2load: h2load sends one request again and again, so keys, holds and idle need load adjacent")
	case o.rounds < 1, o.requests < 1, o.keys < 1:
		return o, errors.New("rounds, requests and keys must be at least 1")
	case o.idle < 0, o.profile < 0, o.grpcTimeout < time.Millisecond:
		return o, errors.New("idle and profile must not be negative, and grpc-timeout must be at least 1ms")
	case !o.redis && store != "memory":
		return o, fmt.Errorf("store %q: must be memory, redis or leased", store)
	case !slices.Contains([]string{"tcp", "unix", "tls"}, o.network):
		return o, fmt.Errorf("network %q: must be tcp, unix or tls", o.network)
	case o.network != "tcp" && (o.redis || o.envoy || o.keys > 1 || o.idle > 0 || o.profile > 0):
		return o, fmt.Errorf("network %q: store redis, envoy, keys, idle and profile need tcp", o.network)
	case o.holds && (o.leased || o.envoy || o.network != "tcp" || o.keys > 1 || o.idle > 0 || o.profile > 0):
		return o, errors.New("holds: leases, envoy, network, keys, idle and profile have no effect with it")
	case o.envoy && (o.redis || o.keys > 1 || o.idle > 0 || o.profile > 0):
		return o, errors.New("envoy: store, keys, idle and profile have no effect with it")
	}
	if o.redis {
		o.grpcTimeout = max(o.grpcTimeout, 2*o.redisTimeout)
	}
	return o, nil
}

// shape is the requests at once: streams on each connection.
type shape struct{ connections, streams int }

func (s shape) String() string { return fmt.Sprintf("%dx%d", s.connections, s.streams) }

// share returns the requests of a turn, of the requests of one with many at once. Few at once take
// longer each.
func (s shape) share(requests int) int {
	switch n := s.connections * s.streams; {
	case n < 8:
		return max(requests/6, 1)
	case n < 48:
		return max(requests/3, 1)
	}
	return requests
}

func parseShapes(text string) (all []shape, err error) {
	for one := range strings.SplitSeq(text, ",") {
		var s shape
		_, err := fmt.Sscanf(one, "%dx%d", &s.connections, &s.streams)
		if err != nil || s.connections < 1 || s.streams < 1 || s.String() != one {
			return nil, fmt.Errorf("shapes %q: %q must be two numbers from 1 like 4x50", text, one)
		}
		all = append(all, s)
	}
	return all, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	h2load, err := exec.LookPath("h2load")
	if err != nil && o.h2load {
		return errors.New("h2load is missing: it drives the load; install the package nghttp2-client (Debian, Ubuntu) or nghttp2 (others)")
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "grpcbench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	b := &bench{o: o, dir: dir, h2load: h2load, servers: make(map[string]*server)}
	defer b.end()
	contenders, err := b.start(ctx, stderr)
	if err != nil {
		return err
	}
	switch {
	case o.idle > 0:
		return b.idle(ctx, stdout, contenders)
	case o.profile > 0:
		return b.profiles(ctx, stdout, contenders)
	}
	return b.measure(ctx, stdout, contenders)
}

// measure measures one shape after the other.
func (b *bench) measure(ctx context.Context, stdout io.Writer, contenders []contender) error {
	table := newReport(stdout, b.o)
	for _, s := range b.o.shapes {
		n := s.share(b.o.requests)
		if b.o.envoy {
			n = max(n/4, 1)
		}
		for i := range contenders { // warm up
			contenders[i].turns = nil
			if _, err := b.turn(ctx, &contenders[i], s, max(n/10, 1)); err != nil {
				return err
			}
		}
		for round := range b.o.rounds {
			for i := range contenders {
				turn, err := b.turn(ctx, &contenders[i], s, n)
				if err != nil {
					return fmt.Errorf("%v, round %d: %w", s, round+1, err)
				}
				contenders[i].turns = append(contenders[i].turns, turn)
			}
		}
		table.shape(s, n, contenders)
	}
	return table.end()
}
