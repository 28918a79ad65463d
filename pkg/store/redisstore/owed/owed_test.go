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
	if !g.back && !windowed(a) {
		g.waiting = slices.DeleteFunc(g.waiting, func(h hits) bool { return g.newest.Sub(h.at) >= lives[a] })
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

// unleveled are the algorithms whose hits are owed as they are. Hits of buckets are gained again.
var unleveled = []algorithms.Algorithm{algorithms.FixedWindow, algorithms.SlidingWindowCounter, algorithms.SlidingWindowLog}

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
			b.Told(u.what, o, clocks())
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			a := rapid.SampledFrom(unleveled).Draw(t, "algorithm")
			c := charge(a, rapid.Int64Range(-3, 5).Draw(t, "hits"))
			at := now - algorithms.Instant(rapid.IntRange(0, 15).Draw(t, "ago"))*algorithms.Instant(time.Second)
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0, 1, 2:
				if c.Hits != 0 {
					m.add(a, hits{c.Hits, at})
				}
				b.Add(&c, Late{At: at})
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
					what := b.Tell(e, clocks())
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
			for _, a := range unleveled {
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
			what := b.Tell(b.Of([]byte("slots"), Clocks{})[0], Clocks{})
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
			b.Told(what, Unknown, Clocks{})
			if again := b.Tell(what.Entry, Clocks{}); len(again.Charges) != len(test.want) {
				t.Errorf("after a lost answer: told %+v, want the same events", again)
			}
			b.Told(what, Applied, Clocks{})
			if counts := b.Drain(); counts != (Counts{ToldEvents: uint64(len(test.want)), LostEvents: test.lost}) {
				t.Errorf("counts %+v", counts)
			}
			if _, holders := b.Size(); holders != 0 {
				t.Errorf("%d holders are left", holders)
			}
		})
	}
}

// A pair that Redis may have applied would have another effect the second time.
func TestAPairIsToldOnceAsAPair(t *testing.T) {
	var b Book
	first, second := event(algorithms.HoldPair, "r", 7), event(algorithms.HoldPair, "r", 7)
	first.Hold.Estimate = 4
	b.AddEvent(&first, start, 0)
	b.AddEvent(&second, start, 0)
	what := b.Tell(b.Of([]byte("slots"), Clocks{})[0], Clocks{})
	if len(what.Charges) != 2 || what.Charges[0].Hold.Phase != algorithms.HoldPair || what.Charges[1].Hold.Phase != algorithms.HoldPair {
		t.Errorf("told %+v, want two pairs", what.Charges)
	}
	b.Told(what, Unknown, Clocks{})
	again := b.Tell(what.Entry, Clocks{}).Charges
	if len(again) != 2 || again[0].Hold.Phase != algorithms.HoldBegun || again[0].Hits != 4 || again[1].Hold.Phase != algorithms.HoldBegun {
		t.Errorf("after a lost answer: told %+v, want a begin of 4", again)
	}
}

