package main

import (
	"context"
	"errors"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/test/parts"
)

// scenario is a fleet, a load, and a fault.
type scenario struct {
	name     string
	what     string // for the report
	topology topology
	times    float64  // load of keys that are over their limits; 0: 1
	load     load     // which sidecar gets a request
	known    bool     // the fault comes when sidecars know the load of the others, after eight beats
	several  bool     // requests charge keys in several slots
	away     bool     // Redis is not reachable at the start
	holds    int      // slots: the load is requests in flight; 0: it is hits
	args     []string // of each sidecar; STATE is a directory of its own
	redis    []string // lines of redis.conf

	// fault makes the fault, and ends it after a while. nil: nothing happens.
	fault func(ctx context.Context, f *fleet, lasts time.Duration) error
	// outage says that Redis is away for all sidecars.
	outage bool
	// always says that the fault is there from the start to the end: there is no recovery.
	always bool
}

// durable are lines of redis.conf with which a Redis that is killed loses nothing.
func durable() []string { return []string{"appendonly yes", "appendfsync always"} }

// scenarios returns all scenarios in the order of the report.
func scenarios() []scenario {
	sized := []string{"--fleet-size=4"}
	return []scenario{
		{name: "steady", what: "nothing happens"},
		{name: "steady-cluster", what: "nothing happens; requests charge limits in two slots of a cluster", topology: cluster, several: true},
		{name: "steady-sentinel", what: "nothing happens; a primary behind Sentinels", topology: sentinel},
		{name: "saturated", what: "five times as many requests as the limits admit", times: 3},
		{name: "moving", what: "one sidecar at a time gets all requests, for 250 ms", load: moving},
		{name: "stopped", what: "connections to Redis are reset and refused", outage: true, fault: unreachable},
		{name: "killed", what: "Redis is killed, and is back with its counts", redis: durable(), outage: true, fault: killed},
		{name: "paused", what: "Redis answers nothing (SIGSTOP)", outage: true, fault: paused},
		{name: "start", what: "the sidecars start while Redis is away", away: true, fault: unreachable},
		{name: "start-sized", what: "the sidecars start while Redis is away, with --fleet-size=4", away: true, fault: unreachable, args: sized},
		{name: "rolling", what: "all sidecars are restarted in turn while Redis is away", fault: rolling},
		{name: "rolling-sized", what: "all sidecars are restarted in turn while Redis is away, with --fleet-size=4", fault: rolling, args: sized},
		{name: "rolling-kept", what: "all sidecars are restarted in turn while Redis is away, with --state-dir", fault: rolling, args: []string{"--state-dir=STATE"}},
		{name: "shard", what: "a cluster of which one of three shards answers nothing", topology: cluster, several: true, fault: shardPaused},
		{name: "late", what: "each answer of Redis takes 12 ms", always: true, fault: late(12*time.Millisecond, 0)},
		{name: "jitter", what: "answers of Redis take 0 to 25 ms", always: true, fault: late(12500*time.Microsecond, 12500*time.Microsecond)},
		{
			name: "dropped", what: "replies of Redis are dropped for 100 ms of each second", always: true,
			fault: pulsed((*parts.Proxy).Mute, 100*time.Millisecond),
		},
		{
			name: "cut", what: "all connections to Redis are reset before the reply, each second", always: true,
			fault: pulsed((*parts.Proxy).Reset, 20*time.Millisecond),
		},
		{name: "full-memory", what: "Redis has no memory for 300 ms of each second", always: true, fault: configured("maxmemory", "1", "0")},
		{name: "read-only", what: "Redis refuses to write for 300 ms of each second", always: true, fault: configured("min-replicas-to-write", "1", "0")},
		{name: "sidecar-pause", what: "a sidecar stands still for 300 ms of each second", always: true, fault: sidecarPause},
		{name: "sidecar-kill", what: "a sidecar is killed each second", always: true, fault: sidecarKill},
		{name: "empty", what: "Redis is killed, and is back without its counts", fault: killed},
		{name: "failover", what: "a Sentinel failover", topology: sentinel, fault: failover},
		{name: "skewed", what: "an outage while one sidecar has 90 % of the load", load: skewed, known: true, fault: unreachable},
		{name: "cut-off", what: "one of four sidecars cannot reach Redis", fault: cutOff},
		{name: "holds", what: "20 slots in an outage", holds: 20, fault: unreachable},
		{name: "holds-few", what: "2 slots for 4 sidecars in an outage", holds: 2, fault: unreachable},
		{name: "holds-failover", what: "2 slots in a Sentinel failover", topology: sentinel, holds: 2, fault: failover},
	}
}

