package algorithms

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sideOf returns a key never used.
func sideOf(l Limit) *Side {
	s := &Side{Limit: l}
	if l.Algorithm == SlidingWindowLog {
		s.Log, s.MarkLog = new(Log), new(Log)
	}
	return s
}

// charge takes hits under the limit of a side.
func (s *Side) charge(now Instant, hits int64, countRejected bool) (d Decision) {
	if s.Log != nil {
		return s.Log.Take(s.Limit, now, hits, countRejected)
	}
	s.State, s.Was, d = TakeAs(s.Was, s.Limit, s.State, now, hits, Counting(countRejected))
	return d
}

// The table of docs/semantics.md: 11 hits of a limit of 20 at the tenth second of a minute, and a
// change at once.
func TestEachPairOfAlgorithmsKeepsTheUsedHits(t *testing.T) {
	const at = Instant(1_700_000_050_000_000_000) // 10 s after the start of a minute, 0 s of 10 s
	limits := []Limit{
		{Algorithm: FixedWindow, Requests: 20, Period: 10 * time.Second},
		{Algorithm: TokenBucket, Requests: 20, Period: 10 * time.Second},
		{Algorithm: SlidingWindowLog, Requests: 20, Period: 10 * time.Second},
		{Algorithm: SlidingWindowCounter, Requests: 20, Period: 10 * time.Second},
		{Algorithm: TokenBucketInteger, Requests: 20, Period: 10 * time.Second},
		{Algorithm: CalendarWindow, Requests: 20, Period: 24 * time.Hour, Extra: Extra{Calendar: calendarOf(CalendarSpec{Unit: CalendarDay, Count: 1})}},
		{Algorithm: CalendarCounter, Requests: 20, Period: 24 * time.Hour, Extra: Extra{Calendar: calendarOf(CalendarSpec{Unit: CalendarDay, Count: 1})}},
	}
	for _, from := range limits {
		for _, to := range limits {
			if to.Requests = 100; to.Calendar == nil {
				to.Period = time.Minute
			}
			t.Run(fmt.Sprint(from.Algorithm, from.Period, "_to_", to.Algorithm, to.Period), func(t *testing.T) {
				a, b := sideOf(from), sideOf(to)
				a.charge(at, 11, false)
				Carry(a, b, at, true)
				want := uint64(89)
				if a.isBucket() && b.isBucket() {
					want = 9 // tokens stay tokens
				}
				if d := b.charge(at, 0, false); d.Remaining != want {
					t.Errorf("%d remain of 100, after 11 of 20 were used; want %d", d.Remaining, want)
				}
				b.charge(at, 3, false)
				Carry(a, b, at, true)
				Carry(b, a, at, true)
				if d := a.charge(at, 0, false); d.Remaining != 6 {
					t.Errorf("%d remain of 20 back under the first limit, after 14 were used; want 6", d.Remaining)
				}
			})
		}
	}
}

func TestTokensStayTokensUnderAnotherPeriodAndBurst(t *testing.T) {
	const at = Instant(1_700_000_000_000_000_000)
	second := Limit{Algorithm: TokenBucket, Requests: 20, Period: time.Second}
	minute := Limit{Algorithm: TokenBucket, Requests: 1200, Period: time.Minute, Extra: Extra{Burst: 100}}
	tests := []struct {
		name         string
		from, to     Limit
		used, remain int64
		owes         int64 // more than the capacity
	}{
		{"more_burst", second, minute, 11, 9, 0},
		{"less_burst", minute, second, 91, 9, 0},
		{"more_tokens_than_the_new_burst", minute, second, 11, 20, 0},
		{"empty", second, minute, 20, 0, 0},
		{"debt", second, minute, 25, 0, 5},
		{"full", second, minute, 0, 100, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := sideOf(tt.from), sideOf(tt.to)
			a.charge(at, tt.used, true)
			Carry(a, b, at, true)
			if d := b.charge(at, 0, false); int64(d.Remaining) != tt.remain {
				t.Errorf("%d tokens left; want %d", d.Remaining, tt.remain)
			}
			if tt.remain > 0 {
				return
			}
			token := at + Instant(tt.owes+1)*Instant(50*time.Millisecond)
			if d := b.charge(token-1, 1, false); d.Allowed {
				t.Error("a hit passed before the new rate gave a token")
			}
			if d := b.charge(token, 1, false); !d.Allowed {
				t.Error("a hit did not pass when the new rate gave a token")
			}
		})
	}
}

