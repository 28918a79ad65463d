package owed_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	. "github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

const start = algorithms.Instant(1_800_000_000 * time.Second)

// lives says for how long hits of a limit of ten in ten seconds matter, from the start of their
// window or from their instant.
var lives = map[algorithms.Algorithm]time.Duration{
	algorithms.FixedWindow:          10 * time.Second,
	algorithms.SlidingWindowCounter: 20 * time.Second,
	algorithms.SlidingWindowLog:     10 * time.Second,
	algorithms.TokenBucket:          20 * time.Second,
	algorithms.TokenBucketInteger:   20 * time.Second,
}

func charge(a algorithms.Algorithm, hits int64) store.Charge {
	return store.Charge{Key: []byte(a.String()), Limit: algorithms.Limit{Algorithm: a, Requests: 10, Period: 10 * time.Second}, Hits: hits}
}

// model is a slow Book of hits: lists of hits and sums.
type model struct {
	groups []*group
	resets map[algorithms.Algorithm]dropped // of the keys that are being reset
	counts Counts
}

// group is the hits of a window. Without windows, group is the hits to charge, or the hits to give
// back of one instant.
type group struct {
	algorithm algorithms.Algorithm
	back      bool
	newest    algorithms.Instant
	waiting   []hits
	under     int64 // hits to charge that are under way or open
}

type hits struct {
	n  int64
	at algorithms.Instant
}

func windowed(a algorithms.Algorithm) bool {
	return a == algorithms.FixedWindow || a == algorithms.SlidingWindowCounter
}

func (g *group) end() algorithms.Instant {
	from := g.newest
	if windowed(g.algorithm) {
		from -= from % algorithms.Instant(10*time.Second)
	}
	return from.Add(lives[g.algorithm])
}

func (g *group) sum() (sum int64) {
	for _, h := range g.waiting {
		sum += h.n
	}
	return sum
}

func (m *model) group(a algorithms.Algorithm, h hits) *group {
	back := h.n < 0 && !windowed(a)
	same := func(g *group) bool {
		switch {
		case g.algorithm != a || g.back != back:
			return false
		case windowed(a):
			return g.newest/algorithms.Instant(10*time.Second) == h.at/algorithms.Instant(10*time.Second)
		}
		return !back || g.newest == h.at
	}
	m.groups = slices.DeleteFunc(m.groups, func(g *group) bool { return len(g.waiting) == 0 && g.under == 0 })
	i := slices.IndexFunc(m.groups, same)
	if i < 0 {
		i = len(m.groups)
		m.groups = append(m.groups, &group{algorithm: a, back: back, newest: h.at})
	}
	return m.groups[i]
}

func (m *model) add(a algorithms.Algorithm, h hits) {
	g := m.group(a, h)
	g.waiting = append(g.waiting, h)
	g.newest = max(g.newest, h.at)
	if !g.back && !windowed(a) { // the oldest of nine slots of an eighth of a life drops out
		slot := func(at algorithms.Instant) int64 { return int64(at) / int64(lives[a]/8) }
		g.waiting = slices.DeleteFunc(g.waiting, func(h hits) bool { return slot(g.newest)-slot(h.at) > 8 })
	}
}

func (m *model) owed(a algorithms.Algorithm, now algorithms.Instant) (sum int64) {
	for _, g := range m.groups {
		if g.algorithm == a && now < g.end() {
			sum += max(g.sum(), 0) + g.under
		}
	}
	return sum
}

// dropped is hits to charge and hits to give back.
type dropped struct{ charge, back uint64 }

func (d dropped) and(hits int64) dropped {
	return dropped{d.charge + uint64(max(hits, 0)), d.back + uint64(max(-hits, 0))}
}

func (m *model) drop(a algorithms.Algorithm, d dropped) dropped {
	for _, g := range m.groups {
		if g.algorithm == a {
			d = d.and(g.sum())
			g.waiting = nil
		}
	}
	return d
}

func size(n int64) uint64 { return uint64(max(n, -n)) }

type underWay struct {
	of   *group
	what *Telling
}

