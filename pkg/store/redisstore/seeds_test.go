package redisstore

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/test/parts"
)

const wasLost = "redis came back without our counts"

// lossy is a Redis that forgets all at each restart, and stores that share it.
type lossy struct {
	redis  *parts.Redis
	stores []*Store
	log    logtest.Log
}

func newLossy(t *testing.T, n int, o Options) *lossy {
	t.Helper()
	l := &lossy{redis: parts.RedisFor(t, parts.RedisOptions{})}
	o.Logger, o.CountFleet = slog.New(slog.NewTextHandler(&l.log, nil)), true
	o.Prefix = "weir:"
	for range n {
		l.stores = append(l.stores, open(t, urlOf("redis", l.redis.Address()), o))
	}
	return l
}

// restart restarts Redis without its data, and waits until all stores use Redis again.
func (l *lossy) restart(t *testing.T) {
	t.Helper()
	must.Do(t, l.redis.Stop(parts.Soon(t)))
	must.Do(t, l.redis.Restart(parts.Soon(t)))
	for _, s := range l.stores {
		eventually(t, "an answer after the restart", func() bool {
			c := s.main.connection
			return s.Await(t.Context(), 0) == nil && c.Restarts() > 0 && !s.main.seeds.pending(c)
		})
	}
}

// admits returns how many of n hits a store admits.
func (l *lossy) admits(t *testing.T, s *Store, limit algorithms.Limit, key string, n int) (admitted int) {
	t.Helper()
	for range n {
		c := []store.Charge{{Key: []byte(key), Limit: limit, Hits: 1}}
		if must.Get(store.Take(t.Context(), s, c, make([]algorithms.Decision, 1)))(t) {
			admitted++
		}
	}
	return admitted
}

func (l *lossy) lines(text string) int { return strings.Count(l.log.String(), text) }

func yearly(a algorithms.Algorithm, n uint32) algorithms.Limit {
	return algorithms.Limit{Algorithm: a, Requests: n, Period: 365 * 24 * time.Hour}
}

func TestARedisThatComesBackEmptyGetsItsCountsBack(t *testing.T) {
	for name, test := range map[string]struct {
		of algorithms.Algorithm
		o  Options
	}{
		"fixed_window":           {of: algorithms.FixedWindow},
		"token_bucket":           {of: algorithms.TokenBucket},
		"sliding_window_counter": {of: algorithms.SlidingWindowCounter},
		"token_bucket_integer":   {of: algorithms.TokenBucketInteger},
		"counter":                {of: algorithms.FixedWindow, o: Options{Counters: Counters{Name: descriptors.AppendOriginalKey}}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLossy(t, 2, test.o)
			limit := yearly(test.of, 10)
			const key = "4:edge|6:client=1:a#x"
			if n := l.admits(t, l.stores[0], limit, key, 4) + l.admits(t, l.stores[1], limit, key, 2); n != 6 {
				t.Fatalf("before: %d of 6 pass", n)
			}
			for n := range 300 { // more than a run of the script takes
				l.admits(t, l.stores[n%2], limit, fmt.Sprintf("4:edge|6:client=3:%03d#x", n), 1)
			}
			l.restart(t)
			if n := l.admits(t, l.stores[0], limit, key, 8); n != 4 {
				t.Errorf("after the restart %d pass, want the 4 that were left", n)
			}
			seeded := uint64(0)
			for _, s := range l.stores {
				eventually(t, "the end of the seeding", func() bool { return !s.main.seeds.pending(s.main.connection) })
				seeded += s.Stats().SeededKeys
			}
			if seeded != 301 && seeded != 302 { // a newer state of a key replaces an older one
				t.Errorf("%d keys were seeded, want 301", seeded)
			}
			if n := l.lines(wasLost); n < 1 || n > 2 {
				t.Errorf("%d lines about the loss, want one of each process that seeded:\n%s", n, &l.log)
			}
		})
	}
}

func TestARedisThatComesBackWithOlderCountsGetsTheNewerOnes(t *testing.T) {
	l := newLossy(t, 1, Options{})
	s, limit := l.stores[0], yearly(algorithms.FixedWindow, 10)
	l.admits(t, s, limit, "a", 3)
	must.Get(l.redis.Do(t.Context(), "SAVE"))(t)
	l.admits(t, s, limit, "a", 2) // newer than the file
	l.restart(t)
	if n := l.admits(t, s, limit, "a", 9); n != 5 {
		t.Errorf("after the restart %d pass, want 5", n)
	}
}