// each lets something happen again and again.
func each(ctx context.Context, every, lasts time.Duration, do func(ctx context.Context, n int) error) error {
	until := time.Now().Add(lasts)
	for n := 0; time.Now().Before(until) && ctx.Err() == nil; n++ {
		next := time.Now().Add(every)
		if err := do(ctx, n); err != nil {
			return err
		}
		drive.Pause(ctx, time.Until(next))
	}
	return nil
}

func unreachable(ctx context.Context, f *fleet, lasts time.Duration) error {
	f.proxied((*parts.Proxy).Down)
	drive.Pause(ctx, lasts)
	return f.up()
}

func killed(ctx context.Context, f *fleet, lasts time.Duration) error {
	f.redis.Kill()
	drive.Pause(ctx, lasts)
	return f.redis.Restart(ctx)
}

func paused(ctx context.Context, f *fleet, lasts time.Duration) error {
	err := f.redis.Pause(ctx)
	drive.Pause(ctx, lasts)
	return errors.Join(err, f.redis.Continue())
}

func rolling(ctx context.Context, f *fleet, lasts time.Duration) error {
	f.proxied((*parts.Proxy).Down)
	err := each(ctx, lasts/time.Duration(len(f.address)), lasts, func(ctx context.Context, n int) error {
		return f.restart(ctx, n%len(f.address), false)
	})
	return errors.Join(err, f.up())
}

func shardPaused(ctx context.Context, f *fleet, lasts time.Duration) error {
	node := f.cluster.Nodes[0]
	err := node.Pause(ctx)
	drive.Pause(ctx, lasts)
	return errors.Join(err, node.Continue())
}

func late(d, jitter time.Duration) func(context.Context, *fleet, time.Duration) error {
	return func(ctx context.Context, f *fleet, lasts time.Duration) error {
		f.proxied(func(p *parts.Proxy) { p.Latency(d, jitter) })
		drive.Pause(ctx, lasts)
		return nil
	}
}

// pulsed makes a fault of all proxies for a while of each second.
func pulsed(fault func(*parts.Proxy), d time.Duration) func(context.Context, *fleet, time.Duration) error {
	return func(ctx context.Context, f *fleet, lasts time.Duration) error {
		return each(ctx, time.Second, lasts, func(ctx context.Context, _ int) error {
			f.proxied(fault)
			drive.Pause(ctx, d)
			f.proxied((*parts.Proxy).Clear)
			return nil
		})
	}
}

// configured gives a setting of Redis a bad value again and again.
func configured(setting, bad, good string) func(context.Context, *fleet, time.Duration) error {
	return func(ctx context.Context, f *fleet, lasts time.Duration) error {
		return each(ctx, time.Second, lasts, func(ctx context.Context, _ int) error {
			_, err := f.redis.Do(ctx, "CONFIG", "SET", setting, bad)
			drive.Pause(ctx, 300*time.Millisecond)
			_, undone := f.redis.Do(context.WithoutCancel(ctx), "CONFIG", "SET", setting, good)
			return errors.Join(err, undone)
		})
	}
}

func sidecarPause(ctx context.Context, f *fleet, lasts time.Duration) error {
	return each(ctx, time.Second, lasts, func(ctx context.Context, n int) error {
		return f.hang(ctx, n%len(f.address), 300*time.Millisecond)
	})
}

func sidecarKill(ctx context.Context, f *fleet, lasts time.Duration) error {
	return each(ctx, time.Second, lasts, func(ctx context.Context, n int) error {
		return f.restart(ctx, n%len(f.address), true)
	})
}

// failover kills the primary. The fault is over when another one serves.
func failover(ctx context.Context, f *fleet, _ time.Duration) error {
	_, err := f.sentinels.FailOver(ctx)
	return err
}

func cutOff(ctx context.Context, f *fleet, lasts time.Duration) error {
	f.proxies[0].Down()
	drive.Pause(ctx, lasts)
	return f.proxies[0].Up()
}