func TestALogKeepsItsInstants(t *testing.T) {
	const at = Instant(1_700_000_000_000_000_000)
	a := sideOf(Limit{Algorithm: SlidingWindowLog, Requests: 3, Period: 10 * time.Second})
	b := sideOf(Limit{Algorithm: SlidingWindowLog, Requests: 2, Period: 20 * time.Second})
	for i := range 3 {
		a.charge(at.Add(time.Duration(i)*time.Second), 1, false)
	}
	Carry(a, b, at.Add(3*time.Second), true)
	want := []LogEntry{{at.Add(time.Second), 1}, {at.Add(2 * time.Second), 1}}
	if got := b.Log.AppendEntries(nil); !cmp.Equal(got, want) {
		t.Errorf("the new log has %v; want the newest entries that fit, %v", got, want)
	}
}

// A process with older rules has fewer requests for the same log. The hits that it carries over
// make no room for processes with the new rules.
func TestALogKeepsTheHitsOfALargerLimit(t *testing.T) {
	const at = Instant(1_700_000_000_000_000_000)
	now := sideOf(Limit{Algorithm: SlidingWindowLog, Requests: 5, Period: time.Minute})
	now.charge(at, 3, false)
	now.charge(at.Add(time.Second), 2, false)
	older, bucket := *now, sideOf(Limit{Algorithm: TokenBucket, Requests: 100, Period: time.Minute})
	older.Limit.Requests = 2
	Carry(bucket, &older, at.Add(2*time.Second), true)
	bucket.charge(at.Add(2*time.Second), 4, false)
	Carry(bucket, &older, at.Add(2*time.Second), true)
	if d := now.charge(at.Add(2*time.Second), 1, false); d.Allowed {
		t.Errorf("a hit passed that 5 hits of a minute deny, %d left", d.Remaining)
	}
}

// chooseCarried returns a limit with small numbers, so that a walk spends it again and again.
func chooseCarried(c chooser, a Algorithm) Limit {
	l := Limit{
		Algorithm: a, Requests: pick(c, "requests", uint32(1), 2, 5, 20, 100),
		Period: pick(c, "period", time.Second, 7*time.Second, time.Minute, 90*time.Second),
	}
	if a == TokenBucket {
		l.Burst = pick(c, "burst", uint32(0), 1, 10, 100)
	}
	if a.HasCalendar() {
		spec := CalendarSpec{Unit: CalendarDay, Count: uint32(1 + c.upTo("days", 2)), FirstHit: c.upTo("first hit", 2) == 0}
		l.Period, l.Calendar = time.Duration(spec.Count)*24*time.Hour, calendarOf(spec)
	}
	return l
}

func calendarOf(spec CalendarSpec) *Calendar {
	c, _ := NewCalendar(spec) // the tests have valid ones only
	return c
}

// carried returns every algorithm whose hits carry over.
func carried() []Algorithm { return append(RateAlgorithms(), CalendarWindow, CalendarCounter) }

// pairsHold checks a property of each pair of algorithms over a thousand seeds.
func pairsHold(t *testing.T, property func(t failer, c chooser, from, to Limit)) {
	t.Helper()
	for _, a := range carried() {
		for _, b := range carried() {
			t.Run(fmt.Sprint(a, a.HasCalendar(), "_to_", b, b.HasCalendar()), func(t *testing.T) {
				for seed := range uint64(1000) {
					c := seedChooser{newRand(seed, uint64(a)<<8|uint64(b))}
					property(seeded{t, seed}, c, chooseCarried(c, a), chooseCarried(c, b))
				}
			})
		}
	}
}

