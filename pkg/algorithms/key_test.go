package algorithms

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// key is one key under test, in whichever way its algorithm keeps state.
type key struct {
	limit Limit
	state State
	log   Log
}

func newKey(l Limit) *key { return &key{limit: l} }

func (k *key) take(now Instant, hits int64, countRejected bool) (d Decision) {
	if k.limit.Algorithm == SlidingWindowLog {
		return k.log.Take(k.limit, now, hits, countRejected)
	}
	k.state, d = Take(k.limit, k.state, now, hits, countRejected)
	return d
}

// passes takes hits from a copy and reports whether they were allowed.
func (k *key) passes(now Instant, hits int64) bool { return k.clone().take(now, hits, false).Allowed }

func (k *key) change(to Limit, now Instant) {
	if to.Algorithm != k.limit.Algorithm || to.Period != k.limit.Period {
		k.log = Log{} // within one period a Log fits every limit
	}
	k.state = Change(k.limit, to, k.state, now)
	k.limit = to
}

func (k *key) idleAt() Instant {
	if k.limit.Algorithm == SlidingWindowLog {
		return k.log.IdleAt(k.limit)
	}
	return IdleAt(k.limit, k.state)
}

// unused reports whether there is no state to keep.
func (k *key) unused() bool { return k.state.Unused() && k.log.Unused() }

// last returns the instant of the last charge of a key that is not unused.
func (k *key) last() Instant {
	switch k.limit.Algorithm {
	case SlidingWindowLog:
		return k.log.last
	case TokenBucketInteger:
		return k.state.last + Instant(k.state.b)
	default:
		return k.state.last
	}
}

// held returns now held at the last charge.
func (k *key) held(now Instant) Instant {
	if k.unused() {
		return now
	}
	return max(now, k.last())
}

// entries returns the entries of the log, oldest first.
func (k *key) entries() []logged {
	var all []logged
	for i := range k.log.len {
		all = append(all, *k.log.at(i))
	}
	return all
}

func (k *key) clone() *key {
	c := *k
	c.log.ring = slices.Clone(k.log.ring)
	return &c
}

// same reports whether two keys are in one state, to the bit.
func (k *key) same(o *key) bool {
	return k.limit == o.limit && k.state == o.state && k.log.last == o.log.last && k.log.hits == o.log.hits &&
		slices.Equal(k.entries(), o.entries())
}

func (k *key) String() string {
	if k.limit.Algorithm == SlidingWindowLog {
		return fmt.Sprintf("%+v entries %v last %d", k.limit, k.entries(), k.log.last)
	}
	return fmt.Sprintf("%+v %+v", k.limit, k.state)
}

// shift returns the instant d after now, or before it when d is negative, held at the ends of time.
func shift(now Instant, d time.Duration) Instant {
	switch sum := now + Instant(d); {
	case d > 0 && sum < now:
		return math.MaxInt64
	case d < 0 && sum > now:
		return math.MinInt64
	default:
		return sum
	}
}

// chooser makes the choices of a test: by a seed, by rapid, which shrinks, or by the bytes of a
// fuzzer.
type chooser interface {
	upTo(what string, most uint64) uint64 // 0 to most
}

func pick[T any](c chooser, what string, from ...T) T {
	return from[c.upTo(what, uint64(len(from)-1))]
}

// chooseLimit returns a valid limit of that algorithm, often with extreme fields.
func chooseLimit(c chooser, a Algorithm) Limit {
	l := Limit{
		Algorithm: a,
		Requests:  pick(c, "requests", 1, 2, 3, 5, 10, 100, 1000, 0, math.MaxUint32, math.MaxUint32-1, uint32(c.upTo("any requests", math.MaxUint32))),
		Period: pick(c, "period", time.Second, 10, 7*time.Second, time.Minute, time.Minute+1, 24*time.Hour, MaxPeriod, MaxPeriod-1, MinPeriod, MinPeriod+1,
			1<<20, time.Duration(c.upTo("any period", uint64(MaxPeriod)))),
	}
	l.Period = max(l.Period, MinPeriod)
	if a.HasWindows() && l.Requests > 1000 {
		l.SetPerPeriod(pick(c, "large requests", uint64(l.Requests), MaxHits+1, 2*MaxHits, 2*MaxHits+1, MaxCount-1, MaxCount, c.upTo("any large requests", MaxCount)))
	}
	if a == TokenBucket && l.Requests > 0 {
		l.Burst = pick(c, "burst", 0, 1, 10, l.Requests, math.MaxUint32, uint32(c.upTo("any burst", math.MaxUint32)))
	}
	return l
}