// A Book of hits does as a model of plain lists.
func TestBookOwesAsPlainLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Book
		m := &model{resets: map[algorithms.Algorithm]dropped{}}
		var sent []underWay
		now := start
		clocks := func() Clocks { return Clocks{Redis: now, Here: now} }
		told := func(u underWay, o Outcome) {
			gone, resets := m.resets[u.of.algorithm]
			for i := range u.what.Charges {
				c := &u.what.Charges[i]
				switch {
				case o == Applied:
				case resets:
					gone = gone.and(c.Hits)
					m.resets[u.of.algorithm] = gone
				case o == Unknown && c.Hits < 0:
					m.counts.Unknown += size(c.Hits)
				default:
					if o == Unknown {
						m.counts.Unknown += size(c.Hits)
					}
					m.add(u.of.algorithm, hits{c.Hits, u.what.Instant[i]})
				}
			}
			for i := range u.what.Charges {
				u.of.under -= max(u.what.Charges[i].Hits, 0)
			}
			b.Told(u.what, o)
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			a := rapid.SampledFrom(algorithms.RateAlgorithms()).Draw(t, "algorithm")
			c := charge(a, rapid.Int64Range(-3, 5).Draw(t, "hits"))
			at := now - algorithms.Instant(rapid.IntRange(0, 15).Draw(t, "ago"))*algorithms.Instant(time.Second)
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0, 1, 2:
				if c.Hits != 0 {
					m.add(a, hits{c.Hits, at})
				}
				b.Add(&c, at, false, Fix{})
			case 3: // a request whose outcome is open, until at once
				c.Hits = max(c.Hits, 1)
				g := m.group(a, hits{c.Hits, at})
				g.under += c.Hits
				h := b.Open(&c, at, false)
				if got, want := b.Owed(&c, now), m.owed(a, now); got != want {
					t.Fatalf("%v: %d owed with an open request, want %d", a, got, want)
				}
				g.under -= c.Hits
				b.Settle(h, c.Hits)
			case 4:
				for _, e := range b.Of(c.Key, Clocks{}) {
					what := b.Tell(e)
					var sum int64
					for i := range what.Charges {
						sum += what.Charges[i].Hits
					}
					g := m.group(a, hits{sum, what.Of})
					if sum != g.sum() {
						t.Fatalf("%v: told %d hits, want %d", a, sum, g.sum())
					}
					g.waiting, g.under = nil, g.under+max(sum, 0)
					sent = append(sent, underWay{g, what})
				}
			case 5:
				if len(sent) > 0 {
					told(sent[0], rapid.SampledFrom([]Outcome{Applied, Refused, Unknown}).Draw(t, "outcome"))
					sent = sent[1:]
				}
			case 6:
				now = now.Add(time.Duration(rapid.IntRange(0, 8).Draw(t, "seconds")) * time.Second)
				b.Look(time.Time{}, clocks(), func(Entry) {})
				for _, g := range m.groups {
					if now-algorithms.Instant(Overdue) >= g.end() {
						m.counts.Expired += size(g.sum())
						g.waiting = nil
					}
				}
			case 7:
				gone, resets := m.resets[a]
				if !resets {
					b.BeginReset(c.Key)
					m.resets[a] = m.drop(a, dropped{})
					break
				}
				failed := rapid.Bool().Draw(t, "failed")
				b.EndReset(c.Key, failed)
				if gone = m.drop(a, gone); failed {
					m.counts.Lost += gone.charge
					m.counts.Unknown += gone.back
				}
				delete(m.resets, a)
			}
			for _, a := range algorithms.RateAlgorithms() {
				c := charge(a, 0)
				if got, want := b.Owed(&c, now), m.owed(a, now); got != want {
					t.Fatalf("%v: %d hits are owed, want %d", a, got, want)
				}
			}
			if got := b.Drain(); got != m.counts {
				t.Fatalf("counts %+v, want %+v", got, m.counts)
			}
			m.counts = Counts{}
		}
		for _, u := range sent {
			told(u, Applied)
		}
		b.Close()
		if hits, holders := b.Size(); hits != 0 || holders != 0 {
			t.Errorf("%d entries of hits and %d of holders are left", hits, holders)
		}
	})
}

// event returns an event of a holder of slots.
func event(p algorithms.HoldPhase, holder string, hits int64) store.Charge {
	return store.Charge{
		Key: []byte("slots"), Limit: algorithms.Limit{Algorithm: algorithms.Concurrency, Requests: 10}, Hits: hits,
		Hold: &store.Hold{Phase: p, Holder: store.HolderOf([]byte(holder)), AtMost: time.Minute},
	}
}

func TestBookTellsTheEventsOfAHolderInTheirOrder(t *testing.T) {
	begun, end, cancel := event(algorithms.HoldBegun, "r", 4), event(algorithms.HoldEnd, "r", 7), event(algorithms.HoldCancel, "r", 0)
	for _, test := range []struct {
		name   string
		events []store.Charge
		want   []algorithms.HoldPhase
		lost   uint64
	}{
		{"a begin", []store.Charge{begun}, []algorithms.HoldPhase{algorithms.HoldBegun}, 0},
		{"an end takes the place of its begin", []store.Charge{begun, end}, []algorithms.HoldPhase{algorithms.HoldEnd}, 0},
		{"a cancel takes the place of a begin", []store.Charge{begun, cancel}, []algorithms.HoldPhase{algorithms.HoldCancel}, 0},
		{"two equal phases are one", []store.Charge{end, end}, []algorithms.HoldPhase{algorithms.HoldEnd}, 0},
		{"an end and a new begin", []store.Charge{end, begun}, []algorithms.HoldPhase{algorithms.HoldEnd, algorithms.HoldBegun}, 0},
		{"at most four", []store.Charge{end, cancel, end, cancel, end}, []algorithms.HoldPhase{
			algorithms.HoldEnd, algorithms.HoldCancel, algorithms.HoldEnd, algorithms.HoldCancel,
		}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			var b Book
			for i := range test.events {
				b.AddEvent(&test.events[i], start, 0)
			}
			what := b.Tell(b.Of([]byte("slots"), Clocks{})[0])
			var got []algorithms.HoldPhase
			for i := range what.Charges {
				got = append(got, what.Charges[i].Hold.Phase)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("told phases %v, want %v", got, test.want)
			}
			if len(b.Of([]byte("slots"), Clocks{})) != 0 {
				t.Error("the events are told twice at once")
			}
			b.Told(what, Unknown)
			if again := b.Tell(what.Entry); len(again.Charges) != len(test.want) {
				t.Errorf("after a lost answer: told %+v, want the same events", again)
			}
			b.Told(what, Applied)
			if counts := b.Drain(); counts != (Counts{ToldEvents: uint64(len(test.want)), LostEvents: test.lost}) {
				t.Errorf("counts %+v", counts)
			}
			if _, holders := b.Size(); holders != 0 {
				t.Errorf("%d holders are left", holders)
			}
		})
	}
}