// load is a key under two limits that processes use at the same time, and a plain history of its
// admitted hits.
type load struct {
	c        chooser
	now      Instant
	admitted []LogEntry
}

func newLoad(c chooser) *load {
	return &load{c: c, now: 1_700_000_000_000_000_000 + Instant(c.upTo("start", uint64(time.Minute)))}
}

// step lets some time pass, mostly little, and charges the side. others are the limits that the
// charge's limit replaced, and the reverse.
func (l *load) step(t failer, s *Side, carry func(now Instant)) (d Decision) {
	t.Helper()
	l.now += Instant(pick(l.c, "pause", 0, 0, 10*time.Millisecond, 200*time.Millisecond, time.Second,
		time.Duration(l.c.upTo("some pause", uint64(3*s.Limit.Period)/8))))
	hits := pick(l.c, "hits", int64(1), 1, 2, 5, int64(s.Limit.Capacity()))
	carry(l.now)
	if d = s.charge(l.now, hits, false); d.Allowed {
		l.admitted = append(l.admitted, LogEntry{At: l.now, Hits: uint64(hits)})
	}
	carry(l.now)
	return d
}

// check checks all intervals that end now. An interval of length T has at most the larger capacity
// and the gain of the larger rate in T. A window and a sliding count admit twice their limit around
// the start of a window. A window that forgets hits before a change lets them be as forgotten.
func (l *load) check(t failer, limits ...Limit) {
	t.Helper()
	most, forgotten := uint64(0), uint64(0)
	for _, x := range limits {
		capacity := x.Capacity()
		if x.Algorithm == FixedWindow || x.Algorithm == SlidingWindowCounter || x.Algorithm.HasCalendar() {
			forgotten = max(forgotten, capacity)
		}
		most = max(most, capacity)
	}
	hits := uint64(0)
	for _, e := range slices.Backward(l.admitted) {
		hits += e.Hits
		bound := uint64(0)
		for _, x := range limits { // a token more: a bucket in whole tokens is full a nanosecond early
			bound = max(bound, product(past(e.At, l.now), uint64(x.Requests)).ceilDiv(uint64(x.Period))+1)
		}
		if bound += most + forgotten; hits > bound {
			t.Fatalf("%d hits in %v, at most %d may pass under %+v", hits, l.now.Sub(e.At), bound, limits)
		}
	}
}

func TestNoIntervalAdmitsMoreThanTheLargerLimit(t *testing.T) {
	pairsHold(t, func(t failer, c chooser, from, to Limit) {
		a, b, l := sideOf(from), sideOf(to), newLoad(c)
		for range c.upTo("before", 15) {
			l.step(t, a, func(Instant) {})
			l.check(t, from, to)
		}
		for range 15 { // one process has the new rules, another one still has the old ones
			if c.upTo("old rules", 2) == 0 {
				l.step(t, a, func(Instant) {})
			} else {
				l.step(t, b, func(now Instant) { Carry(a, b, now, true) })
			}
			l.check(t, from, to)
		}
		for range 10 {
			l.step(t, b, func(now Instant) { Carry(a, b, now, false) })
			l.check(t, from, to)
		}
	})
}

