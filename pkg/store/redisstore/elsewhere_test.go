package redisstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// decideElsewhere has a request decided without Redis, which must not answer, and says so. The
// caller waits for 30 ms.
func decideElsewhere(t *testing.T, s *Store, together bool, hits []int64, charges ...store.Charge) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Millisecond)
	defer cancel()
	all := []store.Transaction{{Ctx: ctx, Charges: charges, Decisions: make([]algorithms.Decision, len(charges))}}
	if together {
		s.TakeAll(all, func([]int) {})
	} else {
		_, all[0].Err = store.Take(ctx, s, charges, all[0].Decisions)
	}
	u, is := errors.AsType[store.Unanswered](all[0].Err)
	if !is {
		t.Fatalf("%v: %T", all[0].Err, all[0].Err)
	}
	u.Instead(hits, nil)
}

// told waits until Redis knows of all hits.
func told(t *testing.T, s *Store) {
	t.Helper()
	eventually(t, "Redis knows of all hits", func() bool { return s.Stats().OwedKeys == 0 && s.idle() })
}

// The timeout of the store is long, as a call without an answer for that long has no known outcome.
// Callers are faster, so no caller flies.
func TestHitsDecidedWhileRedisStandsStillAreCharged(t *testing.T) {
	r := ownRedis(t)
	s := open(t, urlOf("redis", r.Address()), Options{})
	for _, a := range storetest.EveryRate() {
		for _, together := range []bool{false, true} {
			c := hit(fmt.Sprint("k", together), perAge(a, 100))
			settled(t, s, c)
			wants(t, true, s, c)
			paused(t, r, func() {
				for range 5 {
					decideElsewhere(t, s, together, []int64{2}, c)
				}
				decideElsewhere(t, s, together, []int64{0}, c)
			})
			told(t, s)
			want := uint32(100 - 1 - 10)
			got := remains(t, s, c)
			if a == algorithms.TokenBucketInteger && got == want-1 {
				got = want // Redis ran the last request just in time, and a hit that is given back may have been gained meanwhile
			}
			if got != want {
				t.Errorf("%v, together %v: %d of 100 remain after 1 hit, and 10 that were decided elsewhere", a, together, got)
			}
		}
	}
	if stats := s.Stats(); stats.UnknownHits != 0 || stats.LostHits != 0 {
		t.Errorf("%+v; want no unknown outcome", stats)
	}
}

