package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/test/parts"
)

// sidecars is the number of sidecars of a fleet.
const sidecars = 4

// redisTimeout is how long a sidecar waits for Redis. Only a longer wait is an outage.
const redisTimeout = 500 * time.Millisecond

// kind is a kind of fault.
type kind struct {
	name     string
	sentinel bool // three nodes behind Sentinels; else one Redis behind a proxy for each sidecar
	sidecar  int  // with the fault; -1: all
	// happen makes the fault, and ends it after a while. Until back the fault lasts for certain.
	happen func(ctx context.Context, f *fleet) (back time.Time, err error)
}

// kinds returns all kinds of faults.
func kinds() []kind {
	return []kind{
		{name: "steady", sidecar: -1},
		{name: "kill", sidecar: -1, happen: func(ctx context.Context, f *fleet) (time.Time, error) {
			f.redis.Kill()
			drive.Pause(ctx, lasting)
			return time.Now(), f.redis.Restart(ctx)
		}},
		{name: "pause", sidecar: -1, happen: func(ctx context.Context, f *fleet) (time.Time, error) {
			err := f.redis.Pause(ctx)
			drive.Pause(ctx, lasting)
			return time.Now(), errors.Join(err, f.redis.Continue())
		}},
		{name: "failover", sentinel: true, sidecar: -1, happen: failover},
		{name: "partition", happen: func(ctx context.Context, f *fleet) (time.Time, error) {
			f.proxies[0].HalfOpen()
			drive.Pause(ctx, lasting)
			defer f.proxies[0].Clear()
			return time.Now(), nil
		}},
		{name: "kill-sidecar", happen: func(ctx context.Context, f *fleet) (time.Time, error) { return time.Now(), f.restart(ctx, 0) }},
	}
}

// failover kills the primary. The fault is over when another one serves. In a second fault the old
// one comes back, and becomes a replica. That begins at once, or when all sidecars have found the
// new one.
func failover(ctx context.Context, f *fleet) (back time.Time, err error) {
	old, err := f.planned(ctx)
	if err != nil {
		return back, err
	}
	f.failovers++
	wait := settles * time.Duration(f.failovers%2)
	f.after = func(ctx context.Context) (from time.Time, err error) {
		drive.Pause(ctx, wait)
		return time.Now(), errors.Join(old.Restart(ctx), awaitReplica(ctx, old)) // as an empty primary
	}
	marked, err := mark(ctx, old)
	if err != nil {
		return back, err
	}
	old.Kill()
	back = time.Now()
	<-marked
	if f.primary, err = f.sentinels.AwaitNewPrimary(ctx, old); err != nil {
		return back, err
	}
	f.kept, err = kept(ctx, f.primary)
	return back, err
}

// marker is a key of Redis that has the instant before the last write to it.
const marker = "histories:marker"

// mark writes the marker again and again, until an error. Then marked is closed.
func mark(ctx context.Context, primary *parts.Redis) (marked chan struct{}, err error) {
	write := func() error {
		_, err := primary.Do(ctx, "SET", marker, strconv.FormatInt(time.Now().UnixNano(), 10))
		return err
	}
	if err := write(); err != nil {
		return nil, err
	}
	marked = make(chan struct{})
	go func() {
		defer close(marked)
		for write() == nil {
		}
	}()
	drive.Pause(ctx, 50*time.Millisecond)
	return marked, nil
}

// kept returns the instant of the marker at a primary that has taken over. Replicas write in the
// order of their primary, so this one has each write that was answered before.
func kept(ctx context.Context, primary *parts.Redis) (int64, error) {
	message, err := primary.Do(ctx, "GET", marker)
	if err != nil {
		return 0, err
	}
	text, err := message.ToString()
	if err != nil {
		return 0, fmt.Errorf("the new primary has no marker: %w", err)
	}
	return strconv.ParseInt(text, 10, 64)
}

// mostSilence is the longest silence of a primary. On a busy machine Sentinels with less replace a
// primary that nobody has killed.
const mostSilence = 2 * time.Second

// watch makes the Sentinels patient, and notes the primary.
func (f *fleet) watch(ctx context.Context) (err error) {
	for _, s := range f.sentinels.Sentinels {
		ms := strconv.FormatInt(mostSilence.Milliseconds(), 10)
		if _, err := s.Do(ctx, "SENTINEL", "SET", parts.SentinelName, "down-after-milliseconds", ms); err != nil {
			return err
		}
	}
	f.primary, err = f.sentinels.Primary(ctx)
	return err
}

// planned returns the primary. A failover that no fault has made is an error: hits of an unknown
// time are lost.
func (f *fleet) planned(ctx context.Context) (*parts.Redis, error) {
	now, err := f.sentinels.Primary(ctx)
	if err == nil && now != f.primary {
		err = errors.New("the Sentinels have replaced a primary that was not killed: the machine is too busy")
	}
	return now, err
}