// calm is a chooser for walks of many small steps and hits, which fill a log and refill a bucket
// again and again.
type calm struct{ chooser }

func (c calm) upTo(what string, most uint64) uint64 {
	switch what {
	case "next", "hits":
		most = 4 // The first ones of their lists.
	case "refund":
		most = 15
	}
	return c.chooser.upTo(what, most)
}

// walk returns a chooser for one walk, which is calm or not, and the number of its steps.
func walk(c chooser, steps uint64) (chooser, uint64) {
	if c.upTo("calm", 1) == 1 {
		c, steps = calm{c}, 2*steps
	}
	return c, 1 + c.upTo("steps", steps)
}

func chooseStart(c chooser) Instant {
	return pick(c, "start", 1_700_000_000_000_000_000, 0, -1, 1, math.MinInt64, math.MinInt64+1, math.MaxInt64, math.MaxInt64-1,
		math.MaxInt64-Instant(time.Hour), Instant(c.upTo("any start", math.MaxUint64)))
}

// chooseNext returns the instant of the next charge: most often where something is about to happen.
func chooseNext(c chooser, l Limit, now Instant, d Decision) Instant {
	token := l.Period / time.Duration(max(1, l.Requests))
	some := time.Duration(c.upTo("some ns", uint64(2*l.Period)))
	return pick(c, "next",
		now,
		shift(now, 1),
		shift(now, token),
		shift(now, token+1),
		shift(now, some/64),
		shift(now, some),
		shift(now, some/8),
		shift(now, d.RetryAfter),
		shift(now, d.RetryAfter-1),
		shift(now, d.ResetAfter),
		shift(now, d.ResetAfter-1),
		shift(now, l.Period),
		shift(now, l.Period-1),
		shift(now, l.Period-elapsed(l.Period, now)),
		shift(now, 2*l.Period),
		shift(now, -1),
		shift(now, -some),
		shift(now, 1<<62),
		Instant(c.upTo("any instant", math.MaxUint64)),
	)
}

// chooseHits returns hits for a charge: probes, takes and, where refunds is set, refunds.
func chooseHits(c chooser, l Limit, d Decision, refunds bool) int64 {
	most := int64(l.Capacity())
	some := int64(c.upTo("some hits", uint64(most)))
	hits := pick(c, "hits", 1, 1, 2, 3, 0, int64(d.Remaining), int64(d.Remaining)+1, most, most+1, some, some/4, MaxHits, MaxHits+1, MaxCount, math.MaxInt64)
	if refunds && c.upTo("refund", 3) == 0 {
		return pick(c, "refunded", -hits, -1, -some, -most, math.MinInt64)
	}
	return hits
}

// history is the operations on a key, for the text of a failure.
type history struct{ lines []string }

func (h *history) note(format string, args ...any) {
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *history) String() string { return strings.Join(h.lines, "\n") }

// byInstant orders admissions for the properties that count them.
func byInstant(x, y admission) int { return cmp.Compare(x.at, y.at) }

// admission is hits that a key let through at an instant, held at the last charge.
type admission struct {
	at   Instant
	hits int64
}

