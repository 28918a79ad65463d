package admin

import (
	"maps"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/metricstest"
)

func TestMetricsOfTheStoreAndOfLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, watchedRules, nil)
		time.Sleep(time.Minute)
		f.refuse("no")
		f.ask(t, descriptor("path", "/cart"))
		want := map[string]float64{
			`weir_store_keys`:                       1,
			`weir_store_places`:                     1,
			`weir_store_max_keys`:                   1_000_000,
			`weir_store_evictions_total`:            0,
			`weir_store_full_total{action="allow"}`: 0,
			`weir_store_full_total{action="deny"}`:  0,
			`weir_store_full_total{action="join"}`:  0,
			`weir_store_swept_total`:                0,
			`weir_store_clock_steps_total`:          0,
			`weir_store_holders{status="held"}`:     0, `weir_store_holders{status="denied"}`: 0, `weir_store_holders{status="ended"}`: 0,
			`weir_store_offenders{status="blocked"}`: 0, `weir_store_offenders{status="free"}`: 0, `weir_store_offenders_dropped_total`: 0,
			`weir_store_max_holds`: 1_000_000, `weir_store_holders_ran_out_total`: 0, `weir_store_holders_dropped_total`: 0,
			`weir_store_full_holders_total{action="allow"}`: 0, `weir_store_full_holders_total{action="deny"}`: 0,

			`weir_config_last_reload_successful`:                                                          0,
			`weir_config_last_reload_success_timestamp_seconds`:                                           946684800,
			`weir_config_reloads_total{result="success"}`:                                                 1,
			`weir_config_reloads_total{result="failure"}`:                                                 1,
			`weir_rules_info{hash="` + f.limiter.Rules().Hash() + `"}`:                                    1,
			`weir_build_info{goversion="` + runtime.Version() + `",revision="unknown",version="unknown"}`: 1,
		}
		got := make(map[string]float64)
		for _, prefix := range []string{"weir_store_", "weir_config_", "weir_rules_info", "weir_build_info"} {
			maps.Copy(got, metricstest.Gather(t, f.registry, prefix))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
	})
}
