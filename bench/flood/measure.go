package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// requests is the limit of each key, in a period so long that no hit comes back.
const requests = 100

// batch is the decisions between two looks at the clocks.
const batch = 64

// result holds the figures of one flood.
type result struct {
	algorithm  algorithms.Algorithm
	weight     int64
	took       time.Duration
	below      float64   // ns of CPU time per decision before the bound
	parts      []float64 // ns of CPU time per decision at the bound
	longestCPU time.Duration
	longest    time.Duration // by the clock, for a batch
	pauses     int           // batches with more than 5 ms of CPU time
	tries      int           // of denied keys
	freed      int
	keys       int   // most in the store
	resident   int64 // most bytes
}

// flood is a flood under way.
type flood struct {
	result
	store  *memstore.Store
	limit  algorithms.Limit
	denied int
	next   uint64 // number of the next new key
	key    []byte
}

// measure fills a store to its bound and beyond.
func measure(ctx context.Context, o options, a algorithms.Algorithm, weight int64) (r result, err error) {
	runtime.LockOSThread() // so that the thread's CPU time is the time of the decisions
	defer runtime.UnlockOSThread()
	s, err := memstore.New(memstore.Options{MaxKeys: o.maxKeys})
	if err != nil {
		return r, err
	}
	defer s.Close()
	f := &flood{
		result: result{algorithm: a, weight: weight}, store: s, denied: o.denied, key: append(make([]byte, 8), "|6:client"...),
		limit: algorithms.Limit{Algorithm: a, Requests: requests, Period: algorithms.MaxPeriod},
	}
	start := time.Now()
	if err := f.deny(ctx); err != nil {
		return r, err
	}
	if f.below, err = f.send(ctx, o.maxKeys-o.denied); err != nil {
		return r, err
	}
	for range o.parts {
		cost, err := f.send(ctx, (o.keys-o.maxKeys)/o.parts)
		if err != nil {
			return r, err
		}
		f.parts = append(f.parts, cost)
	}
	for i := range o.denied {
		if err := f.try(ctx, i); err != nil {
			return r, err
		}
	}
	f.took = time.Since(start)
	return f.result, nil
}

// take takes the hits of a key.
func (f *flood) take(ctx context.Context, number uint64) (bool, error) {
	binary.LittleEndian.PutUint64(f.key, number)
	charges := [1]store.Charge{{Key: f.key, Limit: f.limit, Hits: f.weight}}
	var decisions [1]algorithms.Decision
	return store.Take(ctx, f.store, charges[:], decisions[:])
}

// deny charges the first keys until they are denied. A store that is full of denied logs denies no
// further key.
func (f *flood) deny(ctx context.Context) error {
	for ; f.next < uint64(f.denied); f.next++ {
		allowed := true
		for used := int64(0); allowed; used += f.weight {
			if used > requests {
				return fmt.Errorf("max-keys is too small for %d denied keys of %v, which take several places each", f.denied, f.algorithm)
			}
			var err error
			if allowed, err = f.take(ctx, f.next); err != nil {
				return err
			}
		}
	}
	return nil
}

// try tries a denied key again.
func (f *flood) try(ctx context.Context, i int) error {
	allowed, err := f.take(ctx, uint64(i))
	if allowed {
		f.freed++
	}
	f.tries++
	return err
}

// send sends new keys, and tries a denied key from time to time. The result is the CPU time of a
// decision in nanoseconds.
func (f *flood) send(ctx context.Context, keys int) (float64, error) {
	before, err := cpu(unix.CLOCK_PROCESS_CPUTIME_ID)
	if err != nil {
		return 0, err
	}
	used, err := cpu(unix.CLOCK_THREAD_CPUTIME_ID)
	if err != nil {
		return 0, err
	}
	at, decisions := time.Now(), 0
	for sent := 0; sent < keys; {
		for range min(batch, keys-sent) {
			if _, err := f.take(ctx, f.next); err != nil {
				return 0, err
			}
			f.next++
			sent++
		}
		decisions += batch
		if decisions%(16*batch) == 0 {
			if err := f.try(ctx, f.tries%f.denied); err != nil {
				return 0, err
			}
		}
		if used, at, err = f.look(used, at); err != nil {
			return 0, err
		}
		if decisions%(1024*batch) == 0 || sent == keys {
			f.keys = max(f.keys, f.store.Stats().Keys)
			f.resident = max(f.resident, resident())
		}
	}
	after, err := cpu(unix.CLOCK_PROCESS_CPUTIME_ID)
	return float64(after-before) / float64(keys), err
}

// look notes the pause of a batch that began at the two times, and returns the times of the next
// batch.
func (f *flood) look(used time.Duration, at time.Time) (time.Duration, time.Time, error) {
	now, err := cpu(unix.CLOCK_THREAD_CPUTIME_ID)
	clock := time.Now()
	f.longestCPU, f.longest = max(f.longestCPU, now-used), max(f.longest, clock.Sub(at))
	if now-used > 5*time.Millisecond {
		f.pauses++
	}
	return now, clock, err
}

// cpu returns the CPU time used by the process or by this thread.
func cpu(clock int32) (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		return 0, fmt.Errorf("clock_gettime: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// resident returns the resident memory of the process in bytes, 0 where the system does not tell
// it.
func resident() int64 {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(statm), &size, &pages); err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