// A key goes to another limit and back. The key then has as much left as a key that has stayed, and
// took the same hits.
func TestThereAndBackNoHitIsFree(t *testing.T) {
	pairsHold(t, func(t failer, c chooser, from, to Limit) {
		a, b, stayed, l := sideOf(from), sideOf(to), sideOf(from), newLoad(c)
		step := func(s *Side, carry func(now Instant)) {
			n := len(l.admitted)
			l.step(t, s, carry)
			for _, e := range l.admitted[n:] {
				stayed.take(e.At, stayed.fit(e.Hits, e.At))
			}
		}
		for range c.upTo("before", 8) {
			step(a, func(Instant) {})
		}
		there := func(now Instant) { Carry(a, b, now, true) }
		for range c.upTo("there", 8) {
			step(b, there)
		}
		for range 8 {
			step(a, func(now Instant) { Carry(b, a, now, true) })
			left, most := a.charge(l.now, 0, false).Remaining, stayed.charge(l.now, 0, false).Remaining
			if left != most {
				t.Fatalf("%d left back under %+v after %+v; the key that stayed has %d", left, from, to, most)
			}
		}
	})
}

// A denied client stays denied as long as the hits that its old limit counted fill the new limit.
func TestAClientThatBothLimitsDenyStaysDenied(t *testing.T) {
	pairsHold(t, func(t failer, c chooser, from, to Limit) {
		a, b, l := sideOf(from), sideOf(to), newLoad(c)
		for range 20 {
			l.step(t, a, func(Instant) {})
		}
		used, debt := a.used(l.now), a.charge(l.now, 1, false)
		Carry(a, b, l.now, true)
		tokens := a.isBucket() && b.isBucket()
		if a.Log != nil && b.Log != nil {
			used = b.used(l.now) // a shorter period does not count hits before it
		}
		d := b.charge(l.now, 1, false)
		if !debt.Allowed && d.Allowed && (tokens || used >= to.Capacity()) {
			t.Fatalf("%+v denied with %d used, %+v allows", from, used, to)
		}
		if tokens && d.Remaining > debt.Remaining {
			t.Fatalf("%d tokens of %+v became %d of %+v", debt.Remaining, from, d.Remaining, to)
		}
	})
}

func TestALostMarkMakesNoHitFree(t *testing.T) {
	pairsHold(t, func(t failer, c chooser, from, to Limit) {
		a, b, l := sideOf(from), sideOf(to), newLoad(c)
		for range 20 {
			if c.upTo("lost", 3) == 0 {
				lost := pick(c, "whose", a, b)
				lost.Mark, lost.MarkWas = State{}, Limit{}
				if lost.Log != nil {
					lost.MarkLog = new(Log)
				}
			}
			l.step(t, pick(c, "side", a, b), func(now Instant) { Carry(a, b, now, true) })
			l.check(t, from, to)
		}
	})
}

// Hits of a budget carry over to a larger or a smaller one exactly, also to another period.
func TestLargeCountsCarryOverExactly(t *testing.T) {
	const at = Instant(1_700_000_000_000_000_000)
	month := Limit{Algorithm: CalendarWindow, Period: 30 * 24 * time.Hour, Extra: Extra{Calendar: calendarOf(CalendarSpec{Unit: CalendarMonth, Count: 1})}}
	for _, from := range []Limit{{Algorithm: FixedWindow, Period: time.Minute}, month} {
		for _, to := range []Limit{{Algorithm: FixedWindow, Period: time.Hour}, {Algorithm: FixedWindow, Period: 7 * time.Second}, month} {
			for _, sizes := range [][2]uint64{{400_000_000_000, 9_000_000_000_000_000}, {MaxCount, MaxHits + 1}, {MaxHits, 5 * MaxHits}, {5 * MaxHits, 3}} {
				if from == month && to == month {
					continue // the state of one key
				}
				from.SetPerPeriod(sizes[0])
				to.SetPerPeriod(sizes[1])
				a, b := sideOf(from), sideOf(to)
				used := uint64(0)
				for range 7 {
					if a.charge(at, MaxHits-1, false).Allowed {
						used += MaxHits - 1
					}
				}
				Carry(a, b, at, true)
				if d := b.charge(at, 0, false); d.Remaining != sizes[1]-min(used, sizes[1]) {
					t.Errorf("%d of %d are used: %d remain of %d per %v", used, sizes[0], d.Remaining, sizes[1], to.Period)
				}
			}
		}
	}
}