func TestAStateThatWasForgottenOnPurposeDoesNotComeBack(t *testing.T) {
	limit := yearly(algorithms.FixedWindow, 5)
	for name, forget := range map[string]func(t *testing.T, l *lossy){
		"reset here": func(t *testing.T, l *lossy) {
			t.Helper()
			must.Get(l.stores[0].Reset(t.Context(), []store.Charge{{Key: []byte("a"), Limit: limit}}))(t)
		},
		"reset elsewhere": func(t *testing.T, l *lossy) {
			t.Helper()
			must.Get(l.stores[1].Reset(t.Context(), []store.Charge{{Key: []byte("a"), Limit: limit}}))(t)
			eventually(t, "a beat after the reset", func() bool { return l.stores[0].main.seeds.size() == 0 })
		},
		"other rules": func(t *testing.T, l *lossy) {
			t.Helper()
			l.stores[0].Forget()
		},
		"a refund": func(t *testing.T, l *lossy) {
			t.Helper()
			c := []store.Charge{{Key: []byte("a"), Limit: limit, Hits: -3}}
			must.Get(store.Take(t.Context(), l.stores[0], c, make([]algorithms.Decision, 1)))(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLossy(t, 2, Options{})
			l.admits(t, l.stores[0], limit, "a", 3)
			forget(t, l)
			l.restart(t)
			if n := l.admits(t, l.stores[0], limit, "a", 9); n != 5 {
				t.Errorf("%d pass, want the whole limit of 5", n)
			}
			if n := l.lines(wasLost); n != 0 {
				t.Errorf("%d lines about a loss, want none:\n%s", n, &l.log)
			}
		})
	}
}

func TestAKeyThatHasExpiredIsNotSeeded(t *testing.T) {
	l := newLossy(t, 1, Options{})
	s := l.stores[0]
	limit := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 10, Period: 10 * time.Millisecond}
	l.admits(t, s, limit, "a", 1) // idle after a millisecond
	l.restart(t)
	eventually(t, "the end of the seeding", func() bool { return !s.main.seeds.pending(s.main.connection) })
	if n := s.Stats().SeededKeys; n != 0 {
		t.Errorf("%d keys were seeded, want none", n)
	}
}

// A late seed must not replace a newer state.
func TestTheNewestStateCounts(t *testing.T) {
	l := newLossy(t, 2, Options{})
	limit := yearly(algorithms.FixedWindow, 10)
	first, second := l.stores[0], l.stores[1]
	l.admits(t, first, limit, "a", 2)
	l.admits(t, second, limit, "a", 3)
	l.restart(t)
	eventually(t, "the newest state", func() bool {
		d := make([]algorithms.Decision, 1)
		must.Do(t, first.Peek(t.Context(), []store.Charge{{Key: []byte("a"), Limit: limit}}, d))
		return d[0].Remaining == 5
	})
	l.admits(t, first, limit, "a", 1)
	second.main.seeds.restarts.Store(0) // as if the second process came back only now
	second.main.seed(t.Context())
	d := make([]algorithms.Decision, 1)
	must.Do(t, first.Peek(t.Context(), []store.Charge{{Key: []byte("a"), Limit: limit}}, d))
	if d[0].Remaining != 4 {
		t.Errorf("%d are left after a late seed, want 4", d[0].Remaining)
	}
}

func TestSeedsAreBounded(t *testing.T) {
	b := newSeeds()
	for n := range 3 * maxSeeds {
		b.learn(fmt.Sprintf("key %d", n), &kept{limit: yearly(algorithms.FixedWindow, 10), state: algorithms.StateOf(1, 1, 0)}, 1)
	}
	if n := b.size(); n > maxSeeds || n < maxSeeds/2 {
		t.Errorf("%d states are kept, want at most %d", n, maxSeeds)
	}
}

func TestARedisThatEvictsIsLoggedOnce(t *testing.T) {
	r := parts.RedisFor(t, parts.RedisOptions{})
	for _, command := range [][]string{
		{"CONFIG", "SET", "maxmemory", "2mb"}, {"CONFIG", "SET", "maxmemory-policy", "volatile-lru"},
	} {
		must.Get(r.Do(t.Context(), command...))(t)
	}
	for n := range 200 { // fills the memory
		must.Get(r.Do(t.Context(), "SET", fmt.Sprint("count", n), strings.Repeat("x", 20_000), "EX", "1000"))(t)
	}
	var log logtest.Log
	o := Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	s := open(t, urlOf("redis", r.Address()), o)
	if s.Stats().EvictedKeys == 0 {
		t.Error("the metric has no evicted keys")
	}
	for _, line := range []string{"redis may evict counts when it is full", "redis has evicted keys"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("%d lines %q, want one:\n%s", n, line, &log)
		}
	}
}

