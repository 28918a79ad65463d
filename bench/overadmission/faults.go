package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"
)

// fault is something that happens to Redis or to a sidecar again and again.
type fault struct {
	every time.Duration
	lasts time.Duration // 0: only an instant
	begin func(context.Context, *fleet) error
	end   func(context.Context, *fleet) error // nil: the fault ends by itself
}

// faults returns all faults by their names.
func faults() map[string]fault {
	// redis sends commands, one after the other.
	redis := func(commands ...[]string) func(context.Context, *fleet) error {
		return func(ctx context.Context, f *fleet) error {
			for _, command := range commands {
				if _, err := f.redis.Do(ctx, command...); err != nil {
					return err
				}
			}
			return nil
		}
	}
	const part, second = 300 * time.Millisecond, time.Second
	victim := 0 // the sidecar that is stopped
	return map[string]fault{
		"pause":    {every: second / 2, begin: redis([]string{"CLIENT", "PAUSE", "50", "ALL"})},
		"kill":     {every: part, begin: redis([]string{"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"})},
		"oom":      {second, part, redis([]string{"CONFIG", "SET", "maxmemory", "1"}), redis([]string{"CONFIG", "SET", "maxmemory", "0"})},
		"readonly": {second, part, redis([]string{"REPLICAOF", "127.0.0.1", "1"}), redis([]string{"REPLICAOF", "NO", "ONE"})},
		"stop": {
			second, part,
			func(ctx context.Context, f *fleet) error { return f.redis.Pause(ctx) },
			func(_ context.Context, f *fleet) error { return f.redis.Continue() },
		},
		"sidecar-kill": {every: second, begin: func(ctx context.Context, f *fleet) error { return f.restart(ctx, rand.IntN(len(f.sidecars))) }},
		"sidecar-stop": {
			second, part,
			func(_ context.Context, f *fleet) error {
				victim = rand.IntN(len(f.sidecars))
				return f.sidecar(victim).Signal(syscall.SIGSTOP)
			},
			func(_ context.Context, f *fleet) error { return f.sidecar(victim).Signal(syscall.SIGCONT) },
		},
	}
}

// faultNames returns the names of faults in order.
func faultNames() []string { return slices.Sorted(maps.Keys(faults())) }

// calm is the time before the first fault: each sidecar has been asked about each key then.
const calm = time.Second

// repeat makes a fault happen until ctx ends, and then ends it. The first time comes after calm and
// half of an interval.
func (f *fleet) repeat(ctx context.Context, name string) error {
	one, ok := faults()[name]
	if !ok {
		return nil
	}
	whole := context.WithoutCancel(ctx)
	for wait := calm + one.every/2; pause(ctx, wait); wait = one.every - one.lasts {
		err := one.begin(whole, f)
		pause(ctx, one.lasts)
		if one.end != nil {
			err = errors.Join(err, one.end(whole, f))
		}
		if err != nil {
			return fmt.Errorf("fault %s: %w", name, err)
		}
	}
	return nil
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
