package memstore

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// A sweep of many live keys makes no work for the garbage collector.
func TestASweepAllocatesNothingForEachKey(t *testing.T) {
	s, err := New(Options{Virtual: func() algorithms.Instant { return algorithms.Instant(time.Hour) }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 10, Period: 24 * time.Hour}
	const keys = 20_000
	for i := range keys {
		var d [1]algorithms.Decision
		if _, err := store.Take(context.Background(), s, []store.Charge{{Key: strconv.AppendInt(nil, int64(i), 10), Limit: limit, Hits: 1}}, d[:]); err != nil {
			t.Fatal(err)
		}
	}
	got := testing.AllocsPerRun(3, s.Sweep)
	if most := float64(4 * len(s.shards)); got > most || s.Stats().Keys != keys {
		t.Errorf("a sweep of %d keys made %v allocations, want at most %v", s.Stats().Keys, got, most)
	}
}
