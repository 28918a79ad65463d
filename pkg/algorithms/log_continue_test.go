package algorithms

import (
	"math/rand/v2"
	"testing"
	"time"
)

// ownModel is a slow second implementation of Continue: all hits of this process at their instants,
// without cells and without dropped hits.
type ownModel struct {
	at    []Instant
	hits  []uint64
	price uint64
	used  LogEntry
}

// counts returns the weight of the hits of this process that have not expired at an instant.
func (m *ownModel) counts(l Limit, now Instant) (sum uint64) {
	for i := range m.at {
		if now-m.at[i] < Instant(l.Period) {
			sum += m.hits[i] * m.price
		}
	}
	return sum
}

// between returns the fewest and the most hits that the log may have at an instant after Continue.
func (m *ownModel) between(l Limit, now Instant) (least, most uint64) {
	cell := Instant(l.Period) / ownedCells
	least, most = min(m.used.Hits, m.counts(l, now)), min(m.used.Hits, m.counts(l, now-cell-1))
	if now-m.used.At < Instant(l.Period) {
		most = m.used.Hits
		least = min(m.used.Hits, m.used.Hits-min(m.used.Hits, m.counts(l, m.used.At))+m.counts(l, now))
	}
	return least, most
}

func TestOwnHitsOfALogExpireAtTheirInstantsAndTheOthersWithTheNewest(t *testing.T) {
	earlier := 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 12))
		l := Limit{Algorithm: SlidingWindowLog, Requests: 10_000, Period: time.Duration(1 + r.Int64N(int64(time.Minute)))}
		var g Log
		m := ownModel{price: 1 + r.Uint64N(9)}
		now := Instant(1_700_000_000_000_000_000)
		for range 300 {
			now += Instant(r.Int64N(int64(l.Period)/20 + 2))
			own := OwnHits{Price: uint32(m.price)}
			if r.IntN(2) == 0 {
				hits := 1 + r.Uint64N(3)
				m.at, m.hits, own.Hits = append(m.at, now), append(m.hits, hits), hits*m.price
			}
			m.used = LogEntry{At: now, Hits: m.counts(l, now)}
			if r.IntN(3) > 0 {
				m.used.Hits += r.Uint64N(20)
			}
			size := g.SizeAfterContinue()
			if g.Continue(l, m.used, own, now); g.Size() > size {
				t.Fatalf("seed %d: the log has %d bytes; want %d at most", seed, g.Size(), size)
			}
			at := now
			for range 6 {
				_, got := g.live(l.Period, at)
				if least, most := m.between(l, at); got < least || got > most {
					t.Fatalf("seed %d, %v after %v of %v: the log has %d hits; want %d to %d", seed, at.Sub(now), m.used, l.Period, got, least, most)
				} else if at-now < Instant(l.Period) && got < m.used.Hits {
					earlier++
				}
				at += Instant(r.Int64N(int64(l.Period)/3 + 1))
			}
		}
	}
	if earlier < 1000 {
		t.Errorf("%d looks saw hits that had expired before the newest one: too few to show anything", earlier)
	}
}

func TestALogThatGoesOnWithoutAPriceHasOneEntry(t *testing.T) {
	l := Limit{Algorithm: SlidingWindowLog, Requests: 10, Period: time.Second}
	var g Log
	now := Instant(1_700_000_000_000_000_000)
	for n := range Instant(5) {
		g.Continue(l, LogEntry{At: now + n*1e8, Hits: 3}, OwnHits{Hits: 1, Price: 1}, now+n*1e8)
	}
	if g.Len() < 3 {
		t.Fatalf("%d entries; want those of this process", g.Len())
	}
	g.Continue(l, LogEntry{At: now + 5e8, Hits: 3}, OwnHits{}, now+5e8)
	if got := g.AppendEntries(nil); len(got) != 1 || got[0] != (LogEntry{At: now + 5e8, Hits: 3}) {
		t.Errorf("got %v; want one entry", got)
	}
}

// With a larger price fewer hits of this process count as much as before, and with a smaller one
// more do.
func TestANewPriceCountsForTheHitsBefore(t *testing.T) {
	l := Limit{Algorithm: SlidingWindowLog, Requests: 100, Period: time.Second}
	for _, tt := range []struct {
		price uint32
		after uint64 // half a second later, when the first two hits have expired
	}{{4, 16}, {8, 8}, {2, 20}, {1, 22}} {
		var g Log
		now := Instant(1_700_000_000_000_000_000)
		for _, at := range []Instant{0, 1, 6e8} {
			g.Continue(l, LogEntry{At: now + at, Hits: 24}, OwnHits{Hits: 4, Price: 4}, now+at)
		}
		g.Continue(l, LogEntry{At: now + 6e8, Hits: 24}, OwnHits{Price: tt.price}, now+6e8)
		if _, got := g.live(l.Period, now+11e8); got != tt.after {
			t.Errorf("price %d: %d hits are left; want %d", tt.price, got, tt.after)
		}
	}
}

func TestALogThatGoesOnAllocatesNothing(t *testing.T) {
	l := Limit{Algorithm: SlidingWindowLog, Requests: 1000, Period: time.Second}
	var g Log
	now := Instant(1_700_000_000_000_000_000)
	next := func() {
		now += 5e6
		g.Continue(l, LogEntry{At: now, Hits: 900}, OwnHits{Hits: 4, Price: 4}, now)
	}
	for range 1000 {
		next()
	}
	if n := testing.AllocsPerRun(1000, next); n > 0 || g.Size() > 32*logEntry+ownedBytes {
		t.Errorf("%v allocations, and %d bytes", n, g.Size())
	}
}
