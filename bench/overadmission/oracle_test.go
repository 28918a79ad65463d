package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/algorithms"
)

const testPeriod = 100 * time.Millisecond

// flood returns far more requests for a key than any limit here admits, and the hits that a store with that limit admits. Each
// decision falls somewhere in a span of up to two milliseconds.
func flood(l algorithms.Limit, random *rand.Rand) []asked {
	var state algorithms.State
	var log algorithms.Log
	var all []asked
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
		all = append(all, asked{sent: sent, received: received, admitted: admitted})
	}
	return all
}

// planOf is one key with that limit.
func planOf(l algorithms.Limit) *plan {
	return &plan{algorithm: l.Algorithm, limits: []algorithms.Limit{l}, choices: []choice{{keys: []int{0}}}}
}

func TestAStoreThatKeepsItsPromiseIsNotBlamed(t *testing.T) {
	for _, a := range algorithms.Algorithms() {
		for seed := range uint64(5) {
			l := algorithms.Limit{Algorithm: a, Requests: 70, Period: testPeriod}
			v := judge(planOf(l), flood(l, rand.New(rand.NewPCG(seed, 1))))
			if err := v.err(); err != nil {
				t.Errorf("%v, seed %d: %v", a, seed, err)
			}
		}
	}
}

func TestAFewHitsTooManyInEachPeriodAreSeen(t *testing.T) {
	// The counter's spans leave the decay of the window before open while an answer is in flight: here two hits.
	beyond := map[algorithms.Algorithm]uint32{algorithms.SlidingWindowCounter: 3}
	for _, a := range algorithms.Algorithms() {
		for seed := range uint64(5) {
			l := algorithms.Limit{Algorithm: a, Requests: 70, Period: testPeriod}
			loose := l
			loose.Requests += max(beyond[a], 1)
			v := judge(planOf(l), flood(loose, rand.New(rand.NewPCG(seed, 2))))
			if v.over == 0 {
				t.Errorf("%v with %d instead of %d, seed %d: nothing was seen", a, loose.Requests, l.Requests, seed)
			}
		}
	}
}

func TestABurstTooLargeIsSeen(t *testing.T) {
	l := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 70, Period: testPeriod, Burst: 10}
	loose := l
	loose.Burst = 13
	if v := judge(planOf(l), flood(loose, rand.New(rand.NewPCG(1, 3)))); v.over == 0 {
		t.Error("a burst of 13 instead of 10: nothing was seen")
	}
}

func TestAStoreThatOnlyDeniesFails(t *testing.T) {
	l := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 70, Period: testPeriod}
	history := flood(l, rand.New(rand.NewPCG(1, 4)))
	for i := range history {
		history[i].admitted = false
	}
	if v := judge(planOf(l), history); v.err() == nil || v.over != 0 {
		t.Errorf("got %d over, %v; want an error and none", v.over, v.err())
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

func TestRequestsChargeWhatTheirRulesSay(t *testing.T) {
	o := options{keys: 4, requests: 10, period: time.Second, several: true}
	p, err := newPlan(o, algorithms.TokenBucket)
	if err != nil {
		t.Fatal(err)
	}
	var keys [][]int
	for _, c := range p.choices {
		keys = append(keys, c.keys)
	}
	want := [][]int{{0, 4}, {0, 5}, {1, 4}, {1, 5}, {2, 4}, {2, 5}, {3, 4}, {3, 5}}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("keys of the requests (-want +got):\n%s", diff)
	}
	bursts := make([]uint32, 0, len(p.limits))
	for _, l := range p.limits {
		bursts = append(bursts, l.Burst)
	}
	if want := []uint32{2, 2, 2, 2, 4, 4}; !slices.Equal(bursts, want) {
		t.Errorf("bursts of the keys: got %v; want %v", bursts, want)
	}
}
