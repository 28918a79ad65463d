package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/test/parts"
)

// fleet is Redis and the sidecars that share it.
type fleet struct {
	binary  string
	args    []string // of each sidecar, without addresses
	address []string // of each sidecar's gRPC, which a restart keeps
	redis   *parts.Redis
	proxy   *parts.Proxy // between the sidecars and Redis; nil: none
	kill    func()       // ends Redis; nil before Redis starts

	mu       sync.Mutex // guards sidecars; their number stays
	sidecars []*parts.Sidecar
}

// startFleet starts Redis and the sidecars, and waits until all of these use it. The fleet must be
// ended, also after an error.
func startFleet(ctx context.Context, o options, topology, binary, dir, rules string) (*fleet, error) {
	f := &fleet{binary: o.sidecar}
	url, err := f.startRedis(ctx, topology, binary, dir, o.away > 0 && !o.hung)
	if err != nil {
		return f, err
	}
	path := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(path, []byte(rules), 0o600); err != nil {
		return f, err
	}
	f.args = []string{
		"--rules=" + path, "--http-address=127.0.0.1:0", "--admin-address=", "--store=redis", "--redis-url=" + url,
	}
	if !o.defaults {
		// The load keeps this machine busy. With the usual timeout, requests would fail for want of a
		// processor.
		f.args = append(f.args, "--redis-timeout=1s", "--on-store-error=deny")
	}
	f.args = append(f.args, o.more...)
	for range o.sidecars {
		address, err := parts.FreeAddress()
		if err != nil {
			return f, err
		}
		s, err := f.start(ctx, address)
		if err != nil {
			return f, err
		}
		f.address, f.sidecars = append(f.address, address), append(f.sidecars, s)
	}
	return f, f.awaitRedis(ctx)
}

// start starts a sidecar, with further arguments.
func (f *fleet) start(ctx context.Context, address string, more ...string) (*parts.Sidecar, error) {
	return parts.StartSidecar(ctx, f.binary, append(append([]string{"--grpc-address=" + address}, f.args...), more...)...)
}

// sidecar returns the sidecar with that number.
func (f *fleet) sidecar(i int) *parts.Sidecar {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sidecars[i]
}

// restart kills a sidecar and starts another at its address.
func (f *fleet) restart(ctx context.Context, i int) error {
	f.sidecar(i).Kill()
	s, err := f.start(ctx, f.address[i])
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sidecars[i] = s
	return nil
}

// startRedis starts Redis and returns its URL, or the URL of a proxy before a single Redis.
func (f *fleet) startRedis(ctx context.Context, topology, binary, dir string, proxy bool) (string, error) {
	switch topology {
	case sentinel:
		s, err := parts.StartSentinels(ctx, binary, dir, parts.SentinelOptions{})
		if err != nil {
			return "", err
		}
		f.kill = s.Kill
		return "redis-sentinel://" + strings.Join(s.Addresses(), ",") + "/" + parts.SentinelName, nil
	case cluster:
		c, err := parts.StartCluster(ctx, binary, dir, parts.RedisOptions{})
		if err != nil {
			return "", err
		}
		f.kill = c.Kill
		return "redis-cluster://" + strings.Join(c.Addresses(), ","), nil
	}
	var err error
	if f.redis, err = parts.StartRedis(ctx, binary, dir, parts.RedisOptions{}); err != nil {
		return "", err
	}
	f.kill = f.redis.Kill
	if !proxy {
		return "redis://" + f.redis.Address(), nil
	}
	if f.proxy, err = parts.StartProxy(f.redis.Address()); err != nil {
		return "", err
	}
	return "redis://" + f.proxy.Address(), nil
}

// end ends all that was started.
func (f *fleet) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sidecars {
		s.Kill()
	}
	if f.proxy != nil {
		f.proxy.Close()
	}
	if f.kill != nil {
		f.kill()
	}
}

// timeout is how long sidecars have to find Redis.
const timeout = 30 * time.Second

// awaitRedis waits until every sidecar asks Redis.
func (f *fleet) awaitRedis(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for i := range f.address {
		if err := drive.AwaitRedis(ctx, f.sidecar(i).HTTP); err != nil {
			return err
		}
	}
	return nil
}

// figures are metrics of all sidecars together. A sidecar that was killed takes its part away.
type figures struct {
	without float64 // charges decided without Redis
	memory  float64 // requests denied from memory
	leased  float64 // charges decided from a lease
	carried float64 // hits carried back to Redis
}

func (f *fleet) figures(ctx context.Context) (figures, error) {
	var all figures
	for i := range f.address {
		m, err := drive.ReadMetrics(ctx, f.sidecar(i).HTTP)
		if err != nil {
			return all, err
		}
		all.without += m.Sum("weir_store_fallback_decisions_total")
		all.memory += m.Sum("weir_store_denied_locally_total")
		all.leased += m.Sum("weir_store_leased_decisions_total")
		all.carried += m.Sum("weir_store_carried_hits_total")
	}
	return all, nil
}
