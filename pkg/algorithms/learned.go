package algorithms

import "time"

// Learned learns a quantile of the hits of its charges. Learned limits nothing, so each charge is
// allowed, and rule files cannot name it. See [Learn] for its limit.
//
// Remaining of a decision is the quantile after the charge, rounded up to whole hits. Remaining is
// 0 until the key has learned [LearnedFrom] charges. ResetAfter is the wait until the key is
// forgotten, and 0 for a key that has learned nothing. Hits of 0 and refunds ask, and teach
// nothing.
//
// The quantile of the first LearnedFrom charges is their largest hits. Each later charge moves it.
// Hits above the quantile p raise its logarithm by p/8, and other hits lower it by (1-p)/8. So of
// any n charges the quantile covers the part p, up to 8/n times the change of the logarithm. (Below
// 1 hit the quantile does not fall, and covers more.)
//
// The formula is quantile tracking, for the logarithm of the hits. Angelopoulos, Candès and
// Tibshirani, "Conformal PID Control for Time Series Prediction" (2023), section 2.1.
const Learned Algorithm = 9

// LearnedFrom is how many charges a key has learned when it tells a quantile.
const LearnedFrom = 20

// LearnedLife is how long a key remembers after the last charge with hits. A key without a quantile
// yet remembers a thirtieth of that time.
const LearnedLife = 30 * 24 * time.Hour

// Bounds of the quantile of [Learn], in thousandths.
const (
	MinQuantile = 500
	MaxQuantile = 999
)

// Learn returns the limit of Learned for a quantile in thousandths, from MinQuantile to
// MaxQuantile. A key that changes its quantile goes on from the hits that it has learned.
func Learn(thousandths uint32) Limit {
	return Limit{Algorithm: Learned, Requests: thousandths, Period: LearnedLife}
}

// learned keeps the quantile in a, in units of 1/learnedUnit hit, and the number of the charges in
// b, up to LearnedFrom.
type learned direct

const (
	learnedUnit  = 1 << 20
	learnedSteps = 8 // a miss and a hit together move the logarithm by 1/learnedSteps
)

func (learned) name() string { return "learned" }

func (k learned) take(l Limit, s State, now Instant, hits int64, _ Excess) (State, Decision) {
	d := Decision{Allowed: true}
	if !s.Unused() && k.idleAt(l, s) <= now {
		s = State{}
	}
	if hits > 0 {
		s = State{last: max(s.last, now), a: learnedAfter(l, s, uint64(min(hits, MaxHits))), b: min(s.b+1, LearnedFrom)}
	}
	if s.Unused() {
		return s, d
	}
	if s.b >= LearnedFrom {
		d.Remaining = learnedHits(s.a)
	}
	d.ResetAfter = k.idleAt(l, s).Sub(max(s.last, now))
	return s, d
}

// learnedHits returns a quantile in hits, rounded up.
func learnedHits(quantile uint64) uint64 { return (quantile + learnedUnit - 1) / learnedUnit }

// learnedAfter returns the quantile after a charge. A factor (2+x)/(2-x) stands for e^x. The
// logarithm of the factor is larger than x by a part x*x/12, at most 0.13 %.
func learnedAfter(l Limit, s State, hits uint64) uint64 {
	if s.b < LearnedFrom {
		return max(s.a, hits*learnedUnit)
	}
	const most = 2 * learnedSteps * 1000
	p := uint64(l.Requests)
	if hits > learnedHits(s.a) {
		return min(product(s.a, most+p).floorDiv(most-p), MaxHits*learnedUnit)
	}
	p = 1000 - p
	return max(product(s.a, most-p).floorDiv(most+p), learnedUnit)
}

func (learned) idleAt(l Limit, s State) Instant {
	if s.b < LearnedFrom {
		return s.last.Add(l.Period / 30)
	}
	return s.last.Add(l.Period)
}

func (learned) change(_, _ Limit, s State, _ Instant) State { return s }

func (learned) realign(_ Limit, s State, _ Instant, step time.Duration) State {
	return State{last: s.last.Moved(step), a: s.a, b: s.b}
}

func (learned) clamp(_ Limit, s State, now Instant) State {
	return State{
		last: min(s.last, now), a: min(max(s.a, learnedUnit), MaxHits*learnedUnit), b: min(s.b, LearnedFrom),
	}
}

func (learned) content(Limit, State, Instant) wide { return wide{} }

// A record holds the instant of the last charge, the quantile and the number of the charges.
func (learned) layout() string { return "771" }

func (learned) record(_ Limit, s State) numbers { return numbers{s.last.ticks(), s.a, s.b} }

func (learned) restore(l Limit, n numbers) (State, Limit) {
	return State{last: instantOf(n[0]), a: n[1], b: n[2]}, l
}