func TestStatesOfAClusterGoBackToTheirSlots(t *testing.T) {
	s := open(t, urlOf("redis-cluster", sharedCluster(t).Addresses()...), Options{})
	l, limit := &lossy{}, yearly(algorithms.FixedWindow, 3)
	const keys = 400
	for n := range keys {
		l.admits(t, s, limit, fmt.Sprint("key", n), 2)
	}
	for n := range keys { // as if all nodes had restarted
		name, _ := s.main.appendName(nil, &store.Charge{Key: fmt.Append(nil, "key", n), Limit: limit}, 0)
		command(t, s, "DEL", string(name))
	}
	must.Do(t, command(t, s, "ACL", "SETUSER", "default", "-script").Error()) // as docs/redis-setup.md has it
	defer command(t, s, "ACL", "SETUSER", "default", "+script")
	s.main.seeds.restarts.Store(s.main.connection.Restarts() + 1)
	s.main.seed(t.Context())
	if got := s.Stats().SeededKeys; got != keys {
		t.Errorf("%d keys were seeded, want %d", got, keys)
	}
	for n := range keys {
		if got := l.admits(t, s, limit, fmt.Sprint("key", n), 2); got != 1 {
			t.Fatalf("key %d: %d pass, want the one that was left", n, got)
		}
	}
}

// The states that a late process brings may have hits that Redis lacks.
func TestTheStateWithMoreHitsCounts(t *testing.T) {
	for _, of := range []algorithms.Algorithm{
		algorithms.FixedWindow, algorithms.TokenBucket, algorithms.SlidingWindowCounter, algorithms.TokenBucketInteger,
	} {
		t.Run(of.String(), func(t *testing.T) {
			l := newLossy(t, 2, Options{})
			limit := yearly(of, 10)
			first, second := l.stores[0], l.stores[1]
			l.admits(t, first, limit, "a", 2)
			l.admits(t, second, limit, "a", 3) // first has not seen these
			l.restart(t)
			name, _ := first.main.appendName(nil, &store.Charge{Key: []byte("a"), Limit: limit}, 0)
			command(t, first, "DEL", string(name)) // as if both came back only now
			for n, s := range l.stores {
				s.main.seeds.restarts.Store(0)
				s.main.seed(t.Context())
				if n == 0 {
					l.admits(t, first, limit, "a", 1)
				}
			}
			if n := l.admits(t, first, limit, "a", 9); n != 5 {
				t.Errorf("%d pass, want 5: a late state has 5 hits, and the state of Redis has 3", n)
			}
		})
	}
}

func TestARedisThatComesBackWithAllCountsGetsNone(t *testing.T) {
	for _, of := range []algorithms.Algorithm{
		algorithms.FixedWindow, algorithms.TokenBucket, algorithms.SlidingWindowCounter, algorithms.TokenBucketInteger,
	} {
		t.Run(of.String(), func(t *testing.T) {
			l := newLossy(t, 2, Options{})
			limit := algorithms.Limit{Algorithm: of, Requests: 1000, Period: 24 * time.Hour}
			for n := range 100 {
				s := l.stores[n%2]
				c := []store.Charge{{Key: []byte("a"), Limit: limit, Hits: []int64{9, 0, -2, 2000, 0, 1}[n%6]}}
				must.Get(store.Take(t.Context(), s, c, make([]algorithms.Decision, 1)))(t)
				s.Later(&store.Charge{Key: []byte("a"), Limit: limit, Hits: -1}, s.Now(limit), store.Part{})
			}
			for _, s := range l.stores {
				eventually(t, "nothing that is owed", func() bool { return s.Stats().OwedKeys == 0 && s.idle() })
			}
			for _, s := range l.stores {
				must.Get(store.Take(t.Context(), s, []store.Charge{{Key: []byte("a"), Limit: limit}}, make([]algorithms.Decision, 1)))(t)
			}
			must.Get(l.redis.Do(t.Context(), "SAVE"))(t)
			l.restart(t)
			if n := l.lines(wasLost); n != 0 {
				t.Errorf("%d lines about a loss, want none:\n%s", n, &l.log)
			}
		})
	}
}

