package algorithms

import (
	"testing"
	"time"
)

func TestTakeDoesNotAllocate(t *testing.T) {
	for _, a := range RateAlgorithms() {
		t.Run(a.String(), func(t *testing.T) {
			l := Limit{Algorithm: a, Requests: 64, Period: time.Second}
			k := newKey(l)
			var now Instant
			step := func() { // Allowed, denied, counted, a probe and a refund, while time goes on.
				now = now.Add(5 * time.Millisecond)
				k.take(now, 1, false)
				k.take(now, 100, false)
				k.take(now, 100, true)
				k.take(now, 0, false)
				k.take(now, -101, false)
			}
			for range 1000 {
				step() // a Log grows to its final size
			}
			if got := testing.AllocsPerRun(1000, step); got != 0 {
				t.Errorf("five charges allocate %v times; want 0", got)
			}
		})
	}
}

func TestAWindowOfACalendarAllocatesOnceAtMost(t *testing.T) {
	month := Limit{Algorithm: CalendarWindow, Requests: 64, Period: 31 * day, Extra: Extra{Calendar: calendarOf(CalendarSpec{Unit: CalendarMonth, Count: 1})}}
	for _, a := range CalendarAlgorithms() {
		l := month
		l.Algorithm = a
		var s State
		now := Instant(1_700_000_000_000_000_000)
		step := func() {
			now = now.Add(5 * time.Millisecond)
			for _, hits := range []int64{1, 100, 0, -101} {
				s, _ = Take(l, s, now, hits, true)
			}
		}
		step()
		if got := testing.AllocsPerRun(1000, step); got != 0 {
			t.Errorf("%d: four charges in one month allocate %v times, want 0", a, got)
		}
	}
}

func TestALogForgetsNothingWhileItGrows(t *testing.T) {
	l := Limit{Algorithm: SlidingWindowLog, Requests: 1000, Period: time.Second}
	var g Log
	for i := range Instant(3000) { // Two hits a millisecond: the first thousand pass, and then the one that is a second later than each.
		want := i < 1000 || i >= 2000
		if got := g.Take(l, i*Instant(500*time.Microsecond), 1, false); got.Allowed != want {
			t.Fatalf("hit %d: got %+v; want allowed %v", i, got, want)
		}
	}
}

func TestALogKeepsNoMoreThanItNeeds(t *testing.T) {
	l := Limit{Algorithm: SlidingWindowLog, Requests: 100, Period: time.Second}
	var g Log
	for i := range 10_000 {
		g.Take(l, Instant(i)*Instant(time.Millisecond), 1, true)
	}
	// At most 2*Requests entries, in a ring of the next power of two, of 16 bytes.
	if got, most := g.Size(), 256*16; got > most {
		t.Errorf("a log of %d requests has %d bytes; want at most %d", l.Requests, got, most)
	}
}

func BenchmarkTake(b *testing.B) {
	for _, a := range RateAlgorithms() {
		for _, rate := range []struct {
			name string
			gap  time.Duration
		}{{"allowed", 20 * time.Millisecond}, {"denied", time.Millisecond}} {
			b.Run(a.String()+"/"+rate.name, func(b *testing.B) {
				k := newKey(Limit{Algorithm: a, Requests: 100, Period: time.Second})
				now := Instant(1_700_000_000_000_000_000)
				b.ReportAllocs()
				for b.Loop() {
					now = now.Add(rate.gap)
					k.take(now, 1, false)
				}
			})
		}
	}
}

// BenchmarkTakeOfACalendar is BenchmarkTake of a day in a zone, beside the same limit without a
// calendar.
func BenchmarkTakeOfACalendar(b *testing.B) {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		b.Skip(err)
	}
	c := calendarOf(CalendarSpec{Unit: CalendarDay, Count: 1, Zone: zone})
	for _, a := range []Algorithm{FixedWindow, SlidingWindowCounter} {
		aligned, _ := a.Aligned()
		for _, l := range []Limit{
			{Algorithm: a, Requests: 100_000, Period: day},
			{Algorithm: aligned, Requests: 100_000, Period: day, Extra: Extra{Calendar: c}},
		} {
			name := a.String()
			if l.Calendar != nil {
				name += "/calendar"
			}
			b.Run(name, func(b *testing.B) {
				var s State
				now := Instant(1_700_000_000_000_000_000)
				b.ReportAllocs()
				for b.Loop() {
					now = now.Add(time.Second)
					s, _ = Take(l, s, now, 1, false)
				}
			})
		}
	}
}

func BenchmarkFreshAt(b *testing.B) {
	for _, a := range RateAlgorithms() {
		b.Run(a.String(), func(b *testing.B) {
			k := newKey(Limit{Algorithm: a, Requests: 100, Period: time.Second})
			k.take(1, 50, false)
			for b.Loop() {
				k.idleAt()
			}
		})
	}
}
