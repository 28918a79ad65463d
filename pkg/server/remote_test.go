package server

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/durations"
)

func TestFiguresOfARemoteStoreAreMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took durations.Histogram
		took.Observe(300 * time.Microsecond)
		took.Observe(time.Second)
		stats := RemoteStats{
			State: "half_open", Opened: 1, Timeouts: 2, Unavailable: 3, Other: 4, Local: 5, Allow: 6, Deny: 7,
			RoundTrip: took.Snapshot(), RoundTrips: 8, Transactions: 9, DeniedLocally: 10, DeniedKeys: 11, DeferredHits: 12, LostHits: 13,
		}
		f := start(t, everything, func(o *Options) { o.Remote = func() RemoteStats { return stats } })
		want := map[string]float64{
			"weir_store_up":                                       0,
			`weir_store_state{state="closed"}`:                    0,
			`weir_store_state{state="open"}`:                      0,
			`weir_store_state{state="half_open"}`:                 1,
			"weir_store_opened_total":                             1,
			`weir_store_errors_total{kind="timeout"}`:             2,
			`weir_store_errors_total{kind="unavailable"}`:         3,
			`weir_store_errors_total{kind="other"}`:               4,
			`weir_store_fallback_decisions_total{policy="local"}`: 5,
			`weir_store_fallback_decisions_total{policy="allow"}`: 6,
			`weir_store_fallback_decisions_total{policy="deny"}`:  7,
			"weir_store_round_trips_total":                        8,
			"weir_store_transactions_total":                       9,
			"weir_store_denied_locally_total":                     10,
			"weir_store_denied_keys":                              11,
			"weir_store_deferred_hits_total":                      12,
			"weir_store_lost_hits_total":                          13,
			"weir_store_request_duration_seconds_count":           2,
			"weir_store_request_duration_seconds_sum":             1.0003,
			"weir_store_request_duration_seconds_le_1e-05":        0,
			"weir_store_request_duration_seconds_le_0.00025":      0,
			"weir_store_request_duration_seconds_le_0.0005":       1,
			"weir_store_request_duration_seconds_le_0.1":          1,
			"weir_store_keys":                                     0, // of memory
			`weir_store_full_total{action="deny"}`:                0,
		}
		got := gather(t, f.registry, "weir_store_")
		for name := range got {
			if _, ok := want[name]; !ok {
				delete(got, name)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		stats.State, stats.Up = "closed", true
		got = gather(t, f.registry, "weir_store_")
		if got["weir_store_up"] != 1 || got[`weir_store_state{state="closed"}`] != 1 || got[`weir_store_state{state="half_open"}`] != 0 {
			t.Errorf("with the breaker closed: got %v", got)
		}
	})
}

func TestAStoreInThisProcessHasNoMetricsOfARemoteOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		got := gather(t, f.registry, "weir_store_")
		maps.DeleteFunc(got, func(name string, _ float64) bool {
			switch name {
			case "weir_store_keys", "weir_store_max_keys", "weir_store_evictions_total", "weir_store_swept_total",
				`weir_store_full_total{action="allow"}`, `weir_store_full_total{action="deny"}`:
				return true
			}
			return false
		})
		if len(got) > 0 {
			t.Errorf("got %v as well", got)
		}
	})
}
