package server

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/testing/metricstest"
	"github.com/weirproxy/weir/pkg/descriptors"
)

func TestMetricsCountWhatWasDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, `domain: edge
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 2, name: a}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true, replaces: [{name: a}]}}
  - {key: each, value_to_metric: true, rate_limit: {unit: minute, requests_per_unit: 1}}
`, nil)
		f.ask(t, hits(2, "a", "x"))
		f.ask(t, hits(5, "a", "x"))
		f.ask(t, refund(1, "a", "x"))
		f.ask(t, descriptor("a", "x"), descriptor("free", "x"))
		f.ask(t, descriptor("shadow", "x"))
		f.ask(t, descriptor("each", "x"))
		f.ask(t, hits(3, "each", "y"))
		f.ask(t, descriptor("nothing", "x"), override(5, 1, 0, "nothing", "x"))
		if err := f.send(t, []byte("\xff")); err == nil {
			t.Error("bytes that are no request: got no error")
		}
		if got := f.fetch(t, "POST", "/json", `{"domain": "elsewhere", "descriptors": [{}]}`); got.Code != 200 {
			t.Errorf("/json: got %d", got.Code)
		}
		if got := f.fetch(t, "POST", "/json", `{"descriptors": [{}]}`); got.Code != 400 {
			t.Errorf("/json: got %d", got.Code)
		}
		want := map[string]float64{
			"weir_rlqs_buckets":                      0,
			"weir_rlqs_streams":                      0,
			"weir_rlqs_unsettled":                    0,
			`weir_requests_total{code="ok"}`:         7,
			`weir_requests_total{code="over_limit"}`: 2,
			`weir_requests_total{code="error"}`:      2,

			`weir_decisions_total{code="ok",domain="edge",rule="a"}`:                     2,
			`weir_decisions_total{code="over_limit",domain="edge",rule="a"}`:             1,
			`weir_decisions_total{code="replaced",domain="edge",rule="a"}`:               1,
			`weir_decisions_total{code="ok",domain="edge",rule="shadow"}`:                0,
			`weir_decisions_total{code="over_limit",domain="edge",rule="shadow"}`:        0,
			`weir_decisions_total{code="shadow_over_limit",domain="edge",rule="shadow"}`: 1,
			`weir_decisions_total{code="ok",domain="edge",rule="free"}`:                  0,
			`weir_decisions_total{code="over_limit",domain="edge",rule="free"}`:          0,
			`weir_decisions_total{code="unlimited",domain="edge",rule="free"}`:           1,
			`weir_decisions_total{code="ok",domain="edge",rule="each"}`:                  1,
			`weir_decisions_total{code="over_limit",domain="edge",rule="each"}`:          1,
			`weir_decisions_total{code="ok",domain="edge",rule="override"}`:              1,
			`weir_decisions_total{code="over_limit",domain="edge",rule="override"}`:      0,

			`weir_hits_total{code="ok",domain="edge",rule="a"}`:                     2,
			`weir_hits_total{code="over_limit",domain="edge",rule="a"}`:             5,
			`weir_hits_total{code="replaced",domain="edge",rule="a"}`:               1,
			`weir_hits_total{code="ok",domain="edge",rule="shadow"}`:                0,
			`weir_hits_total{code="over_limit",domain="edge",rule="shadow"}`:        0,
			`weir_hits_total{code="shadow_over_limit",domain="edge",rule="shadow"}`: 1,
			`weir_hits_total{code="ok",domain="edge",rule="free"}`:                  0,
			`weir_hits_total{code="over_limit",domain="edge",rule="free"}`:          0,
			`weir_hits_total{code="unlimited",domain="edge",rule="free"}`:           1,
			`weir_hits_total{code="ok",domain="edge",rule="each"}`:                  1,
			`weir_hits_total{code="over_limit",domain="edge",rule="each"}`:          3,
			`weir_hits_total{code="ok",domain="edge",rule="override"}`:              1,
			`weir_hits_total{code="over_limit",domain="edge",rule="override"}`:      0,
			`weir_refunded_hits_total{domain="edge",rule="a"}`:                      1,

			`weir_detailed_decisions_total{code="ok",domain="edge",rule="each",value="each_x"}`:         1,
			`weir_detailed_decisions_total{code="over_limit",domain="edge",rule="each",value="each_y"}`: 1,

			`weir_unmatched_total{domain="",reason="domain_not_found"}`: 1,
			`weir_unmatched_total{domain="edge",reason="no_match"}`:     2,

			`weir_in_flight_bytes`:                                            0,
			`weir_in_flight_max_bytes`:                                        32 << 20,
			`weir_in_flight_streams`:                                          0,
			`weir_in_flight_refused_total`:                                    0,
			`weir_in_flight_connections_ended_total{reason="bad_frames"}`:     0,
			`weir_in_flight_connections_ended_total{reason="resets"}`:         0,
			`weir_in_flight_connections_ended_total{reason="held_most"}`:      0,
			`weir_in_flight_connections_ended_total{reason="protocol_error"}`: 0,
			`weir_in_flight_connections_ended_total{reason="silent"}`:         0,
			`weir_in_flight_connections_ended_total{reason="slow_message"}`:   0,
			`weir_in_flight_connections_ended_total{reason="unread_answers"}`: 0,

			`weir_tracked_keys`: 5,
			`weir_tracked_keys_used_ratio{domain="edge",quantile="0.99",rule="a"}`:        1,
			`weir_tracked_keys_used_ratio{domain="edge",quantile="0.99",rule="each"}`:     1,
			`weir_tracked_keys_used_ratio{domain="edge",quantile="0.99",rule="override"}`: 0.2,
			`weir_tracked_keys_used_ratio{domain="edge",quantile="0.99",rule="shadow"}`:   0,
			`weir_tracked_keys_used_ratio{domain="edge",quantile="1",rule="a"}`:           1,
			`weir_tracked_keys_used_ratio{domain="edge",quantile="1",rule="each"}`:        1,
			`weir_tracked_keys_used_ratio{domain="edge",quantile="1",rule="override"}`:    0.2,
			`weir_tracked_keys_used_ratio{domain="edge",quantile="1",rule="shadow"}`:      0,

			`weir_rules{domain="edge"}`: 4,
		}
		synctest.Wait() // the server counts the bytes of an answer until it has written it
		got := metricstest.Gather(t, f.registry, "weir_")
		maps.DeleteFunc(got, func(name string, _ float64) bool { return strings.HasPrefix(name, "weir_request_duration") })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
	})
}

