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
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
	near "github.com/weirproxy/weir/pkg/store/shared"
	"github.com/weirproxy/weir/test/parts"
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

// caller asks with a deadline; 0: with none. times counts the requests.
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
				one := deadline == 10*time.Second // of many callers, as each case takes seconds
				if many && silence > time.Second && !one || race.Short() && (silence == time.Second || many && (silence > time.Second || !one)) {
					continue
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
						bound := slowest
						if name == "one call per 3s" { // too few answers have come since the first silence
							bound = 2*mostTaught + 50*time.Millisecond
						}
						if most := c.times.most(); most > bound {
							t.Errorf("a request waited for %v; want at most %v:%v", most, bound, &c.times)
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

// The program ratelimit has a timeout of 10 s, as the original waits for Redis.
func TestALongTimeoutDoesNotHideASilentRedis(t *testing.T) {
	for _, deadline := range []time.Duration{10 * time.Second, 0} {
		t.Run(fmt.Sprint("deadline ", deadline), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := farBy(time.Millisecond)
				front := sharing(t, away(t, f, Options{Timeout: 10 * time.Second}))
				c := &caller{
					store: front, deadline: deadline, failed: func(err error) { t.Errorf("a request failed: %v", err) },
					charge: store.Charge{Key: []byte("k"), Limit: perAge(algorithms.FixedWindow, 1e9), Hits: 1, Exact: true},
				}
				begun := time.Now()
				time.AfterFunc(4*time.Second, func() { time.AfterFunc(5*time.Second, f.freeze()) })
				inTurn(1, 700*time.Millisecond)(func() bool { return time.Since(begun) > 12*time.Second }, c.ask)
				if most, bound := c.times.most(), mostSilence+2*silenceDoubt; most < 10*time.Millisecond || most > bound {
					t.Errorf("the longest wait was %v; want some, and at most %v:%v", most, bound, &c.times)
				}
			})
		})
	}
}

func TestAFrozenNodeDelaysOnlyItsOwnCallersAndNotForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := awayCluster(t, time.Millisecond, layouts()["thirds"])
		front := sharing(t, s)
		const frozen = 1
		var callers [3]caller
		for n := range callers {
			callers[n] = caller{store: front, deadline: 10 * time.Second, failed: func(err error) { t.Errorf("a request failed: %v", err) }}
			for key := 0; callers[n].charge.Key == nil; key++ {
				x := hit(fmt.Sprint(key), perAge(algorithms.FixedWindow, 1e9))
				if x.Exact = true; s.Shard(&x) == n {
					callers[n].charge = x
				}
			}
		}
		begun := time.Now()
		time.AfterFunc(time.Second, func() {
			thaw := c.fars[frozen].freeze()
			time.AfterFunc(5*time.Second, thaw)
		})
		time.AfterFunc(3*time.Second, func() {
			for n, shard := range front.Stats().Shards {
				if (shard.State == near.Open) != (n == frozen) {
					t.Errorf("while node %d is frozen the circuit of %s is %v", frozen, shard.Name, shard.State)
				}
			}
		})
		var all sync.WaitGroup
		for n := range callers {
			all.Go(func() {
				inTurn(20, 5*time.Millisecond)(func() bool { return time.Since(begun) > 8*time.Second }, callers[n].ask)
			})
		}
		all.Wait()
		time.Sleep(5 * time.Second)
		for n := range callers {
			bound := 10 * time.Millisecond
			if n == frozen {
				bound = slowest
			}
			if most := callers[n].times.most(); most > bound {
				t.Errorf("a request to node %d waited for %v; want at most %v:%v", n, most, bound, &callers[n].times)
			}
			if got := c.fars[n].took.Load() + c.fars[n].told.Load(); got != callers[n].asked() {
				t.Errorf("node %d counts %d hits of %d requests", n, got, callers[n].asked())
			}
		}
	})
}

