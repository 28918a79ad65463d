package algorithms

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// giveBack gives hits back that were charged at an instant, under the limit of the key.
func (k *key) giveBack(charged, now Instant, hits uint32) {
	if k.limit.Algorithm == SlidingWindowLog {
		k.log.GiveBack(k.limit, now, charged, hits)
		return
	}
	k.state, _ = GiveBack(k.limit, k.limit, k.state, charged, now, hits)
}

// giveBack gives hits back by the words of the semantics: a window looks for its own hits, a bucket
// refunds.
func (r *reference) giveBack(charged, now Instant, hits uint32) {
	if hits == 0 {
		return
	}
	l, window := r.limit, windowOf(r.limit, of(charged))
	switch m := r.model.(type) {
	case *windowModel:
		if held, count := m.at(l, of(now)); window.is(windowOf(l, held)) && !count.is(of(0)) {
			count = larger(of(0), count.minus(of(hits)))
			*m = windowModel{used: !count.is(of(0)), last: held, count: count}
		}
	case *counterModel:
		held, current, previous := m.at(l, of(now))
		switch {
		case window.is(windowOf(l, held)) && !current.is(of(0)):
			m.set(held, larger(of(0), current.minus(of(hits))), previous)
		case window.plus(of(1)).is(windowOf(l, held)) && !previous.is(of(0)):
			m.set(held, current, larger(of(0), previous.minus(of(hits))))
		}
	case *logModel:
		held := m.held(of(now))
		for i, e := range m.entries {
			if e.at.is(of(charged)) && held.minus(of(l.Period)).less(e.at) {
				back := smaller(e.hits, of(hits))
				m.entries[i].hits, hits, m.last = e.hits.minus(back), hits-uint32(back.whole()), held
			}
		}
		m.entries = slices.DeleteFunc(m.entries, func(e logModelEntry) bool { return e.hits.is(of(0)) })
	default:
		m.take(l, of(now), of(0).minus(of(hits)), false)
	}
}

func TestHitsThatAreGivenBackEqualTheReference(t *testing.T) {
	holdsOf(t, 300, RateAlgorithms(), func(t failer, c chooser, a Algorithm) { compareGivingBack(t, c, a) })
}

func FuzzGiveBack(f *testing.F) {
	addWalks(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		a, c := chooseAlgorithm(data)
		compareGivingBack(t, c, a)
	})
}

// compareGivingBack walks a key and its reference through the same charges, and gives hits of the
// charges back.
func compareGivingBack(t failer, c chooser, a Algorithm) {
	t.Helper()
	c, steps := walk(c, 25)
	l := chooseLimit(c, a)
	k, r := newKey(l), newReference(l)
	charges := []admission{{at: chooseStart(c)}}
	now := charges[0].at
	var h history
	var d Decision
	h.note("limit %+v", l)
	for range steps {
		now = chooseNext(c, l, now, d)
		if c.upTo("give back", 2) == 0 {
			charge := pick(c, "charge", charges...)
			charged := pick(c, "charged", charge.at, charge.at, charge.at, charge.at+1, shift(charge.at, l.Period), now)
			hits := uint32(pick(c, "given back", charge.hits, 1, charge.hits/2, charge.hits+1, 0, math.MaxUint32))
			h.note("%d give back %d of %d, before it %v", now, hits, charged, k)
			k.giveBack(charged, now, hits)
			r.giveBack(charged, now, hits)
		}
		hits, countRejected := chooseHits(c, l, d, false), c.upTo("count rejected", 2) == 1
		h.note("%d take %d %v, before it %v", now, hits, countRejected, k)
		held := k.held(now)
		want := r.take(now, hits, countRejected)
		if d = k.take(now, hits, countRejected); d != want {
			t.Fatalf("decision differs from the reference's:\n%s\n(-reference +got)\n%s", h.String(), cmp.Diff(want, d))
		}
		remains(t, k, now, d)
		if d.Allowed && hits > 0 {
			charges = append(charges, admission{held, min(hits, MaxCount)})
		}
	}
}