func TestEventsExpireAndAResetDropsThem(t *testing.T) {
	var b Book
	begun, end := event(algorithms.HoldBegun, "r", 4), event(algorithms.HoldEnd, "r", 4)
	look := func(after time.Duration) (left int) {
		now := start.Add(after)
		b.Look(time.Time{}, Clocks{Redis: now, Here: now}, func(Entry) { left++ })
		return left
	}
	b.AddEvent(&begun, start, 0)
	if left := look(time.Minute + Overdue - 1); left != 1 {
		t.Errorf("%d holders are left before their time is over, want 1", left)
	}
	if left, counts := look(time.Minute+Overdue), b.Drain(); left != 0 || counts.ExpiredEvents != 1 {
		t.Errorf("%d holders are left after their time, %+v", left, counts)
	}
	b.AddEvent(&begun, start, 0)
	what := b.Tell(b.Of(begun.Key, Clocks{})[0])
	b.AddEvent(&end, start, 0)
	b.BeginReset(begun.Key)
	b.Told(what, Unknown)
	b.EndReset(begun.Key, false)
	if left := look(0); left != 0 || b.Knows(&begun) {
		t.Errorf("%d holders are left after a reset", left)
	}
}

func TestBookHasBounds(t *testing.T) {
	var b Book
	for n := range 2 * MostHits {
		c := charge(algorithms.FixedWindow, 2)
		c.Key = fmt.Append(nil, n)
		b.Add(&c, start, false, Fix{})
		e := event(algorithms.HoldBegun, fmt.Sprint(n), 1)
		b.AddEvent(&e, start, 0)
	}
	odd := charge(algorithms.FixedWindow, 1)
	odd.Limit.Period++ // no whole number of microseconds
	b.Add(&odd, start, false, Fix{})
	hits, holders := b.Size()
	if counts := b.Drain(); hits != MostHits || holders != MostHolders || counts != (Counts{Lost: 2*MostHits + 1, LostEvents: MostHolders}) {
		t.Errorf("%d entries of hits, %d holders, %+v", hits, holders, counts)
	}
	b.Close()
	c := charge(algorithms.FixedWindow, 1)
	b.Add(&c, start, false, Fix{})
	if counts := b.Drain(); counts != (Counts{Lost: 2*MostHits + 1, LostEvents: MostHolders}) {
		t.Errorf("after Close: %+v", counts)
	}

	var back Book
	for n := range 20 {
		c := charge(algorithms.TokenBucket, -1)
		back.Add(&c, start.Add(time.Duration(n)*time.Second), false, Fix{})
	}
	if hits, _ := back.Size(); hits != 16 || back.Drain() != (Counts{Unknown: 4}) {
		t.Errorf("%d entries of hits to give back to one key, want 16", hits)
	}
}

// A log gets the hits of each eighth of a period at the end of the eighth, so none counts too
// short.
func TestHitsOfALogAreToldByEighths(t *testing.T) {
	var b Book
	for n := range int64(10) {
		c := charge(algorithms.SlidingWindowLog, 1)
		b.Add(&c, start.Add(time.Duration(n)*time.Second), false, Fix{})
	}
	what := b.Tell(b.Of([]byte("sliding_window_log"), Clocks{})[0])
	sum, last := int64(0), algorithms.Instant(0)
	for i := range what.Charges {
		for range what.Charges[i].Hits {
			own := start.Add(time.Duration(sum) * time.Second)
			if at := what.Instant[i]; at < own || at > own.Add(10*time.Second/8) || at < last {
				t.Errorf("hit %d of %v is told as of %v", sum, own, at)
			}
			last = what.Instant[i]
			sum++
		}
	}
	if sum != 10 || len(what.Charges) != 8 {
		t.Errorf("told %d hits in %d charges, want 10 in 8", sum, len(what.Charges))
	}
}
