package redisstore

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// oweing has hits of many keys wait, one of each.
func oweing(s *Store, from, to int, hits int64) {
	for n := from; n < to; n++ {
		c := hit(fmt.Sprint("k", n), perAge(algorithms.FixedWindow, 10))
		c.Hits = hits
		s.Later(&c, s.Now(algorithms.Limit{}), store.Part{})
	}
}

func TestNothingIsSentToASilentRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := farBy(time.Millisecond)
		s := away(t, f, Options{})
		c := hit("asked", perAge(algorithms.FixedWindow, 10))
		taking(t, s, c)
		f.hang(time.Hour) // Redis stops
		_, err := store.Take(t.Context(), s, []store.Charge{c}, make([]algorithms.Decision, 1))
		if _, is := errors.AsType[store.Unanswered](err); !is {
			t.Fatal(err)
		}
		oweing(s, 0, 50, 2)
		oweing(s, 50, 100, -2)
		before := f.calls.Load()
		time.Sleep(time.Minute)
		calls := f.calls.Load() - before
		if stats := s.Stats(); stats.OwedKeys != 100 || stats.LostHits+stats.UnknownHits+stats.DeferredHits != 0 {
			t.Errorf("after a minute of silence: %+v; want 100 keys that wait", stats)
		}
		if calls == 0 || calls > 121 {
			t.Errorf("%d calls in a minute of silence; want one question at a time", calls)
		}
	})
}

func TestAnIdleRedisIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip = time.Millisecond
		f := farBy(trip)
		s := away(t, f, Options{Timeout: 10 * time.Millisecond})
		c := hit("asked", perAge(algorithms.FixedWindow, 10))
		taking(t, s, c)
		f.hang(200 * time.Millisecond) // stopped once, and the answer came late
		if _, err := store.Take(t.Context(), s, []store.Charge{c}, make([]algorithms.Decision, 1)); err == nil {
			t.Fatal("Redis answered in time")
		}
		time.Sleep(time.Second)
		f.hang(0)
		taking(t, s, c)
		time.Sleep(time.Hour)
		if silent := s.Health(0).Silent; silent != 0 {
			t.Errorf("silent for %v; want 0", silent)
		}
	})
}

func TestHitsAreSentAtAPaceWhenRedisIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, g := leaving()
		s := awayBy(t, f, g, Options{})
		taking(t, s, hit("asked", perAge(algorithms.FixedWindow, 10)))
		g.away.Store(true)
		const keys = 10_000
		oweing(s, 0, keys, 1)
		before := f.calls.Load()
		time.Sleep(10*time.Second + outboxTick/2) // between two ticks
		if stats := s.Stats(); stats.OwedKeys != keys || f.calls.Load() != before || stats.LostHits != 0 {
			t.Errorf("after ten seconds without a connection: %+v, %d calls", stats, f.calls.Load()-before)
		}
		g.away.Store(false)
		for last := int64(0); last < keys; {
			time.Sleep(outboxTick)
			sum := f.told.Load()
			if sum-last > outboxPerTick || sum == last {
				t.Fatalf("%d hits of %d keys after %d; want at most %d more", sum, keys, last, outboxPerTick)
			}
			last = sum
		}
		time.Sleep(time.Second)
		if stats := s.Stats(); f.told.Load() != keys || stats.OwedKeys != 0 || stats.DeferredHits != keys {
			t.Errorf("%d of %d hits, %+v", f.told.Load(), keys, stats)
		}
	})
}