// The machine may be busy, so the bound is far above the 50 ms of the tests in virtual time, and
// far below the silence.
func TestNobodyWaitsThroughAStoppedServer(t *testing.T) {
	r := ownRedis(t)
	proxy := must.Get(parts.StartProxy(r.Address()))(t)
	t.Cleanup(proxy.Close)
	for name, fault := range map[string]struct {
		address   string
		stop, end func()
	}{
		"stopped":      {r.Address(), func() { must.Do(t, r.Pause(parts.Soon(t))) }, func() { must.Do(t, r.Continue()) }},
		"data dropped": {proxy.Address(), proxy.HalfOpen, proxy.Clear},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, urlOf("redis", fault.address), Options{Timeout: DefaultTimeout})
			front := sharing(t, s)
			charge := hit("k", perAge(algorithms.FixedWindow, 1e9))
			settled(t, s, charge)
			charge.Exact = true
			c := &caller{store: front, charge: charge, deadline: 30 * time.Second, failed: func(err error) { t.Errorf("a request failed: %v", err) }}
			c.ask()
			fault.stop()
			begun := time.Now()
			inTurn(20, time.Millisecond)(func() bool { return time.Since(begun) > 3*time.Second }, c.ask)
			fault.end()
			if most := c.times.most(); most > 2*time.Second {
				t.Errorf("a request waited for %v:%v", most, &c.times)
			}
			told(t, s)
			counted, asked, unknown := count(t, s, charge), uint64(c.asked()), s.Stats().UnknownHits
			if counted < asked || counted > asked+unknown { // the silence may have ended the connection, and the answers with it
				t.Errorf("Redis counts %d hits of %d requests, of which %d may count twice", counted, asked, unknown)
			}
			t.Logf("%d requests, released %d, unknown %d:%v", asked, front.Stats().Released, unknown, &c.times)
		})
	}
}

// Pauses of Redis that are shorter than too long are waited for. Longer ones open the breaker once
// each, and no more hits are decided without Redis than come in them.
func TestAFlutteringRedisOpensTheBreakerOncePerPause(t *testing.T) {
	for name, arrives := range map[string]arrival{"20 callers": inTurn(20, 5*time.Millisecond), "500 per second": each(2 * time.Millisecond)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := farBy(time.Millisecond)
				s := away(t, f, Options{})
				front := sharing(t, s)
				c := &caller{
					store: front, deadline: 2 * time.Second, failed: func(err error) { t.Errorf("a request failed: %v", err) },
					charge: store.Charge{Key: []byte("k"), Limit: perAge(algorithms.FixedWindow, 1e9), Hits: 1, Exact: true},
				}
				begun, lasts := time.Now(), 10*time.Minute // more than 2000 pauses
				if race.Short() {
					lasts = time.Minute
				}
				over := func() bool { return time.Since(begun) > lasts }
				random, long := newRand(1), uint64(0)
				var pauses sync.WaitGroup
				pauses.Go(func() {
					for draw := between(random, 20*time.Millisecond, 200*time.Millisecond); !over(); {
						time.Sleep(draw())
						pause := draw()
						thaw := f.freeze()
						time.Sleep(pause)
						thaw()
						if pause > leastSilence+silenceDoubt {
							long++
						}
					}
				})
				arrives(over, c.ask)
				pauses.Wait()
				time.Sleep(5 * time.Second)
				stats := front.Stats()
				if stats.Opened > long {
					t.Errorf("the breaker opened %d times in %d long pauses", stats.Opened, long)
				}
				if got := f.took.Load() + f.told.Load(); got != c.asked() {
					t.Errorf("Redis counts %d hits of %d requests: %+v", got, c.asked(), s.Stats())
				}
				t.Logf("%d requests, %d without Redis, opened %d times in %d long pauses:%v", c.asked(), stats.Without, stats.Opened, long, &c.times)
			})
		})
	}
}
