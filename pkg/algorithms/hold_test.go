package algorithms

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEveryHolderEqualsTheReference(t *testing.T) {
	holdsOf(t, 300, Algorithms(), func(t failer, c chooser, a Algorithm) { compareHolders(t, c, a) })
}

// FuzzHold compares walks of begins and ends with the reference. The first byte chooses the
// algorithm.
func FuzzHold(f *testing.F) {
	addWalks(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &byteChooser{data}
		compareHolders(t, c, pick(c, "algorithm", Algorithms()...))
	})
}

// compareHolders walks a key with holders and its reference through the same messages.
func compareHolders(t failer, c chooser, a Algorithm) {
	t.Helper()
	c, steps := walk(c, 25)
	l := chooseHeldLimit(c, a)
	k, r := newHeldKey(l), newHeldReference(l)
	var h history
	var d Decision
	now := chooseStart(c)
	h.note("limit %+v", l)
	for range steps {
		now = chooseHeldNext(c, k, now, d)
		if c.upTo("change", 9) == 0 {
			now = min(now, math.MaxInt64-1) // see compare
			to := chooseHeldLimit(c, a)
			to.Period = l.Period
			h.note("%d change to %+v", now, to)
			k.change(to, now)
			r.change(to, now)
		}
		m := chooseMessage(c, k.limit, d)
		h.note("%d %+v, before it %v, of the holder %+v", now, m, k.key, k.holds[m.holder])
		want := r.do(m, now)
		if d = k.do(m, now); d != want {
			t.Fatalf("decision differs from the reference's:\n%s\n(-reference +got)\n%s", h.String(), cmp.Diff(want, d))
		}
		k.sweep(now)
		r.find("", now) // forgets, too
		for name := range k.holds {
			if got, want := k.holds[name].Live(now), r.hold(name, now); got != want {
				t.Fatalf("the holder %q differs from the reference's:\n%s\n(-reference +got)\n%s", name, h.String(), cmp.Diff(want, got))
			}
		}
	}
}

// hold returns the memory of a holder as the code has it.
func (r *heldReference) hold(name string, now Instant) Hold {
	h, at := r.find(name, now)
	if at < 0 {
		return Hold{}
	}
	status := HoldStatus(slices.Index([]string{"", "holds", "denied", "ended"}, h.says))
	return Hold{Status: status, Hits: uint32(h.hits.whole()), At: Instant(h.at.integer.Int64()), Until: Instant(h.ends.integer.Int64())}
}

// chooseHeldLimit returns a valid limit of any algorithm.
func chooseHeldLimit(c chooser, a Algorithm) Limit {
	l := chooseLimit(c, a)
	if a == Concurrency {
		l.Period = 0
	}
	return l
}

// chooseHeldNext returns the next instant, often the one at which a holder runs out, or a
// nanosecond before.
func chooseHeldNext(c chooser, k *heldKey, now Instant, d Decision) Instant {
	if c.upTo("runs out", 3) == 0 {
		return shift(k.holds[chooseHolder(c)].Until, -time.Duration(c.upTo("before", 1)))
	}
	l := k.limit
	l.Period = max(l.Period, time.Second*(1-min(l.Period, 1)))
	return chooseNext(c, l, now, d)
}

func chooseHolder(c chooser) string { return pick(c, "holder", "r", "s", "t", "u") }

func chooseMessage(c chooser, l Limit, d Decision) message {
	return message{
		phase:         pick(c, "phase", HoldBegin, HoldBegin, HoldBegin, HoldEnd, HoldEnd, HoldBegun, HoldCancel, HoldPair, HoldPair),
		holder:        chooseHolder(c),
		hits:          chooseHits(c, l, d, c.upTo("refund", 3) == 0),
		atMost:        pick(c, "at most", time.Second, 10*time.Second, time.Millisecond, MaxPeriod, time.Second, time.Hour),
		deniedByOther: c.upTo("denied by another", 5) == 0,
		countRejected: c.upTo("count rejected", 3) == 0,
	}
}

// The promise of concurrency: never more than Requests at any instant, in any order of begin, end,
// repeat and expiry. The test keeps its own account of the holders that were admitted, and have
// neither ended nor run out.
func TestConcurrencyNeverHoldsMoreThanItsLimit(t *testing.T) {
	holdsOf(t, 3000, []Algorithm{Concurrency}, func(t failer, c chooser, a Algorithm) {
		c, steps := walk(c, 60)
		l := chooseHeldLimit(c, a)
		k := newHeldKey(l)
		inside := map[string]Hold{}
		now, last := chooseStart(c), Instant(math.MinInt64)
		var d Decision
		for range steps {
			now = max(now, chooseHeldNext(c, k, now, d))
			m := chooseMessage(c, l, d)
			if m.phase == HoldBegun {
				m.phase = HoldBegin // a begin that was admitted elsewhere may exceed the limit
			}
			known := inside[m.holder].Live(now).Status == HoldHeld
			if m.phase == HoldPair && known {
				m.phase = HoldEnd
			}
			d = k.do(m, now)
			switch {
			case !m.phase.Begins():
				delete(inside, m.holder)
			case d.Allowed && !known && m.hits > 0 && !m.deniedByOther:
				until := now.Add(m.atMost)
				inside[m.holder], last = Hold{Status: HoldHeld, Hits: uint32(min(m.hits, MaxHits)), Until: until}, max(last, until)
			}
			var sum uint64
			for _, h := range inside {
				sum += uint64(h.Live(now).Hits)
			}
			free := k.summary(now).Decide(l, now, 0, m.atMost).Remaining
			if sum > uint64(l.Requests) || free+sum != uint64(l.Requests) {
				t.Fatalf("%d are held at %d under %+v, and %d are free", sum, now, l, free)
			}
		}
		// Nothing is lost: once the last holder has run out, all slots are free.
		if got, want := k.summary(max(now, last)).Decide(l, max(now, last), 0, time.Second), (Decision{Allowed: true, Remaining: uint64(l.Requests)}); got != want {
			t.Fatalf("after all holders have run out: %+v; want %+v", got, want)
		}
	})
}

