package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
	near "github.com/weirproxy/weir/pkg/store/shared"
)

// arrival has requests come until stop returns true.
type arrival func(stop func() bool, request func())

// each has one request begin in each interval.
func each(interval time.Duration) arrival {
	return func(stop func() bool, request func()) {
		var all sync.WaitGroup
		for ; !stop(); time.Sleep(interval) {
			all.Go(request)
		}
		all.Wait()
	}
}

// inTurn has callers ask again as soon as they have an answer, and a pause.
func inTurn(callers int, pause time.Duration) arrival {
	return func(stop func() bool, request func()) {
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for !stop() {
					request()
					time.Sleep(pause)
				}
			})
		}
		all.Wait()
	}
}

func loads() map[string]arrival {
	return map[string]arrival{
		"one call per 3s":   each(3 * time.Second),
		"one call per 50ms": each(50 * time.Millisecond),
		"20 callers":        inTurn(20, 5*time.Millisecond),
		"2000 per second":   each(500 * time.Microsecond),
	}
}

// histogram counts answers by whole milliseconds.
type histogram struct {
	mu     sync.Mutex // guards counts
	counts map[int]int
}

func (h *histogram) add(took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.counts == nil {
		h.counts = make(map[int]int)
	}
	h.counts[int((took+time.Millisecond-1)/time.Millisecond)]++
}

// most returns the longest time.
func (h *histogram) most() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	most := 0
	for ms := range h.counts {
		most = max(most, ms)
	}
	return time.Duration(most) * time.Millisecond
}

func (h *histogram) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var text strings.Builder
	var all []int
	for ms := range h.counts {
		all = append(all, ms)
	}
	slices.Sort(all)
	for _, ms := range all {
		fmt.Fprintf(&text, " %dms:%d", ms, h.counts[ms])
	}
	return text.String()
}

// caller asks with a deadline; 0: with none. It counts requests, and their times.
type caller struct {
	store    store.Store
	charge   store.Charge
	deadline time.Duration
	times    histogram
	failed   func(error)
}

func (c *caller) ask() {
	ctx, cancel := context.Background(), func() {}
	if c.deadline > 0 {
		ctx, cancel = context.WithTimeout(ctx, c.deadline)
	}
	defer cancel()
	charge, begun := c.charge, time.Now()
	charge.Key = slices.Clone(charge.Key)
	if _, err := store.Take(ctx, c.store, []store.Charge{charge}, make([]algorithms.Decision, 1)); err != nil {
		c.failed(err)
	}
	c.times.add(time.Since(begun))
}

func (c *caller) asked() (n int64) {
	for _, count := range c.times.counts {
		n += int64(count)
	}
	return n
}

// sharing returns a store that goes on without s while s is silent.
func sharing(t *testing.T, s store.Remote) *near.Store {
	t.Helper()
	local := must.Get(memstore.New(memstore.Options{SweepInterval: time.Hour}))(t)
	t.Cleanup(local.Close)
	front := must.Get(near.New(near.Options{Remote: s, Local: local, Denials: time.Second, Logger: slog.New(slog.DiscardHandler)}))(t)
	t.Cleanup(front.Close)
	must.Do(t, front.Await(t.Context()))
	return front
}

// slowest is the longest that a request may wait for a silent Redis whose answers take a
// millisecond: too long, and the doubt.
const slowest = leastSilence + 50*time.Millisecond

func TestNobodyWaitsThroughASilentRedis(t *testing.T) {
	for name, arrives := range loads() {
		for _, deadline := range []time.Duration{20 * time.Millisecond, 2 * time.Second, 10 * time.Second, 0} {
			for _, silence := range []time.Duration{300 * time.Millisecond, time.Second, 5 * time.Second, time.Minute} {
				many := name == "20 callers" || name == "2000 per second"
				if many && silence > time.Second && (deadline != 10*time.Second || testing.Short()) || testing.Short() && silence == time.Second {
					continue // takes seconds
				}
				t.Run(fmt.Sprintf("%s, deadline %v, silent for %v", name, deadline, silence), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f := farBy(time.Millisecond)
						s := away(t, f, Options{})
						front := sharing(t, s)
						c := &caller{
							store: front, deadline: deadline, failed: func(err error) { t.Errorf("a request failed: %v", err) },
							charge: store.Charge{Key: []byte("k"), Limit: perAge(algorithms.FixedWindow, 1e9), Hits: 1, Exact: true},
						}
						begun := time.Now()
						for _, after := range []time.Duration{4 * time.Second, 8*time.Second + silence} { // two silences
							time.AfterFunc(after, func() {
								thaw := f.freeze()
								time.AfterFunc(silence, thaw)
							})
						}
						arrives(func() bool { return time.Since(begun) > 12*time.Second+2*silence }, c.ask)
						time.Sleep(5 * time.Second)
						if most := c.times.most(); most > slowest {
							t.Errorf("a request waited for %v; want at most %v:%v", most, slowest, &c.times)
						}
						if got := f.took.Load() + f.told.Load(); got != c.asked() {
							t.Errorf("Redis counts %d hits of %d requests: %+v", got, c.asked(), s.Stats())
						}
						if stats := s.Stats(); stats.OwedKeys != 0 || stats.LostHits != 0 {
							t.Errorf("afterwards %+v", stats)
						}
						t.Logf("%d requests, released %d, opened %d times:%v", c.asked(), front.Stats().Released, front.Stats().Opened, &c.times)
					})
				})
			}
		}
	}
}