func TestRulesAreCountedByDomain(t *testing.T) {
	once(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "", nil)
		one := descriptors.Source{Name: "one.yaml", Data: []byte("domain: one\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]")}
		two := descriptors.Source{Name: "two.yaml", Data: []byte(
			"domain: two\ndescriptors: [{key: a, rate_limit: {unlimited: true}}, {key: b, rate_limit: {unlimited: true}}, {key: c}]")}
		none := descriptors.Source{Name: "none.yaml", Data: []byte("domain: none")}
		rules, _, err := descriptors.Load([]descriptors.Source{one, two, none}, descriptors.Options{})
		if err != nil {
			t.Fatal(err)
		}
		f.limiter.SetRules(rules)
		// A descriptor without limits is not a rule.
		want := map[string]float64{`weir_rules{domain="one"}`: 1, `weir_rules{domain="two"}`: 2, `weir_rules{domain="none"}`: 0}
		got := metricstest.Gather(t, f.registry, "weir_rules")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("weir_rules (-want +got):\n%s", diff)
		}
	})
}

// As the help of weir_requests_total says.
func TestRequestsThatCannotBeReadAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, func(o *Options) { o.MaxRequestBytes = 100 })
		if err := f.send(t, make([]byte, 101)); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a large message: got %v; want ResourceExhausted", err)
		}
		for body, want := range map[string]int{"no JSON": 400, strings.Repeat(" ", 101): 413} {
			if got := f.fetch(t, "POST", "/json", body).Code; got != want {
				t.Errorf("/json: got %d; want %d", got, want)
			}
		}
		if got := metricstest.Gather(t, f.registry, "weir_requests")[`weir_requests_total{code="error"}`]; got != 0 {
			t.Errorf("errors: got %v; want 0", got)
		}
	})
}