// The hits of a charge come back to the window of the charge, and to no other.
func TestAWindowGivesBackOnlyItsOwnHits(t *testing.T) {
	const at = Instant(1000 * time.Second) // a window starts
	tests := []struct {
		name          string
		algorithm     Algorithm
		charged, now  time.Duration
		before, after uint64 // remaining of 10 at now; 4 hits were taken at 0 s, 3 at 10 s and 2 at 15 s
	}{
		{"fixed_in_its_window", FixedWindow, 11 * time.Second, 19 * time.Second, 5, 9},
		{"fixed_in_the_next_window", FixedWindow, 9 * time.Second, 19 * time.Second, 5, 5},
		{"fixed_of_the_next_window", FixedWindow, 20 * time.Second, 19 * time.Second, 5, 5},
		{"counter_in_its_window", SlidingWindowCounter, 10 * time.Second, 15 * time.Second, 3, 7},
		{"counter_in_the_next_window", SlidingWindowCounter, 0, 15 * time.Second, 3, 5},
		{"counter_two_windows_later", SlidingWindowCounter, 9 * time.Second, 20 * time.Second, 5, 5},
		{"log_at_its_instant", SlidingWindowLog, 10 * time.Second, 19 * time.Second, 5, 8},
		{"log_a_nanosecond_later", SlidingWindowLog, 10*time.Second + 1, 19 * time.Second, 5, 5},
		{"log_of_expired_hits", SlidingWindowLog, 0, 19 * time.Second, 5, 5},
		{"bucket", TokenBucket, 0, 15 * time.Second, 6, 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := newKey(Limit{Algorithm: tt.algorithm, Requests: 10, Period: 10 * time.Second})
			if tt.algorithm == TokenBucket {
				k.limit.Period = 30 * time.Second // refills 5 of the 9 in 15 s, so 4 are missing
			}
			for _, charge := range []struct {
				at   time.Duration
				hits int64
			}{{0, 4}, {10 * time.Second, 3}, {15 * time.Second, 2}} {
				k.take(at.Add(charge.at), charge.hits, false)
			}
			now := at.Add(tt.now)
			if got := k.clone().take(now, 0, false).Remaining; got != tt.before {
				t.Errorf("%d remain before; want %d", got, tt.before)
			}
			k.giveBack(at.Add(tt.charged), now, 4)
			if got := k.take(now, 0, false).Remaining; got != tt.after {
				t.Errorf("%d remain after 4 are given back; want %d", got, tt.after)
			}
		})
	}
}

func TestGivingBackUnderAnotherLimitCarriesTheStateOver(t *testing.T) {
	for _, a := range []Algorithm{FixedWindow, SlidingWindowCounter, TokenBucket, TokenBucketInteger} {
		was, now := Limit{Algorithm: a, Requests: 10, Period: time.Second}, Instant(1_000_000_000_000)
		small := was
		small.Requests = 5
		s, _ := Take(was, State{}, now, 8, false)
		s, carried := GiveBack(was, small, s, now, now, 8)
		_, _, d := TakeAs(carried, small, s, now, 5, Refuse)
		if _, _, over := TakeAs(carried, small, s, now, 6, Refuse); !d.Allowed || over.Allowed {
			t.Errorf("%v: after 8 of 8 hits came back, 5 of 5 are %+v and 6 are %+v", a, d, over)
		}
		if s, carried := GiveBack(was, small, State{}, now, now, 8); !s.Unused() || carried.Algorithm != a {
			t.Errorf("%v: hits came back to a key never used: %+v under %+v", a, s, carried)
		}
	}
}

// A log of any history gives the hits of an instant back, keeps all other entries, and keeps its
// bound of memory.
func TestALogGivesBackTheHitsOfOneInstant(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var g Log
		l := Limit{Algorithm: SlidingWindowLog, Requests: 1000, Period: time.Hour}
		var want []LogEntry
		now := Instant(0)
		for range rapid.IntRange(0, 100).Draw(rt, "entries") {
			now += Instant(rapid.Int64Range(1, 5).Draw(rt, "pause"))
			hits := rapid.Int64Range(1, 3).Draw(rt, "hits")
			g.Take(l, now, hits, false)
			want = append(want, LogEntry{now, uint64(hits)})
		}
		for range rapid.IntRange(0, 100).Draw(rt, "gives") {
			charged, hits := Instant(rapid.Int64Range(0, int64(now)+1).Draw(rt, "charged")), rapid.Uint32Range(0, 4).Draw(rt, "back")
			g.GiveBack(l, now, charged, hits)
			for i := range want {
				if want[i].At == charged {
					want[i].Hits -= min(want[i].Hits, uint64(hits))
				}
			}
			want = slices.DeleteFunc(want, func(e LogEntry) bool { return e.Hits == 0 })
			if got := g.AppendEntries(nil); !slices.Equal(got, want) {
				rt.Fatalf("%d of %d given back: %v; want %v", hits, charged, got, want)
			}
			if length := len(g.ring); length >= logShrinks && 8*g.Len() <= length {
				rt.Fatalf("a log of %d entries has memory for %d", g.Len(), length)
			}
		}
	})
}

func TestGivingBackAtTheEndsOfTimeIsExact(t *testing.T) {
	instants := []Instant{math.MinInt64, math.MinInt64 + 1, -1, 0, math.MaxInt64 - Instant(MaxPeriod), math.MaxInt64 - 1, math.MaxInt64}
	for _, a := range RateAlgorithms() {
		for _, l := range extremeLimits(a) {
			for _, first := range instants {
				for _, charged := range instants {
					for _, second := range instants {
						k, r := newKey(l), newReference(l)
						k.take(first, MaxHits, true)
						r.take(first, MaxHits, true)
						k.giveBack(charged, second, math.MaxUint32)
						r.giveBack(charged, second, math.MaxUint32)
						if got, want := k.take(second, 1, true), r.take(second, 1, true); got != want {
							t.Fatalf("%+v: %d of %d at %d: (-reference +got)\n%s", l, first, charged, second, cmp.Diff(want, got))
						}
					}
				}
			}
		}
	}
}