// Slots of holders that Redis was not told of are owed until it was.
func TestSlotsOfHoldersAreOwedUntilTold(t *testing.T) {
	var b Book
	for _, holder := range []string{"r", "s"} {
		begun := event(algorithms.HoldBegun, holder, 4)
		b.AddEvent(&begun, start, 0)
	}
	c := event(algorithms.HoldBegin, "t", 1)
	owes := func(want int64) {
		t.Helper()
		if got := b.Owed(&c, start); got != want {
			t.Errorf("%d slots are owed, want %d", got, want)
		}
	}
	owes(8)
	what := b.Tell(b.Of(c.Key, Clocks{})[0], Clocks{})
	owes(8) // Redis may not have read the call
	b.Told(what, Applied, Clocks{})
	owes(4)
	for _, holder := range []string{"r", "s"} {
		end := event(algorithms.HoldEnd, holder, 4)
		b.AddEvent(&end, start, 0)
	}
	owes(0)
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
	what := b.Tell(b.Of(begun.Key, Clocks{})[0], Clocks{})
	b.AddEvent(&end, start, 0)
	b.BeginReset(begun.Key)
	b.Told(what, Unknown, Clocks{})
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
		b.Add(&c, Late{At: start})
		e := event(algorithms.HoldBegun, fmt.Sprint(n), 1)
		b.AddEvent(&e, start, 0)
	}
	odd := charge(algorithms.FixedWindow, 1)
	odd.Limit.Period++ // no whole number of microseconds
	b.Add(&odd, Late{At: start})
	hits, holders := b.Size()
	if counts := b.Drain(); hits != MostHits || holders != MostHolders || counts != (Counts{Lost: 2*MostHits + 1, LostEvents: MostHolders}) {
		t.Errorf("%d entries of hits, %d holders, %+v", hits, holders, counts)
	}
	b.Close()
	c := charge(algorithms.FixedWindow, 1)
	b.Add(&c, Late{At: start})
	if counts := b.Drain(); counts != (Counts{Lost: 2*MostHits + 1, LostEvents: MostHolders}) {
		t.Errorf("after Close: %+v", counts)
	}

	var back Book
	for n := range 20 {
		c := charge(algorithms.TokenBucket, -1)
		back.Add(&c, Late{At: start.Add(time.Duration(n) * time.Second)})
	}
	if hits, _ := back.Size(); hits != 16 || back.Drain() != (Counts{Unknown: 4}) {
		t.Errorf("%d entries of hits to give back to one key, want 16", hits)
	}
}

// A log gets the hits of each 32nd of a period as of the newest of them, so none counts too short.
func TestHitsOfALogAreToldByTheirAges(t *testing.T) {
	var b Book
	const width = 10 * time.Second / 32
	for n := range int64(100) {
		c := charge(algorithms.SlidingWindowLog, 1)
		b.Add(&c, Late{At: start.Add(time.Duration(n) * 97 * time.Millisecond)})
	}
	what := b.Tell(b.Of([]byte("sliding_window_log"), Clocks{})[0], Clocks{})
	sum, last := int64(0), algorithms.Instant(0)
	for i := range what.Charges {
		for range what.Charges[i].Hits {
			own := start.Add(time.Duration(sum) * 97 * time.Millisecond)
			if at := what.Instant[i]; at < own || at > own.Add(width) || at < last {
				t.Errorf("hit %d of %v is told as of %v", sum, own, at)
			}
			last = what.Instant[i]
			sum++
		}
	}
	if sum != 100 || len(what.Charges) > 33 {
		t.Errorf("told %d hits in %d charges, want 100 in at most 33", sum, len(what.Charges))
	}
}

// deficit is a bucket of plain numbers.
type deficit struct {
	lacks float64
	at    algorithms.Instant
}

// take lets the bucket gain that many hits a second until an instant, and takes hits.
func (d *deficit) take(at algorithms.Instant, perSecond float64, hits int64) {
	if at > d.at {
		d.lacks = max(0, d.lacks-at.Sub(d.at).Seconds()*perSecond)
		d.at = at
	}
	d.lacks += float64(hits)
}

