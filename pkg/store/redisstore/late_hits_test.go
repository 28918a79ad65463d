package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Hits that Redis is told of later leave no more room than hits that it was told of at once, at
// each later instant.
func TestHitsChargedLaterLeaveNoMoreRoomThanHitsChargedAtOnce(t *testing.T) {
	for _, a := range storetest.EveryRate() {
		for seed := range uint64(12) {
			t.Run(fmt.Sprint(a, "_", seed), func(t *testing.T) {
				r := newRand(seed)
				s, clock := given(t, Options{})
				l := algorithms.Limit{Algorithm: a, Requests: 20, Period: time.Second}
				if a == algorithms.TokenBucket {
					l.Burst = 10 + r.Uint32N(50)
				}
				told, atOnce := hit("told", l), hit("at once", l)
				exact, before := 0, r.IntN(10)
				for range before { // Redis knows of these
					admitted, _ := ask(t, s, atOnce)
					if told.Hits = 1; admitted {
						ask(t, s, told)
					}
					clock.sleep(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
				}
				for range 20 + r.IntN(60) { // Redis is away for this process, which decides as Redis would
					atOnce.Hits = 1 + r.Int64N(3)
					if admitted, _ := ask(t, s, atOnce); admitted {
						exact++
						told.Hits = atOnce.Hits
						s.Later(&told, clock.now(), store.Part{})
					}
					clock.sleep(time.Duration(r.Int64N(int64(150 * time.Millisecond))))
				}
				s.sendAll()
				eventually(t, "the hits are told", func() bool { return s.idle() && s.Stats().OwedKeys == 0 })
				for range 30 {
					if more, want := remains(t, s, told), remains(t, s, atOnce); more > want {
						t.Fatalf("%d remain, and %d of hits that were charged at once", more, want)
					}
					clock.sleep(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
				}
				clock.sleep(12 * time.Second)
				if got := remains(t, s, told); uint64(got) != l.Capacity() {
					t.Errorf("%d of %d remain in the end", got, l.Capacity())
				}
				if exact == 0 {
					t.Error("nothing was admitted")
				}
			})
		}
	}
}

// Two returns of one key count as of their own instants.
func TestHitsGivenBackToABucketAreThoseOfTheirInstant(t *testing.T) {
	for _, a := range []algorithms.Algorithm{algorithms.TokenBucket, algorithms.TokenBucketInteger} {
		s, clock := given(t, Options{})
		c := hit("k", algorithms.Limit{Algorithm: a, Requests: 100, Period: time.Second})
		c.Hits = 40
		first := clock.now()
		wants(t, true, s, c)
		clock.sleep(100 * time.Millisecond) // gains 10
		second := clock.now()
		wants(t, true, s, c)
		back := c
		back.Hits = -20
		s.Later(&back, first, store.Part{})
		s.Later(&back, second, store.Part{})
		want := uint32(30 + 10 + 20) // the first 20 hits less a gain of 10, and all of the second 20
		if a == algorithms.TokenBucketInteger {
			want-- // a gain between two ticks counts as a whole one
		}
		if got := remains(t, s, c); got != want {
			t.Errorf("%v: %d remain; want %d", a, got, want)
		}
	}
}

// A told state has the hits that Redis does not know of.
func TestToldStatesHaveTheHitsThatAreOwed(t *testing.T) {
	for _, a := range storetest.EveryRate() {
		s, _ := given(t, Options{})
		c := hit("k", perAge(a, 10))
		wants(t, true, s, c)
		late := s.transaction(take, s.locate(&c, 0), s.here(), []store.Charge{c})
		late.status.Store(underWay)
		(&unanswered{errLate, []*transaction{late}}).Instead([]int64{3}, nil)
		var left store.State
		c.Left = &left
		d := wants(t, true, s, c)[0]
		if a.HasState() {
			d = left.Take(c.Limit, left.Now, 0, false)
		}
		if d.Remaining != 10-2-3 {
			t.Errorf("%v: %d of 10 remain after 2 hits here and 3 that are owed", a, d.Remaining)
		}
		late.err, late.refused = errLate, true
		late.end()
		c.Left = nil // left stays as the Take told it
		if got := remains(t, s, c); got != 10-2-3 {
			t.Errorf("%v: %d of 10 remain after the hits were charged", a, got)
		}
		if left.Now == 0 || s.Stats().OwedKeys != 0 {
			t.Errorf("%v: told %+v, %+v", a, left, s.Stats())
		}
	}
}
