package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/test/parts"
)

// fleet is Redis and the sidecars that share it.
type fleet struct {
	sidecars []*parts.Sidecar
	kill     func() // ends Redis; nil before Redis starts
}

// startFleet starts Redis and the sidecars, and waits until all of these use it. The fleet must be ended, also after an error.
func startFleet(ctx context.Context, o options, topology, binary, dir, rules string) (*fleet, error) {
	f := &fleet{}
	url, err := f.startRedis(ctx, topology, binary, dir)
	if err != nil {
		return f, err
	}
	path := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(path, []byte(rules), 0o600); err != nil {
		return f, err
	}
	// The load keeps this machine busy. With the usual timeout, requests would fail for want of a processor, and this program does
	// not measure such failures.
	args := append([]string{
		"--rules=" + path, "--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=",
		"--store=redis", "--redis-url=" + url, "--redis-timeout=1s", "--on-store-error=deny", "--redis-deny-cache=" + o.denyCache.String(),
	}, o.more...)
	for range o.sidecars {
		s, err := parts.StartSidecar(ctx, o.sidecar, args...)
		if err != nil {
			return f, err
		}
		f.sidecars = append(f.sidecars, s)
	}
	return f, f.awaitRedis(ctx)
}

// startRedis starts Redis and returns its URL.
func (f *fleet) startRedis(ctx context.Context, topology, binary, dir string) (string, error) {
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
	default:
		r, err := parts.StartRedis(ctx, binary, dir, parts.RedisOptions{})
		if err != nil {
			return "", err
		}
		f.kill = r.Kill
		return "redis://" + r.Address(), nil
	}
}

// end ends all that was started.
func (f *fleet) end() {
	for _, s := range f.sidecars {
		s.Kill()
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
	for _, s := range f.sidecars {
		if err := drive.AwaitRedis(ctx, s.HTTP); err != nil {
			return err
		}
	}
	return nil
}

// figures are metrics of all sidecars together.
type figures struct {
	without float64 // charges decided without Redis
	memory  float64 // requests denied from memory
}

func (f *fleet) figures(ctx context.Context) (figures, error) {
	var all figures
	for _, s := range f.sidecars {
		m, err := drive.ReadMetrics(ctx, s.HTTP)
		if err != nil {
			return all, err
		}
		all.without += m.Sum("weir_store_fallback_decisions_total")
		all.memory += m.Sum("weir_store_denied_locally_total")
	}
	return all, nil
}
