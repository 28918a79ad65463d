package durations

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/pkg/store"
)

func TestADurationAtABoundCountsBelowIt(t *testing.T) {
	var h Histogram
	for _, d := range []time.Duration{-time.Second, 0, 10 * time.Microsecond, 10*time.Microsecond + 1, 2 * time.Millisecond, 100 * time.Millisecond, time.Second} {
		h.Observe(d)
	}
	want := store.Durations{
		Buckets: map[float64]uint64{
			1e-05: 3, 2.5e-05: 4, 5e-05: 4, 1e-04: 4, 0.00025: 4, 0.0005: 4, 0.001: 4, 0.0025: 5, 0.005: 5, 0.01: 5, 0.025: 5,
			0.05: 5, 0.1: 6,
		},
		Count: 7,
		Sum:   1102*time.Millisecond + 20*time.Microsecond + 1,
	}
	if diff := cmp.Diff(want, h.Snapshot()); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
}

func TestTheZeroHistogramHasAllBuckets(t *testing.T) {
	var h Histogram
	s := h.Snapshot()
	if len(s.Buckets) != len(h.buckets)-1 || s.Count != 0 || s.Sum != 0 {
		t.Errorf("got %+v, want every bucket, all empty", s)
	}
}

func TestObservingLosesNothing(t *testing.T) {
	const routines, each = 8, 1000
	var h Histogram
	var observing sync.WaitGroup
	for range routines {
		observing.Go(func() {
			for i := range each {
				h.Observe(time.Duration(i) * time.Microsecond)
			}
		})
	}
	observing.Wait()
	want := store.Durations{Count: routines * each, Sum: routines * each * (each - 1) / 2 * time.Microsecond}
	if diff := cmp.Diff(want, h.Snapshot(), cmpopts.IgnoreFields(store.Durations{}, "Buckets")); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
}

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{"pkg/algorithms", "pkg/store"}, Third: []string{}})
}
