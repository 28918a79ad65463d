package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/pkg/store/shared"
)

// measured is the result of one measurement.
type measured struct {
	requests, without int
	over, limit       int64 // hits that the hot keys had above their limits, and the sum of these
	p50, p99, longest time.Duration
	stalls            stalls
}

// stalls counts wakes that were late by more than 1 ms and 3 ms.
type stalls struct {
	small, large int
	longest      time.Duration
}

// node is one store of the fleet.
type node struct {
	memory *memstore.Store
	redis  *redisstore.Store
	guard  *shared.Store
}

func (n *node) close() {
	n.guard.Close()
	n.redis.Close()
	n.memory.Close()
}

// start starts a store that asks an address, and waits until it does.
func start(ctx context.Context, o options, address, prefix string) (*node, error) {
	memory, err := memstore.New(memstore.Options{})
	if err != nil {
		return nil, err
	}
	logger := slog.New(slog.DiscardHandler)
	redis, err := redisstore.New(redisstore.Options{
		Target: redisstore.Target{URLs: []string{"redis://" + address}}, Prefix: prefix, Timeout: o.timeout, Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	guard, err := shared.New(shared.Options{
		Remote: redis, Local: memory, Unavailable: redisstore.ErrUnavailable, Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	n := &node{memory, redis, guard}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for guard.Stats().State != shared.Closed {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			n.close()
			return nil, errors.New("the store does not find Redis")
		}
	}
	return n, nil
}

const hotKeys = 10

// measure asks a fleet at a rate, at random instants. Half of the requests have a key of their own.
// The other half has one of hotKeys, which together may have half of these requests.
func measure(ctx context.Context, o options, redis string, d distance, rate int) (m measured, err error) {
	line, err := newLine(redis, d)
	if err != nil {
		return m, err
	}
	defer line.close()
	prefix := fmt.Sprintf("%d:", rand.Uint64())
	var fleet []*node
	for range o.stores {
		n, err := start(ctx, o, line.address(), prefix)
		if err != nil {
			return m, err
		}
		defer n.close()
		fleet = append(fleet, n)
	}
	plain := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1000, Period: algorithms.MaxPeriod}
	hot := plain
	hot.Requests = uint32(max(1, float64(rate)*o.duration.Seconds()/2/2/hotKeys))
	var admitted [hotKeys]atomic.Int64
	var mu sync.Mutex // guards took
	var took []time.Duration
	ask := func(of int, c store.Charge, key int) {
		ctx := ctx
		if o.deadline > 0 {
			var cancel func()
			ctx, cancel = context.WithTimeout(ctx, o.deadline)
			defer cancel()
		}
		begun := time.Now()
		ok, err := store.Take(ctx, fleet[of].guard, []store.Charge{c}, make([]algorithms.Decision, 1))
		after := time.Since(begun)
		if key >= 0 && ok && err == nil {
			admitted[key].Add(1)
		}
		mu.Lock()
		defer mu.Unlock()
		took = append(took, after)
	}
	load := func(during time.Duration, name string, ofHot algorithms.Limit) {
		var asking sync.WaitGroup
		n := 0
		for range drive.Arrivals(ctx, rate, during) {
			c, key := store.Charge{Key: []byte(name + strconv.Itoa(n)), Limit: plain, Hits: 1}, -1
			if n%2 == 0 {
				key = rand.IntN(hotKeys)
				c.Key, c.Limit = []byte(name+"hot"+strconv.Itoa(key)), ofHot
			}
			n++
			of := rand.IntN(len(fleet))
			asking.Go(func() { ask(of, c, key) })
		}
		asking.Wait()
	}
	load(time.Second, "first ", plain) // the stores learn the distance
	took = took[:0]
	for i := range admitted {
		admitted[i].Store(0)
	}
	before := make([]uint64, len(fleet))
	for i, n := range fleet {
		before[i] = n.guard.Stats().Without
	}
	watch := watchStalls()
	load(o.duration, "", hot)
	m.stalls = watch()
	for i, n := range fleet {
		m.without += int(n.guard.Stats().Without - before[i])
	}
	for i := range admitted {
		m.limit += int64(hot.Requests)
		m.over += max(0, admitted[i].Load()-int64(hot.Requests))
	}
	slices.Sort(took)
	if m.requests = len(took); m.requests > 0 {
		m.p50, m.p99, m.longest = took[m.requests/2], took[m.requests*99/100], took[m.requests-1]
	}
	return m, ctx.Err()
}

// watchStalls counts stalls of this process until the returned function is called.
func watchStalls() func() stalls {
	end, result := make(chan struct{}), make(chan stalls)
	go func() {
		var s stalls
		for {
			begun := time.Now()
			select {
			case <-end:
				result <- s
				return
			case <-time.After(time.Millisecond):
			}
			late := time.Since(begun) - time.Millisecond
			if late > time.Millisecond {
				s.small++
			}
			if late > 3*time.Millisecond {
				s.large++
			}
			s.longest = max(s.longest, late)
		}
	}()
	return func() stalls {
		close(end)
		return <-result
	}
}
