package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// played is a run of clients against a service that a test makes up.
type played struct {
	start  time.Time
	limits []algorithms.Limit
	fault  outage
	run    []exchange
}

// play lets clients send requests for one limit of each algorithm for ten seconds. The service is
// one process, but decide may change its answers. The fault lasts from 3 s to 6 s.
func play(rate int, decide func(at time.Duration, key int, should bool) outcome) *played {
	p := &played{start: time.Unix(1_800_000_000, 0)}
	p.fault = outage{p.start.Add(3 * time.Second), p.start.Add(6 * time.Second)}
	random := rand.New(rand.NewPCG(1, 2))
	for _, a := range algorithms.RateAlgorithms() {
		l := algorithms.Limit{Algorithm: a, Requests: 100, Period: time.Second}
		if a == algorithms.TokenBucket {
			l.Burst = 100
		}
		key := len(p.limits)
		p.limits = append(p.limits, l)
		var state algorithms.State
		var log algorithms.Log
		for n := range 10 * rate {
			at := time.Duration(2*n+1) * time.Second / time.Duration(2*rate) // no span lies in two windows
			now := algorithms.Instant(p.start.Add(at).UnixNano())
			should := false
			if a == algorithms.SlidingWindowLog {
				should = log.Take(l, now, 1, false).Allowed
			} else {
				var d algorithms.Decision
				state, d = algorithms.Take(l, state, now, 1, false)
				should = d.Allowed
			}
			half := time.Duration(random.Int64N(int64(500 * time.Microsecond)))
			p.run = append(p.run, exchange{
				sent: p.start.Add(at - half), received: p.start.Add(at + half), keys: []int{key}, outcome: decide(at, key, should),
			})
		}
	}
	random.Shuffle(len(p.run), func(i, j int) { p.run[i], p.run[j] = p.run[j], p.run[i] })
	return p
}

const deadline = 20 * time.Millisecond

func (p *played) judge() verdict { return judge(p.limits, p.run, p.fault, deadline) }

// answered returns the outcome of a decision.
func answered(pass bool) outcome {
	if pass {
		return allowed
	}
	return denied
}

func TestOneProcessIsJudgedFaultless(t *testing.T) {
	for _, rate := range []int{50, 300} {
		v := play(rate, func(_ time.Duration, _ int, should bool) outcome { return answered(should) }).judge()
		if v.over != 0 || v.during != 0 || v.after != 0 || v.recovery != 0 || v.errors+v.unreached+v.late != 0 || v.admitted == 0 {
			t.Errorf("%d requests per second: %+v", rate, v)
		}
	}
}

// A service that admits one in fifty denied requests passes each limit by about two percent.
func TestHitsBeyondTheLimitAreFound(t *testing.T) {
	for key, a := range algorithms.RateAlgorithms() {
		extra, n := 0, 0
		v := play(300, func(_ time.Duration, of int, should bool) outcome {
			if !should && of == key {
				if n++; n%50 == 0 {
					extra++
					return allowed
				}
			}
			return answered(should)
		}).judge()
		if v.over < extra/2 || v.over > again(a)*extra || v.worst < 1 || v.worstKey != key || v.worstOver != v.over {
			t.Errorf("%v: %d hits were too many; judged %+v", a, extra, v)
		}
	}
}

// A single hit more in one window, of ten thousand decisions.
func TestASingleHitTooManyIsFound(t *testing.T) {
	for key, a := range algorithms.RateAlgorithms() {
		done := false
		v := play(300, func(at time.Duration, of int, should bool) outcome {
			if !should && of == key && at > 4500*time.Millisecond && !done {
				done = true
				return allowed
			}
			return answered(should)
		}).judge()
		if v.over < 1 || v.over > again(a) {
			t.Errorf("%v: %+v; want one hit over", a, v)
		}
	}
}

// again returns how often a hit too many counts. A service that forgets the hit also passes the
// next estimate.
func again(a algorithms.Algorithm) int {
	if a == algorithms.SlidingWindowCounter {
		return 2
	}
	return 1
}

// A fleet that uses a quarter of each limit while Redis is away, and for a second and a half
// afterwards.
func TestDenialsOfAFleetThatDividesTooLongAreFound(t *testing.T) {
	n := 0
	v := play(50, func(at time.Duration, _ int, should bool) outcome {
		if at >= 3*time.Second && at < 7500*time.Millisecond {
			n++
			return answered(should && n%4 == 0)
		}
		return answered(should)
	}).judge()
	if v.during < 74 || v.during > 76 || v.after < 27 || v.after > 29 || v.over != 0 {
		t.Errorf("%+v; want 75 %% denied during the fault, and 28 %% after", v)
	}
	if v.recovery < 1300*time.Millisecond || v.recovery > 1600*time.Millisecond {
		t.Errorf("recovery: got %v; want 1.5 s", v.recovery)
	}
}

func TestAFleetThatNeverRecoversIsFound(t *testing.T) {
	n := 0
	v := play(50, func(at time.Duration, _ int, should bool) outcome {
		n++
		return answered(should && (at < 3*time.Second || n%10 > 0))
	}).judge()
	if v.recovery != neverWithin {
		t.Errorf("recovery: got %v; want none", v.recovery)
	}
}

// Hits that a fleet admitted too early do not make up for a key that is denied.
func TestAKeyWithTooManyHitsMakesUpForNoOther(t *testing.T) {
	v := play(50, func(_ time.Duration, key int, should bool) outcome { return answered(should && key != 0) }).judge()
	if v.after < 19 || v.lacksKey != 0 || v.lacks < 100 {
		t.Errorf("%+v; want a fifth of the hits denied, and the key named", v)
	}
}

func TestRequestsWithoutAVerdictAreErrors(t *testing.T) {
	n := 0
	p := play(50, func(time.Duration, int, bool) outcome {
		n++
		return [...]outcome{allowed, failed, unreached, allowed}[n%4]
	})
	for i := range p.run {
		if i%100 == 0 {
			p.run[i].received = p.run[i].sent.Add(deadline + time.Millisecond)
		}
	}
	v := p.judge()
	if v.errors != n/4 || v.unreached != n/4 || v.late == 0 || v.slowest != deadline+time.Millisecond {
		t.Errorf("%d requests: %+v", n, v)
	}
}

func TestRequestsInFlightAreCountedFromTheirAnswerToTheirEnd(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }
	limits := []algorithms.Limit{{Algorithm: algorithms.Concurrency, Requests: 2}}
	holds := []hold{{0, at(0), at(100)}, {0, at(50), at(150)}, {0, at(100), at(200)}}
	if most, long := crowd(limits, holds); most != 0 || long != 0 {
		t.Errorf("two of two in flight: got %d too many, for %v", most, long)
	}
	holds = append(holds, hold{0, at(60), at(90)}, hold{0, at(70), at(80)})
	slices.Reverse(holds)
	if most, long := crowd(limits, holds); most != 2 || long != 30*time.Millisecond {
		t.Errorf("four of two in flight: got %d too many, for %v; want 2, for 30ms", most, long)
	}
}