// awaitReplica waits until a node has its primary's data.
func awaitReplica(ctx context.Context, node *parts.Redis) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		state, err := node.Info(ctx, "replication")
		if err == nil && state["role"] == "slave" && state["master_link_status"] == "up" {
			return nil
		}
		if !drive.Pause(ctx, 20*time.Millisecond) {
			return fmt.Errorf("redis %s is %q and not a replica: %w", node.Address(), state["role"], errors.Join(err, ctx.Err()))
		}
	}
}

// fleet is Redis and sidecars.
type fleet struct {
	binary    string
	args      [][]string
	addresses []string
	redis     *parts.Redis
	sentinels *parts.Sentinels
	primary   *parts.Redis // with Sentinels: since the last fault
	kept      int64        // the same: see fault
	failovers int
	proxies   []*parts.Proxy
	end       []func()
	after     func(ctx context.Context) (from time.Time, err error) // another fault, after a fault

	mu       sync.Mutex // guards sidecars
	sidecars []*parts.Sidecar
}

// rules returns the rule file of a scene.
func (s *scene) rules() string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", domain)
	for c := range classes {
		l := s.limit(c)
		fmt.Fprintf(&b, "  - key: %s\n    rate_limit: {algorithm: %v, requests_per_unit: %d", c, l.Algorithm, l.Requests)
		if c.counts() {
			b.WriteString(", unit: year, count_rejected: false, on_store_error: deny")
		} else {
			b.WriteString(", unit: second, on_store_error: local")
		}
		if l.Burst > 0 {
			fmt.Fprintf(&b, ", burst: %d", l.Burst)
		}
		if c.leased() {
			b.WriteString(", sharing: leased")
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// start starts a fleet in a folder. close must be called, also after an error.
func (k *kind) start(ctx context.Context, p *programs, s *scene, dir string) (f *fleet, err error) {
	f = &fleet{binary: p.sidecar}
	options := parts.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}} // a kill loses nothing
	var urls []string
	if k.sentinel {
		if f.sentinels, err = parts.StartSentinels(ctx, p.redis, dir, parts.SentinelOptions{}); err != nil {
			return f, err
		}
		f.end = append(f.end, f.sentinels.Kill)
		if err := f.watch(ctx); err != nil {
			return f, err
		}
		urls = slices.Repeat([]string{"redis-sentinel://" + strings.Join(f.sentinels.Addresses(), ",") + "/" + parts.SentinelName}, sidecars)
	} else {
		if f.redis, err = parts.StartRedis(ctx, p.redis, dir, options); err != nil {
			return f, err
		}
		f.end = append(f.end, func() { f.redis.Kill() })
		for range sidecars {
			proxy, err := parts.StartProxy(f.redis.Address())
			if err != nil {
				return f, err
			}
			f.proxies, f.end = append(f.proxies, proxy), append(f.end, proxy.Close)
			urls = append(urls, "redis://"+proxy.Address())
		}
	}
	path := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(path, []byte(s.rules()), 0o600); err != nil {
		return f, err
	}
	for i := range sidecars {
		address, err := parts.FreeAddress()
		if err != nil {
			return f, err
		}
		f.addresses = append(f.addresses, address)
		f.args = append(f.args, append([]string{
			"--grpc-address=" + address, "--rules=" + path, "--http-address=127.0.0.1:0", "--admin-address=",
			"--store=redis", "--redis-url=" + urls[i], "--redis-timeout=" + redisTimeout.String(), "--drain-timeout=100ms",
		}, p.more...))
		started, err := parts.StartSidecar(ctx, f.binary, f.args[i]...)
		if err != nil {
			return f, err
		}
		f.sidecars, f.end = append(f.sidecars, started), append(f.end, func() { f.sidecar(i).Kill() })
	}
	return f, f.awaitRedis(ctx)
}

func (f *fleet) sidecar(i int) *parts.Sidecar {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sidecars[i]
}

// restart kills a sidecar and starts another at its address.
func (f *fleet) restart(ctx context.Context, i int) error {
	f.sidecar(i).Kill()
	s, err := parts.StartSidecar(ctx, f.binary, f.args[i]...)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.sidecars[i] = s
	f.mu.Unlock()
	return drive.AwaitRedis(ctx, s.HTTP)
}

// awaitRedis waits until the sidecars ask Redis, and agree on the size of their fleet.
func (f *fleet) awaitRedis(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for i := range sidecars {
		if err := drive.AwaitRedis(ctx, f.sidecar(i).HTTP); err != nil {
			return err
		}
	}
	for agreed := 0; agreed < sidecars; {
		agreed = 0
		for i := range sidecars {
			m, err := drive.ReadMetrics(ctx, f.sidecar(i).HTTP)
			if err != nil {
				return err
			}
			if m.Sum("weir_store_fleet_size") == sidecars {
				agreed++
			}
		}
		if agreed < sidecars && !drive.Pause(ctx, 20*time.Millisecond) {
			return fmt.Errorf("%d of %d sidecars know the size of their fleet: %w", agreed, sidecars, ctx.Err())
		}
	}
	return nil
}

// close ends all that was started.
func (f *fleet) close() {
	for _, end := range slices.Backward(f.end) {
		end()
	}
}
