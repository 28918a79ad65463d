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

// Also when they are more than one charge can have.
func TestHitsOfTheOutboxReachRedisWhileOthersAsk(t *testing.T) {
	look := open(t, urlOf("redis", shared(t).Address()), Options{})
	s := open(t, urlOf("redis", shared(t).Address()), Options{Prefix: look.main.prefix})
	c := hit("k", perAge(algorithms.FixedWindow, 10))
	var total atomic.Int64
	storm(8, 1000, func(n int) {
		c := c
		switch n {
		case 0:
			remains(t, s, c)
		case 1:
			c.Limit.Requests++
			c.Hits = 0
			ask(t, s, c)
		default:
			if c.Hits = int64(n); total.Load() == 0 {
				c.Hits = 3 * algorithms.MaxHits
			}
			s.Later(&c, s.Now(algorithms.Limit{}))
			total.Add(c.Hits)
		}
	})
	s.Close() // sends the outbox
	if got := count(t, look, c); got != uint64(total.Load()) || s.Stats().LostHits != 0 {
		t.Errorf("Redis counts %d of %d hits: %+v", got, total.Load(), s.Stats())
	}
}

func TestResetForgetsHitsThatRedisDoesNotKnowOf(t *testing.T) {
	s, clock := given(t, Options{})
	for n := range 10 {
		c := hit(fmt.Sprint(n), perAge(algorithms.FixedWindow, 5))
		for range 20 {
			s.Later(&c, clock.now())
		}
		if _, err := s.Reset(t.Context(), []store.Charge{c}); err != nil {
			t.Fatal(err)
		}
		if got := remains(t, s, c); got != 5 {
			t.Errorf("%d of 5 remain after Reset", got)
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