// Apply takes the memory that SizeAfter says. A log has memory for less than eight times its
// entries.
func TestALogTakesTheMemoryThatItSaysBefore(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var g Log
		l := Limit{Algorithm: SlidingWindowLog, Requests: rapid.Uint32Range(1, 200).Draw(rt, "requests"), Period: time.Second}
		now := Instant(0)
		for range rapid.IntRange(1, 300).Draw(rt, "charges") {
			now = now.Add(rapid.SampledFrom([]time.Duration{0, 0, 1, time.Millisecond, 10 * time.Millisecond, 900 * time.Millisecond}).Draw(rt, "wait"))
			var p Pending
			for range rapid.IntRange(1, 2).Draw(rt, "pending") {
				p, _ = g.Decide(l, now, p, rapid.SampledFrom([]int64{1, 1, 1, 3, 0, -1, -5}).Draw(rt, "hits"), rapid.Bool().Draw(rt, "count rejected"))
			}
			before, says := g.Size(), g.SizeAfter(l, now, p)
			g.Apply(l, now, p)
			if got := g.Size(); got > says || says > before && got != says {
				rt.Fatalf("a log of %d bytes takes %d after a charge; SizeAfter said %d", before, got, says)
			}
			if length := len(g.ring); length >= logShrinks && 8*g.Len() <= length && p.charged {
				rt.Fatalf("a log of %d entries has memory for %d", g.Len(), length)
			}
		}
	})
}

// A log that must not grow keeps its size, and never admits more than its limit.
func TestALogInPlaceIsStricterAndNoLarger(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var g Log
		l := Limit{Algorithm: SlidingWindowLog, Requests: rapid.Uint32Range(1, 20).Draw(rt, "requests"), Period: time.Second}
		now, size := Instant(0), rapid.IntRange(0, 5).Draw(rt, "hits before")
		var admitted []logged // all hits that passed
		for i := range rapid.IntRange(1, 100).Draw(rt, "charges") {
			now = now.Add(rapid.SampledFrom([]time.Duration{0, 1, 10 * time.Millisecond, 300 * time.Millisecond, time.Second}).Draw(rt, "wait"))
			hits := rapid.SampledFrom([]int64{1, 1, 2, 7}).Draw(rt, "hits")
			p, d := g.Decide(l, now, Pending{}, hits, rapid.Bool().Draw(rt, "count rejected"))
			if d.Allowed {
				admitted = append(admitted, logged{now, uint64(hits)})
			}
			if i <= size {
				g.Apply(l, now, p)
			} else if before := g.Size(); g.Len() > 0 {
				g.ApplyInPlace(l, now, p)
				if got := g.Size(); got > before {
					rt.Fatalf("a log of %d bytes has grown to %d", before, got)
				}
			} else {
				g.Apply(l, now, p)
			}
			var passed uint64
			for j := len(admitted) - 1; j >= 0 && now.Sub(admitted[j].at) < l.Period; j-- {
				passed += admitted[j].hits
			}
			if passed > uint64(l.Requests) {
				rt.Fatalf("%d hits passed in a period; the limit is %d", passed, l.Requests)
			}
			if _, after := g.Decide(l, now, Pending{}, 0, false); d.Allowed && after.Remaining != d.Remaining {
				rt.Fatalf("%d hits remain after the charge; the decision said %d", after.Remaining, d.Remaining)
			}
		}
	})
}

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
			if s, was, got = TakeAs(was, l, s, now, hits, Counting(count)); got != want {
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
		l := Limit{Algorithm: TokenBucket, Requests: 1, Period: time.Second, Extra: Extra{Burst: most}}
		was, s, start := l, State{}, Instant(1_000_000_000_000)
		now, admitted := start, int64(0)
		for range 60 {
			l.Burst = rapid.SampledFrom([]uint32{1, 2, 10, most}).Draw(rt, "burst")
			hits := rapid.SampledFrom([]int64{0, 1, 2, int64(l.Burst)}).Draw(rt, "hits")
			now += Instant(rapid.Int64Range(0, 5e9).Draw(rt, "pause"))
			var d Decision
			if s, was, d = TakeAs(was, l, s, now, hits, Refuse); d.Allowed {
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
			s, was, d := TakeAs(l, l, State{}, now, 100, Counting(counted))
			if !d.Allowed {
				t.Fatalf("%v: %+v", a, d)
			}
			if s, was, d = TakeAs(was, ban, s, now, 1, Counting(counted)); d.Allowed {
				t.Errorf("%v: a ban allowed a hit", a)
			}
			if _, _, d = TakeAs(was, l, s, now, 1, Counting(counted)); d.Allowed {
				t.Errorf("%v, count_rejected %t: a hit passes after a ban, though the limit is used up", a, counted)
			}
		}
	}
}