func TestMetricsOfTheProcess(t *testing.T) {
	once(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		all := slices.Collect(maps.Keys(metricstest.Gather(t, f.registry, "")))
		for _, want := range []string{"go_goroutines", "go_build_info", "process_cpu_seconds_total"} {
			if !slices.ContainsFunc(all, func(name string) bool { return strings.HasPrefix(name, want) }) {
				t.Errorf("metrics: got %v; want %s among them", all, want)
			}
		}
	})
}

func TestRulesThatReadTheSameAreAddedUp(t *testing.T) {
	once(t)
	const rules = `domain: edge
descriptors:
  - {key: a, value: b, rate_limit: {unit: minute, requests_per_unit: 9}}
  - {key: a=b, rate_limit: {unit: minute, requests_per_unit: 9}}
  - {key: override, rate_limit: {unit: minute, requests_per_unit: 9}}
`
	synctest.Test(t, func(t *testing.T) {
		f := start(t, rules, nil)
		count := func(rule string) float64 {
			return metricstest.Gather(t, f.registry, "weir_decisions_total")[`weir_decisions_total{code="ok",domain="edge",rule="`+rule+`"}`]
		}
		f.ask(t, descriptor("a", "b"), descriptor("a=b", "c"), descriptor("a=b", "c"))
		f.ask(t, descriptor("override", "x"), override(5, 1, 0, "nothing", "x"))
		if got := [2]float64{count("a=b"), count("override")}; got != [2]float64{3, 2} {
			t.Errorf("decisions of a=b and override: got %v; want [3 2]", got)
		}
		f.limiter.SetRules(load(t, rules)) // from here on the two count together
		before := count("a=b")
		f.ask(t, descriptor("a", "b"))
		if got := count("a=b") - before; got != 1 {
			t.Errorf("decisions of a=b for one more after a reload: got %v; want 1", got)
		}
	})
}

func TestDurationsFallIntoTheirBuckets(t *testing.T) {
	once(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		for _, spent := range []time.Duration{0, 10 * time.Microsecond, 11 * time.Microsecond, 2 * time.Millisecond, time.Second} {
			f.server.service.spent.Observe(spent)
		}
		want := map[string]float64{"count": 5, "sum": 1.002021}
		for le, n := range map[string]float64{
			"1e-05": 2, "2.5e-05": 3, "5e-05": 3, "0.0001": 3, "0.00025": 3, "0.0005": 3, "0.001": 3,
			"0.0025": 4, "0.005": 4, "0.01": 4, "0.025": 4, "0.05": 4, "0.1": 4,
		} {
			want["le_"+le] = n
		}
		got := make(map[string]float64)
		for name, value := range metricstest.Gather(t, f.registry, "weir_request_duration") {
			got[strings.TrimPrefix(name, "weir_request_duration_seconds_")] = value
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("weir_request_duration_seconds (-want +got):\n%s", diff)
		}
	})
}

func TestEachRequestIsTimedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		f.ask(t, descriptor("minute", "a"))
		_ = f.send(t, []byte("\xff"))
		f.fetch(t, "POST", "/json", `{}`)
		if got := metricstest.Gather(t, f.registry, "weir_request_duration")["weir_request_duration_seconds_count"]; got != 3 {
			t.Errorf("weir_request_duration_seconds_count: got %v; want 3", got)
		}
	})
}
