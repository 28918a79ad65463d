package promise

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/algorithms"
)

const testPeriod = 100 * time.Millisecond

// flood returns far more requests for a key than any limit here admits, and the hits that a store
// with that limit admits. Each decision falls somewhere in a span of up to two milliseconds.
func flood(l algorithms.Limit, random *rand.Rand) []Request {
	var state algorithms.State
	var log algorithms.Log
	var all []Request
	at := int64(1_800_000_000_000_000_000)
	for range 20_000 {
		at += 1 + random.Int64N(200_000)
		sent, received := at-random.Int64N(1_000_000), at+random.Int64N(1_000_000)
		now := algorithms.Instant(at - at%1000) // Redis counts microseconds
		admitted := fits(l, &state, &log, now)
		if admitted && l.Algorithm == algorithms.SlidingWindowLog {
			log.Take(l, now, 1, false)
		} else if admitted {
			state, _ = algorithms.Take(l, state, now, 1, false)
		}
		all = append(all, Request{Sent: sent, Received: received, Keys: []int{0}, Admitted: admitted})
	}
	return all
}

// judge judges requests for one key.
func judge(l algorithms.Limit, history []Request) Count {
	return Judge([]algorithms.Limit{l}, history, 0)[0]
}

func TestAStoreThatKeepsItsPromiseIsNotBlamed(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		for seed := range uint64(5) {
			l := algorithms.Limit{Algorithm: a, Requests: 70, Period: testPeriod}
			c := judge(l, flood(l, rand.New(rand.NewPCG(seed, 1))))
			if c.Over > 0 || c.Admitted == 0 || c.Admitted < c.Expected*98/100 {
				t.Errorf("%v, seed %d: got %+v; want none over, and as many admitted as expected", a, seed, c)
			}
		}
	}
}

func TestAFewHitsTooManyInEachPeriodAreSeen(t *testing.T) {
	// The counter's spans leave the decay of the window before open while an answer is in flight: here
	// two hits.
	beyond := map[algorithms.Algorithm]uint32{algorithms.SlidingWindowCounter: 3}
	for _, a := range algorithms.RateAlgorithms() {
		for seed := range uint64(5) {
			l := algorithms.Limit{Algorithm: a, Requests: 70, Period: testPeriod}
			loose := l
			loose.Requests += max(beyond[a], 1)
			v := judge(l, flood(loose, rand.New(rand.NewPCG(seed, 2))))
			if v.Over == 0 {
				t.Errorf("%v with %d instead of %d, seed %d: nothing was seen", a, loose.Requests, l.Requests, seed)
			}
		}
	}
}

func TestABurstTooLargeIsSeen(t *testing.T) {
	l := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 70, Period: testPeriod, Extra: algorithms.Extra{Burst: 10}}
	loose := l
	loose.Burst = 13
	if v := judge(l, flood(loose, rand.New(rand.NewPCG(1, 3)))); v.Over == 0 {
		t.Error("a burst of 13 instead of 10: nothing was seen")
	}
}

func TestAStoreThatOnlyDeniesIsFarFromWhatIsExpected(t *testing.T) {
	l := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 70, Period: testPeriod}
	history := flood(l, rand.New(rand.NewPCG(1, 4)))
	for i := range history {
		history[i].Admitted = false
	}
	if c := judge(l, history); c.Admitted != 0 || c.Over != 0 || c.Expected < 70 {
		t.Errorf("got %+v; want nothing admitted, nothing over, and much expected", c)
	}
}

func TestHitsOfEachKeyAreCountedApart(t *testing.T) {
	l := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 2, Period: time.Hour}
	at := int64(1_800_000_000_000_000_000)
	var history []Request
	for range 4 {
		history = append(history, Request{at, at + 1, []int{0, 1}, true}, Request{at, at + 1, []int{2}, false})
	}
	wide := l
	wide.Requests = 3
	want := []Count{{Admitted: 4, Over: 2, Expected: 2}, {Admitted: 4, Over: 1, Expected: 2}, {Expected: 2}}
	got := Judge([]algorithms.Limit{l, wide, l}, history, 0)
	if diff := cmp.Diff(want, got); diff != "" || Over(got) != 3 {
		t.Errorf("counts (-want +got), %d over:\n%s", Over(got), diff)
	}
	want = []Count{{Over: 2}, {Over: 1}, {}}
	if diff := cmp.Diff(want, Judge([]algorithms.Limit{l, wide, l}, history, at+1)); diff != "" {
		t.Errorf("counts since the last request (-want +got):\n%s", diff)
	}
}

func TestARequestBetweenTwoWindowsBelongsToTheOneWithRoom(t *testing.T) {
	l := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 2, Period: 10}
	for _, test := range []struct {
		name  string
		spans []span
		want  int
	}{
		{"one window full", []span{{1, 2}, {3, 4}}, 0},
		{"one too many", []span{{1, 2}, {3, 4}, {5, 6}}, 1},
		{"the third may belong to the next", []span{{1, 2}, {3, 4}, {9, 11}}, 0},
		{"but the next is full", []span{{1, 2}, {3, 4}, {9, 11}, {12, 13}, {14, 15}}, 1},
		{"two between make room for each other", []span{{1, 2}, {9, 11}, {8, 12}, {12, 13}}, 0},
		{"a long one gives way to a short one", []span{{1, 25}, {2, 8}, {3, 9}}, 0},
		{"over three windows", []span{{1, 25}, {2, 8}, {3, 9}, {11, 12}, {11, 13}, {22, 23}, {22, 24}}, 1},
	} {
		if got := overWindows(l, test.spans); got != test.want {
			t.Errorf("%s: got %d; want %d", test.name, got, test.want)
		}
	}
}

func TestPeaksAreThoseOfASlowSearch(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 5))
	for range 200 {
		var spans []span
		for range 1 + random.IntN(30) {
			from := random.Int64N(40)
			spans = append(spans, span{from, from + random.Int64N(20)})
		}
		tree := newPeaks(spans, func(from int64) int64 { return 3 * from })
		var values []int64
		for _, b := range tree.begins {
			values = append(values, 3*(b-tree.origin))
		}
		for _, s := range spans {
			tree.add(s.from, 5)
			for i, b := range tree.begins {
				if b <= s.from {
					values[i] += 5
				}
			}
			from, to := random.Int64N(40), random.Int64N(40)
			want := int64(least)
			for i, b := range tree.begins {
				if from <= b && b <= to {
					want = max(want, values[i])
				}
			}
			if got := tree.max(from, to); got != want {
				t.Fatalf("from %d to %d of %v: got %d; want %d", from, to, spans, got, want)
			}
		}
	}
}
