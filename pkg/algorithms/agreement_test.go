package algorithms

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEveryDecisionEqualsTheReference(t *testing.T) {
	holdsOf(t, 200, RateAlgorithms(), func(t failer, c chooser, a Algorithm) { compare(t, c, a, false) })
}

func TestEveryDecisionEqualsTheReferenceAcrossLimitChanges(t *testing.T) {
	holdsOf(t, 200, RateAlgorithms(), func(t failer, c chooser, a Algorithm) { compare(t, c, a, true) })
}

// compare walks a key and its reference through the same charges, and changes of the limit where
// changes is set.
func compare(t failer, c chooser, a Algorithm, changes bool) {
	t.Helper()
	c, steps := walk(c, 25)
	l := chooseLimit(c, a)
	k, r := newKey(l), newReference(l)
	var h history
	var d Decision
	now := chooseStart(c)
	h.note("limit %+v", l)
	for range steps {
		now = chooseNext(c, k.limit, now, d)
		if changes && c.upTo("change", 4) == 0 {
			// IdleAt is held at the last instant, at which a key may therefore not be fresh yet; nobody
			// changes limits then.
			now = min(now, math.MaxInt64-1)
			to := chooseChange(c, k.limit)
			h.note("%d change to %+v", now, to)
			k.change(to, now)
			r.change(to, now)
		}
		hits, countRejected := chooseHits(c, k.limit, d, true), c.upTo("count rejected", 2) == 1
		h.note("%d take %d %v, before it %v", now, hits, countRejected, k)
		want := r.take(now, hits, countRejected)
		got := k.take(now, hits, countRejected)
		if got != want {
			t.Fatalf("decision differs from the reference's:\n%s\n(-reference +got)\n%s", h.String(), cmp.Diff(want, got))
		}
		d = got
		remains(t, k, now, d)
	}
}

// chooseChange returns a limit to change to: mostly of the same algorithm and period.
func chooseChange(c chooser, from Limit) Limit {
	a := from.Algorithm
	if c.upTo("other algorithm", 7) == 0 {
		a = RateAlgorithms()[c.upTo("algorithm", uint64(len(RateAlgorithms())-1))]
	}
	to := chooseLimit(c, a)
	if c.upTo("other period", 7) != 0 {
		to.Period = from.Period
	}
	return to
}

// Extremes of everything at once, exhaustively, as a random walk may miss some.
func TestTheLargestValidLimitsAgreeWithTheReference(t *testing.T) {
	instants := []Instant{
		math.MinInt64, math.MinInt64 + 1, math.MinInt64 + Instant(MaxPeriod), -1, 0, math.MaxInt64 - Instant(MaxPeriod), math.MaxInt64 - 1, math.MaxInt64,
	}
	hits := []int64{math.MaxInt64, 1, math.MinInt64}
	for _, a := range RateAlgorithms() {
		t.Run(a.String(), func(t *testing.T) {
			for _, l := range extremeLimits(a) {
				for _, first := range instants {
					for _, second := range instants {
						for _, n := range hits {
							k, r := newKey(l), newReference(l)
							steps := []struct {
								now           Instant
								hits          int64
								countRejected bool
							}{{first, int64(l.Capacity()), false}, {first, MaxHits, true}, {second, n, false}, {second, n, true}, {first, n, true}}
							for i, s := range steps {
								got, want := k.take(s.now, s.hits, s.countRejected), r.take(s.now, s.hits, s.countRejected)
								if got != want {
									t.Fatalf("%+v: step %d of %+v: (-reference +got)\n%s", l, i, steps, cmp.Diff(want, got))
								}
							}
						}
					}
				}
			}
		})
	}
}

// extremeLimits returns the valid limits of an algorithm with the smallest and largest fields.
func extremeLimits(a Algorithm) []Limit {
	var all []Limit
	for _, requests := range []uint32{0, 1, math.MaxUint32} {
		for _, period := range []time.Duration{MinPeriod, MaxPeriod} {
			l := Limit{Algorithm: a, Requests: requests, Period: period}
			all = append(all, l)
			if a == TokenBucket && requests > 0 {
				l.Burst = math.MaxUint32
				all = append(all, l)
				l.Burst = 1
				all = append(all, l)
			}
		}
	}
	return all
}