// Hits to charge whose answer is lost are sent again, and hits to give back are not. Here Redis
// runs each call, so UnknownHits is at least the number of hits that Redis counts too often.
func TestHitsWithoutAnAnswerAreSentAgainUnlessTheyAreGivenBack(t *testing.T) {
	for _, test := range []struct {
		hits    int64
		answers int // lost ones
		redis   int64
		want    Stats
	}{
		{hits: 3, answers: 1, redis: 6, want: Stats{UnknownHits: 3, DeferredHits: 3}},
		{hits: 3, answers: 3, redis: 12, want: Stats{UnknownHits: 9, DeferredHits: 3}},
		{hits: -3, answers: 1, redis: -3, want: Stats{UnknownHits: 3}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := farBy(100 * time.Millisecond)
			s := away(t, f, Options{Timeout: time.Second})
			taking(t, s, hit("asked", perAge(algorithms.FixedWindow, 10)))
			oweing(s, 0, 1, test.hits)
			s.sendAll()
			for n := range test.answers {
				for f.told.Load() != int64(n+1)*test.hits {
					time.Sleep(time.Millisecond)
				}
				f.conn.Close() // Redis has run the call
			}
			time.Sleep(5 * time.Second)
			stats := s.Stats()
			if stats.UnknownHits != test.want.UnknownHits || stats.LostHits != test.want.LostHits || stats.DeferredHits != test.want.DeferredHits || stats.OwedKeys != 0 {
				t.Errorf("%d hits, %d answers lost: %+v", test.hits, test.answers, stats)
			}
			if sum := f.told.Load(); sum != test.redis {
				t.Errorf("%d hits, %d answers lost: Redis counts %d, want %d", test.hits, test.answers, sum, test.redis)
			}
		})
	}
}

func TestCloseSendsForABoundedTime(t *testing.T) {
	for name, test := range map[string]struct {
		hang time.Duration
		away bool
		lost uint64
		most time.Duration
	}{
		"answering": {0, false, 0, 2 * time.Second},
		"silent":    {time.Hour, false, 9000, outboxClose + 2*longestLife},
		"away":      {0, true, 9000, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := farBy(time.Millisecond)
				g := &gone{far: f}
				var lines logtest.Log
				s := awayBy(t, f, g, Options{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
				taking(t, s, hit("asked", perAge(algorithms.FixedWindow, 10)))
				f.hang(test.hang)
				g.away.Store(test.away)
				oweing(s, 0, 9000, 1)
				begun := time.Now()
				s.Close()
				took, stats := time.Since(begun), s.Stats()
				if stats.LostHits != test.lost || stats.DeferredHits != 9000-test.lost || took > test.most {
					t.Errorf("after %v: %+v; want %d hits lost", took, stats, test.lost)
				}
				if got := strings.Count(lines.String(), "hits=9000"); got != int(test.lost/9000) {
					t.Errorf("the log has %d lines of 9000 lost hits: %s", got, lines.String())
				}
				oweing(s, 0, 1, 1)
				if got := s.Stats(); got.LostHits != test.lost+1 || got.OwedKeys != 0 {
					t.Errorf("a hit after Close: %+v", got)
				}
			})
		})
	}
}

// While nothing can be sent, a shard whose hits all matter for some time is not looked at again and
// again.
func TestHitsThatWaitForRedisCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, g := leaving()
		s := awayBy(t, f, g, Options{})
		taking(t, s, hit("asked", perAge(algorithms.FixedWindow, 10)))
		g.away.Store(true)
		const keys = 10_000
		oweing(s, 0, keys, 1)
		seen := func() (n int) { // in some time, in which no tick comes
			for range 10 {
				seen, _ := s.sendSome(time.Now(), outboxPerTick, false)
				n += seen
			}
			return n
		}
		if n := seen(); n < keys {
			t.Errorf("at first there were %d looks at %d keys", n, keys)
		}
		if n := seen(); n != 0 {
			t.Errorf("then there were %d looks", n)
		}
		oweing(s, 0, keys, 1) // the same keys
		if n := seen(); n != 0 {
			t.Errorf("after more hits of these keys there were %d looks", n)
		}
		soon := hit("soon", algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 10, Period: time.Second})
		s.Later(&soon, s.Now(algorithms.Limit{}), store.Part{})
		if n := seen(); n == 0 || n > keys/10 {
			t.Errorf("after a hit of a new key there were %d looks, want those at one shard", n)
		}
		time.Sleep(10 * time.Second)
		if stats := s.Stats(); stats.OwedKeys != keys || stats.ExpiredHits != 1 {
			t.Errorf("after the window of the new key: %+v", stats)
		}
	})
}