// Hits that Redis is told later, and hits that are given back, have no answer with a state.
func TestCorrectionsCountInTheStatesThatComeBack(t *testing.T) {
	for _, of := range []algorithms.Algorithm{
		algorithms.FixedWindow, algorithms.TokenBucket, algorithms.SlidingWindowCounter, algorithms.TokenBucketInteger,
	} {
		t.Run(of.String(), func(t *testing.T) {
			l := newLossy(t, 1, Options{})
			s, limit := l.stores[0], yearly(of, 10)
			l.admits(t, s, limit, "a", 2)
			l.admits(t, s, limit, "b", 8)
			s.Later(&store.Charge{Key: []byte("a"), Limit: limit, Hits: 4}, s.Now(limit), store.Part{})
			s.Later(&store.Charge{Key: []byte("b"), Limit: limit, Hits: -4}, s.Now(limit), store.Part{})
			eventually(t, "nothing that is owed", func() bool { return s.Stats().OwedKeys == 0 && s.idle() })
			l.restart(t)
			for key, want := range map[string]int{"a": 4, "b": 6} {
				if n := l.admits(t, s, limit, key, 9); n != want {
					t.Errorf("%s: %d pass after the restart, want %d", key, n, want)
				}
			}
		})
	}
}

// restarting is a far server that restarts.
type restarting struct {
	*far

	restarts atomic.Uint64
}

func (r *restarting) Restarts() uint64 { return r.restarts.Load() }

// A server that restarts with much data loads it for many seconds, and refuses all commands. An
// older snapshot lacks counts. But a server that serves without ever taking states back is used.
func TestAServerThatLoadsItsDataForLongGetsItsCountsBack(t *testing.T) {
	for _, test := range []struct {
		refusal string
		waits   bool
	}{
		{"LOADING Redis is loading the dataset in memory", true},
		{"ERR something else", false},
	} {
		t.Run(test.refusal, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &restarting{far: &far{trip: func() time.Duration { return time.Millisecond }}}
				s := awayBy(t, r.far, r, Options{})
				now := s.Now(yearly(algorithms.FixedWindow, 10))
				s.main.seeds.learn("key", &kept{limit: yearly(algorithms.FixedWindow, 10), state: algorithms.StateOf(now, 1, 0)}, now)
				r.error.Store(&test.refusal)
				r.restarts.Store(1)
				time.Sleep(2 * seedTime)
				if got := s.main.seeds.pending(r); got != test.waits {
					t.Errorf("%v after the restart this process waits: %t; want %t", 2*seedTime, got, test.waits)
				}
				r.error.Store(nil)
				time.Sleep(2 * seedTick)
				want := uint64(0)
				if test.waits {
					want = 1
				}
				if got := s.Stats().SeededKeys; got != want || s.main.seeds.pending(r) {
					t.Errorf("%d keys got their states back, and the process waits: %t; want %d, and false", got, s.main.seeds.pending(r), want)
				}
			})
		})
	}
}

func TestBlocksAndOffensesComeBackToARedisThatForgotThem(t *testing.T) {
	l := newLossy(t, 2, Options{})
	limit := algorithms.Escalate{Offenses: 2, Within: 10 * time.Minute, Forget: 48 * time.Hour, Period: time.Millisecond, Windows: true}.Limit()
	tell := func(s *Store, key string, seconds int64) algorithms.Decision {
		c := []store.Charge{{Key: []byte(key), Limit: limit, Hits: seconds, Exact: true}}
		if seconds > 0 {
			c[0].Mode, c[0].CountRejected = store.Shadow, true
		}
		var d [1]algorithms.Decision
		_ = must.Get(store.Take(t.Context(), s, c, d[:]))(t)
		return d[0]
	}
	const blocked, offends = "4:edge|6:client=1:a#x/block", "4:edge|6:client=1:b#x/block"
	tell(l.stores[0], offends, 3600)
	tell(l.stores[0], blocked, 3600)
	eventually(t, "the second offense, in another period", func() bool { return !tell(l.stores[1], blocked, 3600).Allowed })
	l.restart(t)
	if d := tell(l.stores[1], blocked, 0); d.Allowed || d.RetryAfter > time.Hour || d.RetryAfter < 50*time.Minute {
		t.Errorf("after the restart the blocked key has %+v", d)
	}
	if d := tell(l.stores[1], offends, 3600); d.Allowed {
		t.Errorf("after the restart the second offense begins no block: %+v", d)
	}
}
