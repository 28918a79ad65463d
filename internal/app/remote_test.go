package app

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/durations"
	"github.com/weirproxy/weir/internal/testing/metricstest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/pkg/store/shared"
)

func TestFiguresOfARemoteStoreAreMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took durations.Histogram
		took.Observe(300 * time.Microsecond)
		took.Observe(time.Second)
		stats := remoteStats{
			Stats: shared.Stats{
				State: shared.HalfOpen, Opened: 1, Released: 23, Silent: 65 * time.Millisecond,
				Shards:   []shared.Shard{{Name: "a:1", State: shared.HalfOpen}, {Name: "b:1"}},
				Failures: shared.Failures{Timeout: 2, Unavailable: 3, Other: 4},
				Decided:  shared.Decided{Local: 5, Allow: 6, Deny: 7}, Carried: 16, Holders: 21, Fleet: 17, Share: 0.5,
				Denials: shared.Denials{Requests: 10, Keys: 11},
			},
			redis: redisstore.Stats{
				RoundTrip: took.Snapshot(), RoundTrips: 8, Transactions: 9, DeferredHits: 12, LostHits: 13, UnknownHits: 18, ExpiredHits: 19, OwedKeys: 20, Disagreements: 14, InvalidReplies: 15, SeededKeys: 22, EvictedKeys: 23, OtherZones: 24,
			},
			fleet: fleetSetting,
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(newRemoteCollector(func() remoteStats { return stats }))
		want := map[string]float64{
			"weir_store_up":                                       0,
			`weir_store_state{state="closed"}`:                    0,
			`weir_store_state{state="open"}`:                      0,
			`weir_store_state{state="half_open"}`:                 1,
			"weir_store_opened_total":                             1,
			`weir_store_shard_up{shard="a:1"}`:                    0,
			`weir_store_shard_up{shard="b:1"}`:                    1,
			"weir_store_released_requests_total":                  23,
			"weir_store_silent_seconds_total":                     0.065,
			`weir_store_errors_total{kind="timeout"}`:             2,
			`weir_store_errors_total{kind="unavailable"}`:         3,
			`weir_store_errors_total{kind="other"}`:               4,
			`weir_store_fallback_decisions_total{policy="local"}`: 5,
			`weir_store_fallback_decisions_total{policy="allow"}`: 6,
			`weir_store_fallback_decisions_total{policy="deny"}`:  7,
			"weir_store_carried_hits_total":                       16,
			"weir_store_carried_holds_total":                      21,
			`weir_store_fleet_size{source="setting"}`:             17,
			"weir_store_share":                                    0.5,
			"weir_store_other_zones":                              24,
			"weir_store_round_trips_total":                        8,
			"weir_store_transactions_total":                       9,
			"weir_store_denied_locally_total":                     10,
			"weir_store_denied_keys":                              11,
			"weir_store_deferred_hits_total":                      12,
			"weir_store_lost_hits_total":                          13,
			"weir_store_unknown_hits_total":                       18,
			"weir_store_forgotten_hits_total":                     19,
			"weir_store_owed_keys":                                20,
			"weir_store_disagreements_total":                      14,
			"weir_store_invalid_replies_total":                    15,
			"weir_store_seeded_keys_total":                        22,
			"weir_store_remote_evicted_keys":                      23,
			"weir_store_request_duration_seconds_count":           2,
			"weir_store_request_duration_seconds_sum":             1.0003,
			"weir_store_request_duration_seconds_le_1e-05":        0,
			"weir_store_request_duration_seconds_le_0.00025":      0,
			"weir_store_request_duration_seconds_le_0.0005":       1,
			"weir_store_request_duration_seconds_le_0.1":          1,
		}
		got := metricstest.Gather(t, registry, "")
		for name := range got {
			if _, ok := want[name]; !ok {
				delete(got, name)
			}
		}
		must.Match(t, "result", want, got)
		stats.State = shared.Closed
		got = metricstest.Gather(t, registry, "")
		if got["weir_store_up"] != 1 || got[`weir_store_state{state="closed"}`] != 1 || got[`weir_store_state{state="half_open"}`] != 0 {
			t.Errorf("with the breaker closed: got %v", got)
		}
	})
}

func TestAStoreInThisProcessHasNoMetricsOfARemoteOne(t *testing.T) {
	stores := must.Get(NewStores(StoreOptions{Logger: slog.New(slog.DiscardHandler)}))(t)
	defer stores.Close()
	registry := prometheus.NewRegistry()
	must.Do(t, stores.register(registry))
	if got := metricstest.Gather(t, registry, ""); len(got) > 0 {
		t.Errorf("got %v", got)
	}
}