func TestHitsDecidedWhileRedisIsAwayAreChargedWhenItIsBack(t *testing.T) {
	r := ownRedis(t)
	s := open(t, urlOf("redis", r.Address()), Options{})
	c := hit("k", perAge(algorithms.FixedWindow, 100))
	settled(t, s, c)
	r.Kill()
	for range 5 {
		decideElsewhere(t, s, false, []int64{1}, c)
		decideElsewhere(t, s, true, []int64{1}, c)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := r.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	told(t, s)
	if got := count(t, s, c); got != 10 {
		t.Errorf("Redis counts %d of 10 hits: %+v", got, s.Stats())
	}
}

// A Redis whose memory is full writes nothing. Hits count when it has room again.
func TestHitsDecidedWhileRedisWritesNothingAreChargedOnce(t *testing.T) {
	for name, refuse := range map[string][2][]string{
		"full memory":    {{"CONFIG", "SET", "maxmemory", "1"}, {"CONFIG", "SET", "maxmemory", "0"}},
		"a replica":      {{"REPLICAOF", "127.0.0.1", "1"}, {"REPLICAOF", "NO", "ONE"}},
		"too few copies": {{"CONFIG", "SET", "min-replicas-to-write", "1"}, {"CONFIG", "SET", "min-replicas-to-write", "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := ownRedis(t)
			s := open(t, urlOf("redis", r.Address()), Options{})
			do := func(words []string) {
				t.Helper()
				if _, err := r.Do(t.Context(), words...); err != nil {
					t.Fatal(err)
				}
			}
			for _, a := range storetest.EveryRate() {
				c := hit("k", perAge(a, 100))
				settled(t, s, c)
				do(refuse[0])
				for range 3 {
					decideElsewhere(t, s, false, []int64{2}, c)
				}
				time.Sleep(3 * outboxTick)
				do(refuse[1])
				told(t, s)
				settled(t, s, c)
				if got := remains(t, s, c); got != 94 {
					t.Errorf("%v: %d of 100 remain after 6 hits", a, got)
				}
			}
			if stats := s.Stats(); stats.UnknownHits != 0 || stats.LostHits != 0 {
				t.Errorf("%+v; want no unknown outcome", stats)
			}
		})
	}
}

// Of a request over two servers, one is reserved and given back, and the other may have been
// reserved late. Each then has the hits that were decided elsewhere, and no others.
func TestHitsOfARequestOverTwoServersAreChargedOnBoth(t *testing.T) {
	r := ownRedis(t)
	o := Options{Seconds: &Target{URLs: urlOf("redis", r.Address())}}
	patient := open(t, urlOf("redis", shared(t).Address()), o) // for questions that a busy machine must answer
	o.Timeout, o.Prefix = 100*time.Millisecond, patient.main.prefix
	s := open(t, urlOf("redis", shared(t).Address()), o)
	for _, a := range storetest.EveryRate() {
		day, second := hit("day", perAge(a, 100)), hit("second", algorithms.Limit{Algorithm: a, Requests: 100, Period: time.Second})
		second.Rule = 1
		settled(t, s, day)
		settled(t, s, second)
		paused(t, r, func() {
			decideElsewhere(t, s, false, []int64{5, 3}, day, second)
			decideElsewhere(t, s, true, []int64{0, 0}, day, second)
		})
		told(t, s)
		if got := remains(t, patient, day); got != 95 {
			t.Errorf("%v: %d of 100 remain of the day after 5 hits", a, got)
		}
		eventually(t, "the second is over", func() bool { return remains(t, patient, second) == 100 })
	}
	if stats := s.Stats(); stats.LostHits != 0 || stats.UnknownHits != 0 {
		t.Errorf("%+v; want no hit lost, as each is counted once", stats)
	}
}

// While slots move, Redis refuses calls about keys on two nodes without running the script. Hits
// that it refused are told once, and hits to give back are not lost.
func TestHitsThatRedisRefusesWhileSlotsMoveAreToldLater(t *testing.T) {
	for _, hits := range []int64{3, -3} {
		synctest.Test(t, func(t *testing.T) {
			f := farBy(time.Millisecond)
			s := away(t, f, Options{})
			moving := "TRYAGAIN Multiple keys request during rehashing of slot"
			f.error.Store(&moving)
			c := hit("k", perAge(algorithms.FixedWindow, 10))
			c.Hits = hits
			s.Later(&c, s.Now(algorithms.Limit{}), store.Part{})
			time.Sleep(time.Second)
			f.error.Store(nil)
			time.Sleep(2 * outboxMaxWait)
			if stats := s.Stats(); f.told.Load() != hits || stats.UnknownHits+stats.LostHits != 0 {
				t.Errorf("Redis was told of %d hits, want %d; %+v", f.told.Load(), hits, stats)
			}
		})
	}
}

// The race detector finds a caller that reads fields while the answer to its call changes them.
func TestAHolderIsDecidedElsewhereWhileItsAnswerComes(t *testing.T) {
	r := ownRedis(t)
	s := open(t, urlOf("redis", r.Address()), Options{})
	limit := perAge(algorithms.TokenBucket, 100)
	c := hit("k", limit)
	settled(t, s, c)
	for n := range 6 {
		holder := begin("k", limit, fmt.Sprint("holder ", n), 1)
		paused(t, r, func() { decideElsewhere(t, s, n%2 == 0, []int64{1}, holder) })
		holder.Hold.Phase = algorithms.HoldBegun
		s.HoldLater(&holder, s.nowOf(false))
		toldHolds(t, s)
	}
	c.Hits = 95
	wants(t, false, s, c) // each of six holders has begun once
	c.Hits = 94
	wants(t, true, s, c)
}
