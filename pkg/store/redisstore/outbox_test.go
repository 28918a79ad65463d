package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// sendAll has all waiting hits sent.
func (o *outbox) sendAll() {
	o.sendSome(time.Now(), outboxShards*owed.MostHits, false)
}

// count returns the hits that Redis has of a fixed window, from a store that remembers nothing.
func count(t *testing.T, s *Store, c store.Charge) uint64 {
	t.Helper()
	raw, err := command(t, s, "GET", s.name(&c)).ToString()
	if err != nil {
		t.Fatal(err)
	}
	k, err := parse(raw, c.Limit)
	if err != nil {
		t.Fatal(err)
	}
	_, n, _ := k.state.Parts()
	return n
}

func TestHitsThatCountThoughDeniedReachRedis(t *testing.T) {
	for _, test := range []struct {
		name      string
		meanwhile func(t *testing.T, s *cached, c store.Charge)
	}{
		{"flood", func(*testing.T, *cached, store.Charge) {}},
		{"while_denials_are_forgotten", func(_ *testing.T, s *cached, _ store.Charge) { s.Forget() }},
		{"while_others_peek", func(t *testing.T, s *cached, c store.Charge) {
			t.Helper()
			remains(t, s, c)
		}},
		{"while_the_limit_changes", func(t *testing.T, s *cached, c store.Charge) {
			t.Helper()
			c.Limit.Requests++
			c.Hits = 0
			ask(t, s, c)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			look := open(t, urlOf("redis", shared(t).Address()), Options{})
			s := remembering(t, open(t, urlOf("redis", shared(t).Address()), Options{Prefix: look.main.prefix}), time.Minute)
			c := hit("k", perAge(algorithms.FixedWindow, 10))
			c.CountRejected = true
			var total atomic.Int64
			storm(8, 3000, func(n int) {
				c := c
				if n == 0 {
					test.meanwhile(t, s, c)
					return
				}
				c.Hits = int64(n)
				ask(t, s, c)
				total.Add(c.Hits)
			})
			s.redis.Close() // sends the outbox
			if got := count(t, look, c); got != uint64(total.Load()) || s.redis.Stats().LostHits != 0 {
				t.Errorf("Redis counts %d of %d hits: %+v", got, total.Load(), s.redis.Stats())
			}
			if stats := s.Stats(); stats.Denials.Requests == 0 && test.name == "flood" {
				t.Error("nothing was denied from memory")
			}
		})
	}
}

func TestHitsThatCountReachRedisWithoutFurtherRequests(t *testing.T) {
	s, _ := givenRemembering(t, time.Hour, Options{})
	c := hit("k", perAge(algorithms.FixedWindow, 1))
	c.CountRejected = true
	for range 100 {
		ask(t, s, c)
	}
	eventually(t, "Redis has said that it knows of all hits", func() bool { return s.redis.Stats().DeferredHits >= 98 })
	if got := count(t, s.redis, c); got != 100 {
		t.Errorf("Redis counts %d hits; want 100", got)
	}
	if deferred, denied := s.redis.Stats().DeferredHits, s.Stats().Denials.Requests; deferred != 98 || denied != 98 {
		t.Errorf("%d deferred, %d denied; want 98", deferred, denied)
	}
}

// A batch of more hits than one charge can have is no less than all of them.
func TestHitsThatCountAreNotLostWhenTheyAreVeryMany(t *testing.T) {
	look, clock := given(t, Options{})
	redis, _ := given(t, Options{Prefix: look.main.prefix})
	redis.given = clock.now
	s := remembering(t, redis, time.Hour)
	c := hit("k", perAge(algorithms.FixedWindow, 1))
	c.CountRejected, c.Hits = true, algorithms.MaxHits
	for range 10 {
		wants(t, false, s, c)
	}
	redis.Close()
	if got := count(t, look, c); got != 10*algorithms.MaxHits {
		t.Errorf("Redis counts %d hits; want %d", got, uint64(10*algorithms.MaxHits))
	}
}

// Deferred hits go as deep into debt as hits that are sent at once, and no deeper.
func TestHitsThatCountGoAsDeepIntoDebtAsIfTakenAtOnce(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		s, clock := givenRemembering(t, time.Hour, Options{})
		m := model{}
		l := algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Second}
		both := func(hits int64, counted bool) {
			c := hit("k", l)
			c.Hits, c.CountRejected = hits, counted
			admitted, want := m.transaction([]store.Charge{c}, clock.now())
			if got := wants(t, admitted, s, c); got[0] != want[0] {
				t.Errorf("%v: %d hits: got %+v; want %+v", a, hits, got[0], want[0])
			}
		}
		both(10, false)
		clock.sleep(time.Second + 50*time.Millisecond)
		both(8, true)
		for range 40 {
			both(3, true)
			both(1, true)
		}
		s.Forget()
		for range 8 {
			both(0, false)
			both(1, false)
			clock.sleep(300 * time.Millisecond)
		}
	}
}

// Hits that are told late count from when they came.
func TestHitsThatCountAreTakenAtTheirInstant(t *testing.T) {
	for _, a := range []algorithms.Algorithm{algorithms.TokenBucket, algorithms.TokenBucketInteger} {
		s, clock := givenRemembering(t, time.Hour, Options{})
		ban := hit("ban", perAge(algorithms.FixedWindow, 0))
		c := hit("k", algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Second})
		c.CountRejected, c.Hits = true, 5
		wants(t, false, s, c, ban)
		clock.sleep(time.Second) // and it is full again
		wants(t, false, s, c, ban)
		clock.sleep(time.Second) // and again
		if got := remains(t, s, c); got != 10 {
			t.Errorf("%v: %d of 10 remain when it has had a second for 5 hits", a, got)
		}
	}
}

