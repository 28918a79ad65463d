package memstore

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/pkg/algorithms"
)

func TestDeniedHitsAreRoundedUpByLessThanAnEighth(t *testing.T) {
	check := func(t rapid.TB, hits uint64) {
		got := deniedHitsOf(hits).hits()
		if got < hits || hits <= 16 && got != hits || 8*(got-hits) >= hits {
			t.Fatalf("%d hits are kept as %d", hits, got)
		}
	}
	for hits := uint64(1); hits < 5000; hits++ {
		check(t, hits)
	}
	check(t, algorithms.MaxHits)
	rapid.Check(t, func(rt *rapid.T) { check(rt, rapid.Uint64Range(1, algorithms.MaxHits).Draw(rt, "hits")) })
	for h := range 240 { // 240 is the largest number of hits
		if got := deniedHitsOf(deniedHits(h).hits()); got != deniedHits(h) {
			t.Errorf("%d hits, kept as %d, are kept as %d", deniedHits(h).hits(), h, got)
		}
	}
}

func TestDeniedHitsAreOfTheLastDenialUntilAsManyPass(t *testing.T) {
	limit := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 100, Period: algorithms.MinPeriod}
	ban := algorithms.Limit{Algorithm: algorithms.TokenBucket, Period: algorithms.MinPeriod}
	var h deniedHits
	for i, step := range []struct {
		limit   algorithms.Limit
		hits    int64
		allowed bool
		want    uint64
	}{
		{limit, 1, true, 1},
		{limit, 7, false, 7},
		{limit, 0, true, 7},
		{limit, -100, true, 7},
		{limit, 6, true, 7},
		{ban, 9, false, 7},
		{limit, 9, false, 9},
		{limit, 0, false, 9},
		{limit, 3, false, 3},
		{limit, 3, true, 1},
		{limit, algorithms.MaxHits, false, 100}, // 100 is the capacity, though the byte says 105
		{limit, 100, true, 100},
		{limit, 1, false, 1},
	} {
		h = h.after(&step.limit, step.hits, step.allowed)
		if got := h.of(&limit); got != step.want {
			t.Fatalf("step %d, %d hits, allowed %v: denied for %d hits; want %d", i, step.hits, step.allowed, got, step.want)
		}
	}
}