// An estimate and its end are the truth, to the hit. Within one window the key has counted the true
// cost of each holder that has ended, and the estimate of each other. Begins and ends come in any
// order, and any number of times.
func TestAnEstimateAndItsEndAreTheTruth(t *testing.T) {
	holdsOf(t, 2000, RateAlgorithms(), func(t failer, c chooser, a Algorithm) {
		l := Limit{Algorithm: a, Requests: 10_000, Period: 24 * time.Hour}
		k := newHeldKey(l)
		now := Instant(20_000 * 24 * time.Hour) // a window starts
		var all []message
		var truth int64
		for i := range 1 + c.upTo("holders", 12) {
			estimate, cost := int64(1+c.upTo("estimate", 200)), int64(c.upTo("cost", 400))
			begin := message{phase: HoldBegin, holder: fmt.Sprint(i), hits: estimate, atMost: time.Hour}
			end := message{phase: HoldEnd, holder: begin.holder, hits: cost, atMost: time.Hour}
			switch c.upTo("order", 3) {
			case 0: // the end is lost
				all = append(all, begin)
				truth += estimate
			case 1: // the begin is lost
				all = append(all, end)
				truth += cost
			default:
				all = append(all, begin, end)
				truth += cost
			}
		}
		var sent []message // each holder's begin before its end, mixed with the others'
		for len(all) > 0 {
			i := int(c.upTo("next message", uint64(len(all)-1)))
			i = slices.IndexFunc(all, func(m message) bool { return m.holder == all[i].holder })
			for range 1 + c.upTo("repeats", 2) {
				sent = append(sent, all[i])
			}
			all = slices.Delete(all, i, i+1)
		}
		for _, m := range sent {
			if d := k.do(m, now); !d.Allowed {
				t.Fatalf("%+v was denied: %+v", m, d)
			}
			now += Instant(c.upTo("pause ns", 100)) // far less than a hit of a bucket takes
		}
		if got := k.take(now, 0, false); got.Remaining+uint64(truth) != uint64(l.Requests) {
			t.Fatalf("%d remain of %d; want the true cost, %d, counted: %+v", got.Remaining, l.Requests, truth, sent)
		}
	})
}

func TestHoldersAtTheEndsOfTimeAndOfNumbersEqualTheReference(t *testing.T) {
	instants := []Instant{math.MinInt64, 0, math.MaxInt64 - Instant(MaxPeriod), math.MaxInt64 - 1, math.MaxInt64}
	amounts := []int64{math.MinInt64, 0, 1, math.MaxUint32, math.MaxInt64}
	for _, a := range Algorithms() {
		for _, requests := range []uint32{0, 1, math.MaxUint32} {
			l := Limit{Algorithm: a, Requests: requests}
			if a != Concurrency {
				l.Period = MaxPeriod
			}
			for _, first := range instants {
				for _, second := range instants {
					for _, begun := range amounts {
						for _, ended := range amounts {
							k, r := newHeldKey(l), newHeldReference(l)
							for i, m := range []message{
								{phase: HoldBegin, holder: "r", hits: begun, atMost: time.Millisecond},
								{phase: HoldBegun, holder: "s", hits: begun, atMost: MaxPeriod},
								{phase: HoldBegin, holder: "r", hits: begun, atMost: MaxPeriod},
								{phase: HoldEnd, holder: "r", hits: ended, atMost: time.Millisecond},
								{phase: HoldEnd, holder: "s", hits: ended, atMost: time.Millisecond},
								{phase: HoldEnd, holder: "t", hits: ended, atMost: time.Millisecond},
							} {
								now := first
								if i >= 2 {
									now = second
								}
								if got, want := k.do(m, now), r.do(m, now); got != want {
									t.Fatalf("%+v: %+v at %d, message %d, begun at %d: (-reference +got)\n%s", l, m, now, i, first, cmp.Diff(want, got))
								}
							}
						}
					}
				}
			}
		}
	}
}

func TestAHolderIsNotKnownFromTheInstantAtWhichItRunsOut(t *testing.T) {
	h := Hold{Status: HoldHeld, Hits: 1, At: 1, Until: 5}
	if got := h.Live(4); got != h {
		t.Errorf("a nanosecond before the holder runs out: %+v; want %+v", got, h)
	}
	if got := h.Live(5); got != (Hold{}) {
		t.Errorf("when the holder runs out: %+v; want that it is not known", got)
	}
}
