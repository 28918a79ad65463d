package algorithms

import (
	"math/rand/v2"
	"testing"
	"time"
)

// mostInAPeriod returns the most hits of any half-open interval of a period. The instants ascend.
func mostInAPeriod(at []Instant, period time.Duration) (most int) {
	first := 0
	for i := range at {
		for at[i].Sub(at[first]) >= period {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// The worst case of a sliding count: all hits at the end of a window, and then each hit that
// passes.
func TestASlidingCountAdmitsTwiceItsLimitLessOneInTheWorstPeriod(t *testing.T) {
	l := Limit{Algorithm: SlidingWindowCounter, Requests: 100, Period: time.Minute}
	var s State
	var d Decision
	var passed []Instant
	for now := Instant(time.Minute - time.Millisecond); now < Instant(3*time.Minute); now = now.Add(time.Millisecond) {
		for {
			if s, d = Take(l, s, now, 1, false); !d.Allowed {
				break
			}
			passed = append(passed, now)
		}
	}
	if got := mostInAPeriod(passed, l.Period); got != 199 {
		t.Errorf("%d of 100 hits passed in the worst minute, want 199", got)
	}
}

// No pattern of single hits gets more.
func TestASlidingCountNeverAdmitsTwiceItsLimitInAPeriod(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 23))
		l := Limit{Algorithm: SlidingWindowCounter, Requests: 1 + r.Uint32N(12), Period: time.Second}
		var s State
		var d Decision
		var passed []Instant
		for now := Instant(0); now < Instant(20*time.Second); {
			for range 1 + r.IntN(40) {
				if s, d = Take(l, s, now, 1, false); d.Allowed {
					passed = append(passed, now)
				}
			}
			left := time.Second - time.Duration(now)%time.Second
			now = now.Add([]time.Duration{
				time.Nanosecond, d.RetryAfter, left - 1, left, time.Duration(r.Int64N(int64(time.Second))), time.Duration(r.Int64N(int64(time.Second / 10))),
			}[r.IntN(6)])
		}
		if got, most := mostInAPeriod(passed, l.Period), int(2*l.Requests-1); got > most {
			t.Fatalf("seed %d: %d hits passed in a period of a limit of %d, want at most %d", seed, got, l.Requests, most)
		}
	}
}
