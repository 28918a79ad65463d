package algorithms

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A key whose limit changes all the time gets the decisions of Change and Take, with any state in
// between.
func TestTakeAsDecidesAsChangeAndTakeDo(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		algorithm := rapid.SampledFrom([]Algorithm{FixedWindow, TokenBucket, SlidingWindowCounter, TokenBucketInteger}).Draw(rt, "algorithm")
		was, s, now := Limit{Algorithm: algorithm, Requests: 5, Period: time.Second}, State{}, Instant(1_000_000_000_000)
		for range 30 {
			l := Limit{Algorithm: algorithm, Requests: rapid.Uint32Range(0, 9).Draw(rt, "requests"), Period: time.Second}
			if algorithm == TokenBucket && l.Requests > 0 {
				l.Burst = rapid.Uint32Range(0, 30).Draw(rt, "burst")
			}
			now += Instant(rapid.Int64Range(0, 3e9).Draw(rt, "pause"))
			hits, count := rapid.Int64Range(-5, 12).Draw(rt, "hits"), rapid.Bool().Draw(rt, "count_rejected")
			carried := s
			if was != l { // Change to the same limit may move the mark of a refill by a nanosecond
				carried = Change(was, l, s, now)
			}
			_, want := Take(l, carried, now, hits, count)
			var got Decision
			if s, was, got = TakeAs(was, l, s, now, hits, count); got != want {
				rt.Fatalf("hits %d under %+v: %+v; want %+v", hits, l, got, want)
			}
		}
	})
}

// Property 1 of a bucket whose burst changes from charge to charge: never more than the largest
// burst and the rate.
func TestABucketWhoseBurstChangesIsNeverOver(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const most = 100
		l := Limit{Algorithm: TokenBucket, Requests: 1, Period: time.Second, Burst: most}
		was, s, start := l, State{}, Instant(1_000_000_000_000)
		now, admitted := start, int64(0)
		for range 60 {
			l.Burst = rapid.SampledFrom([]uint32{1, 2, 10, most}).Draw(rt, "burst")
			hits := rapid.SampledFrom([]int64{0, 1, 2, int64(l.Burst)}).Draw(rt, "hits")
			now += Instant(rapid.Int64Range(0, 5e9).Draw(rt, "pause"))
			var d Decision
			if s, was, d = TakeAs(was, l, s, now, hits, false); d.Allowed {
				admitted += hits
			}
			if IdleAt(was, s) <= now {
				s = State{} // as a sweep forgets it
			}
			if allowed := most + int64(now.Sub(start)/time.Second); admitted > allowed {
				rt.Fatalf("after %v: admitted %d; want at most %d", now.Sub(start), admitted, allowed)
			}
		}
	})
}

func TestABanLeavesAUsedUpLimitUsedUp(t *testing.T) {
	for _, a := range RateAlgorithms() {
		if !a.HasState() {
			continue
		}
		for _, counted := range []bool{false, true} {
			l, now := Limit{Algorithm: a, Requests: 100, Period: 24 * time.Hour}, Instant(1_000_000_000_000)
			ban := l
			ban.Requests = 0
			s, was, d := TakeAs(l, l, State{}, now, 100, counted)
			if !d.Allowed {
				t.Fatalf("%v: %+v", a, d)
			}
			if s, was, d = TakeAs(was, ban, s, now, 1, counted); d.Allowed {
				t.Errorf("%v: a ban allowed a hit", a)
			}
			if _, _, d = TakeAs(was, l, s, now, 1, counted); d.Allowed {
				t.Errorf("%v, count_rejected %t: a hit passes after a ban, though the limit is used up", a, counted)
			}
		}
	}
}
