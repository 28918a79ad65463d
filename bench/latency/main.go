// Latency measures how long a decision takes at a steady rate of requests. Servers answer in turns:
// a bare grpc-go server, and a server that walks frames alone (bench/floor). Then come a sidecar
// that counts in memory with each --grpc-server, and one that counts in Redis. The first two show
// the share of the client and the machine. The last is measured while Redis works, while Redis is
// stopped (SIGSTOP) with open connections, and afterwards. Requests come at random instants
// (Poisson) whether those before have been answered or not, for keys at random.
//
//	go -C bench run ./latency -rate 5000 -duration 10s
//
// With -store memory the servers that count in memory have several rounds, and nothing needs Redis.
// Each value is then the median of the rounds. Rate 0 is half of the most requests per second that
// the sidecar of --grpc-server=grpc answers, 200 at once:
//
//	go -C bench run ./latency -store memory -rate 0 -rounds 5
//
// With -watch the sidecar of --grpc-server=lane has another turn in each round, while a `sidecar
// watch` shows so many requests per second:
//
//	go -C bench run ./latency -store memory -rate 10000 -rounds 7 -watch 10000
//
// With -store leased three sidecars have the rounds. One counts in memory, one asks Redis for each
// request, and one has leases of Redis (--sharing=leased). The last row is the sidecar with leases
// while Redis is stopped for 200 ms at a time:
//
//	go -C bench run ./latency -store leased -keys 1 -rate 0 -rounds 5
//
// With -distance a proxy in this process delays each answer of Redis by that time:
//
//	go -C bench run ./latency -distance 6ms -rate 1500
//
// Client, sidecar and Redis share the cores of the machine. Times are from the planned instant of a
// request to its answer; how late the client sent is shown apart too. Requests that are due at the
// same time share a write for each connection, as in Envoy. Latency needs redis-server or
// valkey-server, as scripts/redis.sh finds it. Latency exits 1 when a request failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/test/parts"
)

func main() { os.Exit(program.Main("latency", run)) }

// options are the settings of a run.
type options struct {
	rate        int // 0: half of a sidecar's peak
	duration    time.Duration
	rounds      int
	redis       bool
	leased      bool // beside redis
	stops       int
	watch       int // requests per second that are shown; 0: nobody watches
	connections int
	keys        int
	timeout     time.Duration // of Redis
	distance    time.Duration // of a round trip to Redis; 0: no proxy
	sidecar     string
	more        []string // arguments of serve
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var store string
	var err error
	o.more, err = program.Parse("latency", args, stderr, func(flags *flag.FlagSet) {
		flags.IntVar(&o.rate, "rate", 5000, "requests per second; 0 is half of the most that a sidecar of --grpc-server=grpc answers")
		flags.StringVar(&store, "store", "redis", "redis; memory leaves Redis out; leased compares memory, Redis, and leases of Redis")
		flags.IntVar(&o.rounds, "rounds", 1, "rounds, in each of which every server that counts in memory has a turn")
		flags.DurationVar(&o.duration, "duration", 10*time.Second, "time that each server is asked")
		flags.IntVar(&o.watch, "watch", 0,
			"with -store memory: requests per second that a watcher is shown in turns of their own; 0 has no such turns")
		flags.IntVar(&o.stops, "stops", 5, "times that Redis is stopped, for that part of the duration")
		flags.IntVar(&o.connections, "connections", 4, "connections of the client")
		flags.IntVar(&o.keys, "keys", 10_000, "keys to ask for at random")
		flags.DurationVar(&o.timeout, "redis-timeout", 10*time.Millisecond, "--redis-timeout of the sidecar")
		flags.DurationVar(&o.distance, "distance", 0, "delay of each answer of Redis; 0: none")
		flags.StringVar(&o.sidecar, "sidecar", "", "a binary to measure instead of building ./cmd/sidecar")
	})
	if err != nil {
		return o, err
	}
	o.leased = store == "leased"
	if o.redis = store == "redis" || o.leased; !o.redis && store != "memory" {
		return o, fmt.Errorf("store %q: must be memory, redis or leased", store)
	}
	if o.rounds < 1 || o.stops < 1 || o.connections < 1 || o.keys < 1 || o.duration < time.Duration(o.stops)*100*time.Millisecond {
		return o, errors.New("rounds, stops, connections and keys must be at least 1, the duration 100ms for each stop")
	}
	if o.rate < 0 || o.distance < 0 {
		return o, errors.New("rate and distance must not be negative")
	}
	if o.watch < 0 || o.watch > 0 && o.redis {
		return o, errors.New("watch must not be negative, and needs -store memory")
	}
	return o, nil
}

