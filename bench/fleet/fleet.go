package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/test/parts"
)

// Where Redis is.
type topology uint8

const (
	single   topology = iota // behind a proxy for each sidecar
	sentinel                 // a primary with two replicas
	cluster                  // three shards
)

// fleet is Redis and the sidecars that share it.
type fleet struct {
	binary  string
	args    [][]string // of each sidecar
	address []string   // of each sidecar's gRPC, which a restart keeps

	redis     *parts.Redis // of single
	sentinels *parts.Sentinels
	cluster   *parts.Cluster
	proxies   []*parts.Proxy // of single, one for each sidecar
	end       []func()       // in order of the starts

	mu       sync.Mutex // guards the rest; the number of sidecars stays
	sidecars []*parts.Sidecar
	replaced bool // a sidecar has ended, and its metrics with it
}

// setup has the parts of a fleet.
type setup struct {
	programs programs
	topology topology
	sidecars int
	rules    string
	dir      string
	args     []string // of each sidecar
	away     bool     // Redis is not reachable at the start
	redis    []string // lines of redis.conf
}

// programs are paths of binaries.
type programs struct{ sidecar, redis string }

// startFleet starts Redis and the sidecars, and waits until these use it, unless it is away. close
// must be called, also after an error.
func startFleet(ctx context.Context, s setup) (*fleet, error) {
	f := &fleet{binary: s.programs.sidecar}
	urls, err := f.startRedis(ctx, &s)
	if err != nil {
		return f, err
	}
	path := filepath.Join(s.dir, "rules.yaml")
	if err := os.WriteFile(path, []byte(s.rules), 0o600); err != nil {
		return f, err
	}
	for i := range s.sidecars {
		address, err := parts.FreeAddress()
		if err != nil {
			return f, err
		}
		f.address = append(f.address, address)
		args := []string{
			"--grpc-address=" + address, "--rules=" + path, "--http-address=127.0.0.1:0", "--admin-address=",
			"--store=redis", "--redis-url=" + urls[i%len(urls)], "--drain-timeout=100ms",
		}
		for _, arg := range s.args {
			args = append(args, strings.ReplaceAll(arg, "STATE", filepath.Join(s.dir, fmt.Sprint("state", i))))
		}
		f.args = append(f.args, args)
		started, err := parts.StartSidecar(ctx, f.binary, args...)
		if err != nil {
			return f, err
		}
		f.sidecars = append(f.sidecars, started)
		f.end = append(f.end, func() { f.sidecar(i).Kill() })
	}
	if s.away {
		return f, nil
	}
	return f, f.awaitRedis(ctx)
}

// startRedis starts Redis, and returns the URL of each sidecar, or one URL for all.
func (f *fleet) startRedis(ctx context.Context, s *setup) (urls []string, err error) {
	options := parts.RedisOptions{Config: s.redis}
	switch s.topology {
	case sentinel:
		if f.sentinels, err = parts.StartSentinels(ctx, s.programs.redis, s.dir, parts.SentinelOptions{Data: options}); err != nil {
			return nil, err
		}
		f.end = append(f.end, f.sentinels.Kill)
		return []string{"redis-sentinel://" + strings.Join(f.sentinels.Addresses(), ",") + "/" + parts.SentinelName}, nil
	case cluster:
		if f.cluster, err = parts.StartCluster(ctx, s.programs.redis, s.dir, options); err != nil {
			return nil, err
		}
		f.end = append(f.end, f.cluster.Kill)
		return []string{"redis-cluster://" + strings.Join(f.cluster.Addresses(), ",")}, f.cluster.DisableFailover(ctx)
	case single:
	}
	if f.redis, err = parts.StartRedis(ctx, s.programs.redis, s.dir, options); err != nil {
		return nil, err
	}
	f.end = append(f.end, func() { f.redis.Kill() })
	for range s.sidecars {
		p, err := parts.StartProxy(f.redis.Address())
		if err != nil {
			return nil, err
		}
		if s.away {
			p.Down()
		}
		f.proxies, f.end = append(f.proxies, p), append(f.end, p.Close)
		urls = append(urls, "redis://"+p.Address())
	}
	return urls, nil
}

// close ends all that was started.
func (f *fleet) close() {
	for _, end := range slices.Backward(f.end) {
		end()
	}
}

// sidecar returns the sidecar with that number.
func (f *fleet) sidecar(i int) *parts.Sidecar {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sidecars[i]
}

// restart ends a sidecar, by SIGKILL or in order, and starts another at its address.
func (f *fleet) restart(ctx context.Context, i int, kill bool) error {
	old := f.sidecar(i)
	if kill {
		old.Kill()
	} else if err := old.Stop(ctx); err != nil {
		return err
	}
	s, err := parts.StartSidecar(ctx, f.binary, f.args[i]...)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sidecars[i], f.replaced = s, true
	return nil
}

// awaitRedis waits until every sidecar asks Redis, and they agree on the size of their fleet.
func (f *fleet) awaitRedis(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := f.metrics(ctx, "weir_store_up"); err != nil { // with the last lines of a sidecar that has ended
		return err
	}
	for i := range f.address {
		if err := drive.AwaitRedis(ctx, f.sidecar(i).HTTP); err != nil {
			return err
		}
	}
	for {
		sizes, err := f.metrics(ctx, "weir_store_fleet_size")
		if err != nil {
			return err
		}
		agreed := true
		for _, n := range sizes {
			agreed = agreed && int(n) == len(f.address)
		}
		if agreed {
			return nil
		}
		if !drive.Pause(ctx, 50*time.Millisecond) {
			return fmt.Errorf("the sidecars count %v in the fleet: %w", sizes, ctx.Err())
		}
	}
}

// left asks the first sidecar, which asks Redis, how many hits of a key are left.
func (f *fleet) left(ctx context.Context, name string) (int, error) {
	conn, err := grpc.NewClient(f.sidecar(0).GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	answer, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{
		Domain: domain,
		Descriptors: []*commonv3.RateLimitDescriptor{{
			Entries:    []*commonv3.RateLimitDescriptor_Entry{{Key: name, Value: "x"}},
			HitsAddend: wrapperspb.UInt64(0), // a question without a hit
		}},
	})
	if err != nil {
		return 0, err
	}
	return int(answer.GetStatuses()[0].GetLimitRemaining()), nil
}

// metrics returns a metric of each sidecar.
func (f *fleet) metrics(ctx context.Context, name string) ([]float64, error) {
	var all []float64
	for i := range f.address {
		m, err := drive.ReadMetrics(ctx, f.sidecar(i).HTTP)
		if err != nil {
			return nil, fmt.Errorf("sidecar %d: %w; its last lines:\n%s", i, err, f.sidecar(i).Tail(80))
		}
		all = append(all, m.Sum(name))
	}
	return all, nil
}

// proxied does something to the proxy of each sidecar.
func (f *fleet) proxied(do func(*parts.Proxy)) {
	for _, p := range f.proxies {
		do(p)
	}
}

// up lets all proxies listen again.
func (f *fleet) up() error {
	var errs []error
	f.proxied(func(p *parts.Proxy) { errs = append(errs, p.Up()) })
	return errors.Join(errs...)
}

// hang stops a sidecar for a while.
func (f *fleet) hang(ctx context.Context, i int, d time.Duration) error {
	s := f.sidecar(i)
	err := s.Signal(syscall.SIGSTOP)
	drive.Pause(ctx, d)
	return errors.Join(err, s.Signal(syscall.SIGCONT))
}