// A Book owes hits of a bucket, and Redis has a deficit. The sum is the deficit after all hits,
// each charged at its own instant: never less, and more by rounding only. No refused or lost call
// changes that. If two calls are under way and the first one is refused, its hits may be owed in
// full.
func TestHitsOfABucketAreOwedLessTheGainOfTheirPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Book
		of := rapid.Uint32Range(1, 5).Draw(t, "processes")
		part := store.Part{Full: start.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "full")) * time.Second), Mine: 1, Of: of}
		perSecond := 1 / float64(of)
		all, told := deficit{at: part.Full}, deficit{at: part.Full}
		now, rounded, overlaps := start, 0.0, false
		var sent []*Telling
		clocks := func() Clocks { return Clocks{Redis: now, Here: now} }
		end := func(o Outcome) {
			what := sent[0]
			sent = sent[1:]
			b.Told(what, o, clocks())
			switch rounded++; {
			case o != Applied:
			case what.Instant[0] >= told.at:
				told.take(what.Instant[0], perSecond, what.Charges[0].Hits)
			default:
				told.take(told.at, perSecond, what.Charges[0].Hits)
			}
		}
		c := charge(rapid.SampledFrom([]algorithms.Algorithm{algorithms.TokenBucket, algorithms.TokenBucketInteger}).Draw(t, "algorithm"), 0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0, 1:
				c.Hits = rapid.Int64Range(1, 3).Draw(t, "hits")
				all.take(now, perSecond, 0)
				part.Full = all.at.Add(time.Duration(all.lacks / perSecond * float64(time.Second)))
				b.Add(&c, Late{At: now, Part: part})
				all.take(now, perSecond, c.Hits)
			case 2:
				for _, e := range b.Of(c.Key, clocks()) {
					overlaps = overlaps || len(sent) > 0
					sent = append(sent, b.Tell(e, clocks()))
				}
			case 3:
				if len(sent) > 0 {
					end(rapid.SampledFrom([]Outcome{Applied, Refused, Unknown}).Draw(t, "outcome"))
				}
			case 4:
				now = now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "milliseconds")) * time.Millisecond)
			}
			if len(sent) > 0 {
				continue // Redis may count these hits or not
			}
			all.take(now, perSecond, 0)
			told.take(now, perSecond, 0)
			owed := float64(b.Owed(&c, now))
			const exact = 1e-6
			if got, want := told.lacks+owed, all.lacks; got < want-exact || !overlaps && got > want+1+rounded+exact {
				t.Fatalf("Redis lacks %.3f and %.0f hits are owed; want %.3f, and at most %.0f more by rounding", told.lacks, owed, want, 1+rounded)
			}
		}
		for len(sent) > 0 {
			end(Applied)
		}
		now = now.Add(10 * time.Minute)
		b.Look(time.Time{}, clocks(), func(Entry) { t.Error("hits are owed after ten minutes") })
		if hits, _ := b.Size(); hits != 0 {
			t.Errorf("%d entries are left", hits)
		}
	})
}

// An outage of 45 s at half of the rate leaves next to nothing, also if each second a call fails.
func TestARefusedCallDoesNotMakeHitsYounger(t *testing.T) {
	var b Book
	c := charge(algorithms.TokenBucket, 1)
	now := start
	for n := range 45 * 10 {
		if n%20 == 0 { // half of the rate
			b.Add(&c, Late{At: now, Part: store.Part{Full: now, Mine: 1, Of: 1}})
		}
		for _, e := range b.Of(c.Key, Clocks{Redis: now}) {
			b.Told(b.Tell(e, Clocks{Redis: now}), []Outcome{Refused, Unknown}[n%2], Clocks{Redis: now})
		}
		now = now.Add(100 * time.Millisecond)
		if left := b.Owed(&c, now); left > 1 {
			t.Fatalf("%v after the start %d hits are owed, want at most 1", now.Sub(start), left)
		}
	}
}

// Between the look at a bucket and the call, the bucket can gain all of its hits. A call without
// charges must not come of that.
func TestABucketThatHasGainedAllOwesNoCall(t *testing.T) {
	c := store.Charge{Key: []byte("k"), Limit: algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1, Period: time.Second}, Hits: 1}
	var b Book
	b.Add(&c, Late{At: 1})
	of := b.Of(c.Key, Clocks{Redis: 1})
	if len(of) != 1 {
		t.Fatalf("got %d entries, want 1", len(of))
	}
	later := Clocks{Redis: algorithms.Instant(time.Minute)}
	if told := b.Tell(of[0], later); told != nil {
		t.Errorf("got a telling of %v, want none", told.Charges)
	}
	if hits, _ := b.Size(); hits != 0 {
		t.Errorf("the book has %d entries, want none", hits)
	}
	if counts := b.Drain(); counts.Expired != 1 || counts.Lost+counts.Unknown != 0 {
		t.Errorf("got %+v, want one hit that does not matter any more", counts)
	}
}

// A hit on the way is the newest of its log, too.
func TestALogOwesNoHitThatIsAPeriodOlderThanAHitOnTheWay(t *testing.T) {
	var b Book
	c := charge(algorithms.SlidingWindowLog, 1)
	b.Add(&c, Late{At: start})
	b.Tell(b.Of(c.Key, Clocks{})[0], Clocks{})
	b.Add(&c, Late{At: start - algorithms.Instant(10*time.Second)})
	if got := b.Owed(&c, start); got != 1 {
		t.Errorf("%d hits are owed, want the one on the way", got)
	}
}