// rules never deny.
const rules = `domain: latency
descriptors:
  - key: client_id
    rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 4294967295}
`

// bench is the programs of a run.
type bench struct {
	o        options
	dir      string
	requests [][]byte
	bare     *program.Bare
	floor    *program.Bare
	grpc     *parts.Sidecar // in memory
	lane     *parts.Sidecar // the same
	shared   *parts.Sidecar // nil: no Redis takes part
	exact    *parts.Sidecar // nil: no leases take part, else shared has these
	redis    *parts.Redis
	proxy    *parts.Proxy // before Redis; nil: none
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "latency")
	if err != nil {
		return err
	}
	b := &bench{o: o, dir: dir}
	defer func() {
		b.end()
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if err := b.start(ctx); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d requests per second on %d connections for %d keys, %v each; ", b.o.rate, o.connections, o.keys, o.duration)
	fmt.Fprintf(stdout, "--redis-timeout %v; times in milliseconds, CPU per request in microseconds\n\n", o.timeout)
	rows, err := b.measure(ctx)
	report(stdout, rows)
	return err
}

// start builds and starts all programs. The caller must end the servers, also after an error.
func (b *bench) start(ctx context.Context) error {
	for i := range b.o.keys {
		r, err := drive.Request("latency", []drive.Entry{{Key: "client_id", Value: fmt.Sprintf("c-%d", i)}})
		if err != nil {
			return err
		}
		b.requests = append(b.requests, r)
	}
	var err error
	if b.o.sidecar, err = program.Sidecar(ctx, b.o.sidecar); err != nil {
		return err
	}
	if b.bare, err = program.StartBare(ctx); err != nil {
		return err
	}
	if b.floor, err = program.StartFloor(ctx); err != nil {
		return err
	}
	path := filepath.Join(b.dir, "rules", "latency.yaml")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(rules), 0o600); err != nil {
		return err
	}
	args := []string{"--rules=" + path, "--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address="}
	for _, one := range []struct {
		name string
		to   **parts.Sidecar
	}{{"grpc", &b.grpc}, {"lane", &b.lane}} {
		if one.to == &b.lane && b.o.watch > 0 {
			args = append(args, "--admin-address=127.0.0.1:0")
		}
		if *one.to, err = parts.StartSidecar(ctx, b.o.sidecar, append(args, "--grpc-server="+one.name)...); err != nil {
			return err
		}
	}
	if b.o.rate == 0 {
		if b.o.rate, err = b.peak(ctx, b.grpc.GRPC); err != nil {
			return err
		}
		b.o.rate = max(b.o.rate/2, 1)
	}
	if !b.o.redis {
		return nil
	}
	return b.startShared(ctx, args)
}

// startShared starts Redis, and the sidecars that count there.
func (b *bench) startShared(ctx context.Context, args []string) error {
	binary, err := program.Redis(ctx)
	if err != nil {
		return err
	}
	if b.redis, err = parts.StartRedis(ctx, binary, b.dir, parts.RedisOptions{}); err != nil {
		return err
	}
	address := b.redis.Address()
	if b.o.distance > 0 {
		if b.proxy, err = parts.StartProxy(address); err != nil {
			return err
		}
		b.proxy.Latency(b.o.distance, 0)
		address = b.proxy.Address()
	}
	args = append(args, "--store=redis", "--redis-url=redis://"+address, "--redis-timeout="+b.o.timeout.String())
	args = append(args, b.o.more...)
	if b.o.leased {
		if b.exact, err = parts.StartSidecar(ctx, b.o.sidecar, append(slices.Clone(args), "--sharing=exact")...); err != nil {
			return err
		}
		args = append(args, "--sharing=leased")
	}
	if b.shared, err = parts.StartSidecar(ctx, b.o.sidecar, args...); err != nil {
		return err
	}
	return b.awaitRedis(ctx)
}

// awaitRedis waits until the sidecar asks Redis.
func (b *bench) awaitRedis(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if b.exact != nil {
		if err := drive.AwaitRedis(ctx, b.exact.HTTP); err != nil {
			return err
		}
	}
	return drive.AwaitRedis(ctx, b.shared.HTTP)
}

// end ends all that was started.
func (b *bench) end() {
	for _, s := range []*parts.Sidecar{b.grpc, b.lane, b.shared, b.exact} {
		if s != nil {
			s.Kill()
		}
	}
	for _, p := range []*program.Bare{b.bare, b.floor} {
		if p != nil {
			p.Kill()
		}
	}
	if b.proxy != nil {
		b.proxy.Close()
	}
	if b.redis != nil {
		b.redis.Kill()
	}
}