// A refund comes after the hits that it gives back, though it is asked for together with another
// key.
func TestHitsThatCountComeBeforeARefundOfThem(t *testing.T) {
	s, _ := givenRemembering(t, time.Hour, Options{})
	for n := range 100 {
		c, other := hit(fmt.Sprint("k ", n), perAge(algorithms.FixedWindow, 10)), hit(fmt.Sprint("other ", n), perAge(algorithms.FixedWindow, 10))
		c.CountRejected = true
		for range 12 {
			ask(t, s, c) // the last of them is denied from memory
		}
		refund := c
		refund.Hits = -12
		wants(t, true, s, other, refund)
		if got := remains(t, s, c); got != 10 {
			t.Fatalf("%d of 10 remain after 12 hits and a refund of 12", got)
		}
	}
}

func TestHitsOfAWindowAreNotCountedInTheNext(t *testing.T) {
	day := hit("day", algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1, Period: 24 * time.Hour})
	for _, a := range []algorithms.Algorithm{algorithms.FixedWindow, algorithms.SlidingWindowCounter} {
		second := hit("second", algorithms.Limit{Algorithm: a, Requests: 1000, Period: time.Second})
		second.CountRejected = true
		for _, test := range []struct {
			name string
			then func(t *testing.T, s *cached, clock *clock)
		}{
			{"asked_in_the_next", func(*testing.T, *cached, *clock) {}},
			{"denied_in_the_next", func(t *testing.T, s *cached, _ *clock) {
				t.Helper()
				for range 5 {
					wants(t, false, s, second, day)
				}
			}},
			{"denied_in_the_next_and_paid", func(t *testing.T, s *cached, _ *clock) {
				t.Helper()
				for range 5 {
					wants(t, false, s, second, day)
				}
				s.Forget()
				payAll(t, s.redis)
			}},
		} {
			t.Run(fmt.Sprint(a, "_", test.name), func(t *testing.T) {
				s, clock := givenRemembering(t, time.Hour, Options{})
				plain := second
				plain.CountRejected = false
				wants(t, true, s, plain, day)
				for range 8 {
					wants(t, false, s, second, day)
				}
				clock.sleep(2 * time.Second)
				before := s.Stats().Denials.Requests
				test.then(t, s, clock)
				want := uint32(1000 - (s.Stats().Denials.Requests - before))
				if got := remains(t, s, plain); got != want {
					t.Errorf("%d of 1000 remain in a window of %d hits", got, 1000-want)
				}
			})
		}
	}
}

// Hits wait in the outbox while Redis is away, and nothing is sent.
func TestOutboxSendsWhenRedisIsBack(t *testing.T) {
	r := ownRedis(t)
	s := open(t, urlOf("redis", r.Address()), Options{})
	c := hit("k", perAge(algorithms.FixedWindow, 10))
	settled(t, s, c)
	r.Kill()
	eventually(t, "Redis is away", func() bool {
		return errors.Is(s.Peek(t.Context(), []store.Charge{c}, make([]algorithms.Decision, 1)), ErrUnavailable)
	})
	for range 7 {
		s.Later(&c, s.Now(algorithms.Limit{}))
	}
	time.Sleep(5 * outboxTick)
	if stats := s.Stats(); stats.DeferredHits+stats.LostHits+stats.UnknownHits != 0 || stats.OwedKeys != 1 || !s.idle() {
		t.Errorf("while Redis is away: %+v; want one key that waits", stats)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := r.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the hits are sent", func() bool { return s.Stats().DeferredHits == 7 })
	if got := count(t, s, c); got != 7 || s.Stats().LostHits != 0 || s.Stats().OwedKeys != 0 {
		t.Errorf("Redis counts %d of 7 hits: %+v", got, s.Stats())
	}
}

func TestOutboxCountsWhatItDrops(t *testing.T) {
	r := ownRedis(t)
	s := open(t, urlOf("redis", r.Address()), Options{Timeout: 50 * time.Millisecond})
	settled(t, s, hit("k", perAge(algorithms.FixedWindow, 10)))
	r.Kill()
	const keys = outboxShards * owed.MostHits
	at := algorithms.Instant(time.Now().UnixNano())
	for n := range 2 * keys {
		c := hit(fmt.Sprint(n), perAge(algorithms.FixedWindow, 10))
		c.Hits = 2
		s.Later(&c, at)
	}
	odd := hit("odd", algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1, Period: time.Second + 1})
	s.Later(&odd, at) // a period that Redis cannot keep
	s.Close()
	if stats := s.Stats(); stats.LostHits != 4*keys+1 || stats.DeferredHits != 0 {
		t.Errorf("%+v; want %d hits lost", stats, 4*keys+1)
	}
	if !s.idle() || s.Stats().OwedKeys != 0 {
		t.Errorf("%d calls and %d keys are left after Close", s.calls, s.Stats().OwedKeys)
	}
}

// Reset makes a key full, also with hits in the outbox.
func TestResetForgetsHitsThatRedisDoesNotKnowOf(t *testing.T) {
	s, _ := givenRemembering(t, time.Hour, Options{})
	for n := range 10 {
		c := hit(fmt.Sprint(n), perAge(algorithms.FixedWindow, 5))
		c.CountRejected = true
		for range 20 {
			ask(t, s, c)
		}
		if _, err := s.Reset(t.Context(), []store.Charge{c}); err != nil {
			t.Fatal(err)
		}
		if got := remains(t, s, c); got != 5 {
			t.Errorf("%d of 5 remain after Reset", got)
		}
	}
}
