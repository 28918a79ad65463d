package statistics

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirproxy/weir/pkg/limiter"
)

// scrape returns the page for Prometheus.
func scrape(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

const wide = `domain: a.b.c
default: {unit: hour, requests_per_unit: 5}
descriptors:
- key: one
  value: v.1
  descriptors:
  - key: two
    descriptors:
    - key: three
      descriptors:
      - {key: four, value: x.y, shadow_mode: true, ` + hour + `}
- {key: one, ` + hour + `}
---
domain: other
descriptors:
- {key: k, detailed_metric: true, ` + hour + `}
`

func TestPrometheusGetsTheOriginalsNamesAndLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, wide, limiter.Options{Shadow: true, DetailedValues: 1})
		f.ask("a.b.c", "one=v.1,two=2,three=3,four=x.y", 12)
		f.ask("a.b.c", "none=1", 5)
		f.ask("a.b.c", "none=1", 1)
		f.ask("other", "k=first.value", 9)
		f.ask("other", "k=second", 1)
		f.ask("other", "k=third", -1)
		f.ask("nowhere", "k=v", 1)
		if err := f.Check(t.Context(), &limiter.Request{}, new(limiter.Verdict)); err == nil {
			t.Error("a request without anything is valid")
		}
		f.refused = 1
		f.spent.Observe(300 * time.Microsecond)
		f.spent.Observe(3 * time.Millisecond)
		f.reader.options.Lost = func() uint64 { return 2 }
		f.reader.options.DecidedWithout = func() uint64 { return 4 }
		c, err := f.reader.NewCollector(CollectorOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := `
# HELP ratelimit_service_config_load_error Loads of rules that were refused.
# TYPE ratelimit_service_config_load_error counter
ratelimit_service_config_load_error 1
# HELP ratelimit_service_config_load_success Loads of rules that succeeded.
# TYPE ratelimit_service_config_load_success counter
ratelimit_service_config_load_success 1
# HELP ratelimit_service_global_shadow_mode Requests over limit that passed because of the global shadow mode.
# TYPE ratelimit_service_global_shadow_mode counter
ratelimit_service_global_shadow_mode 1
# HELP ratelimit_service_rate_limit_domain_not_found Descriptors of domains without rules.
# TYPE ratelimit_service_rate_limit_domain_not_found counter
ratelimit_service_rate_limit_domain_not_found 1
# HELP ratelimit_service_rate_limit_near_limit Hits within the limit and near its end.
# TYPE ratelimit_service_rate_limit_near_limit counter
ratelimit_service_rate_limit_near_limit{domain="a.b.c",key1="default",key2="",key3=""} 1
ratelimit_service_rate_limit_near_limit{domain="a.b.c",key1="one",key2="",key3=""} 0
ratelimit_service_rate_limit_near_limit{domain="a.b.c",key1="one_v.1",key2="two",key3="three.four_x.y"} 0
ratelimit_service_rate_limit_near_limit{domain="other",key1="_other",key2="",key3=""} 0
ratelimit_service_rate_limit_near_limit{domain="other",key1="k_first.value",key2="",key3=""} 1
# HELP ratelimit_service_rate_limit_over_limit Hits over limit, also of rules in shadow mode.
# TYPE ratelimit_service_rate_limit_over_limit counter
ratelimit_service_rate_limit_over_limit{domain="a.b.c",key1="default",key2="",key3=""} 1
ratelimit_service_rate_limit_over_limit{domain="a.b.c",key1="one",key2="",key3=""} 0
ratelimit_service_rate_limit_over_limit{domain="a.b.c",key1="one_v.1",key2="two",key3="three.four_x.y"} 12
ratelimit_service_rate_limit_over_limit{domain="other",key1="_other",key2="",key3=""} 0
ratelimit_service_rate_limit_over_limit{domain="other",key1="k_first.value",key2="",key3=""} 0
# HELP ratelimit_service_rate_limit_shadow_mode Hits over limit that passed because of shadow mode.
# TYPE ratelimit_service_rate_limit_shadow_mode counter
ratelimit_service_rate_limit_shadow_mode{domain="a.b.c",key1="one_v.1",key2="two",key3="three.four_x.y"} 12
# HELP ratelimit_service_rate_limit_total_hits Hits of descriptors with a limit.
# TYPE ratelimit_service_rate_limit_total_hits counter
ratelimit_service_rate_limit_total_hits{domain="a.b.c",key1="default",key2="",key3=""} 6
ratelimit_service_rate_limit_total_hits{domain="a.b.c",key1="one",key2="",key3=""} 0
ratelimit_service_rate_limit_total_hits{domain="a.b.c",key1="one_v.1",key2="two",key3="three.four_x.y"} 12
ratelimit_service_rate_limit_total_hits{domain="other",key1="_other",key2="",key3=""} 1
ratelimit_service_rate_limit_total_hits{domain="other",key1="k_first.value",key2="",key3=""} 9
# HELP ratelimit_service_rate_limit_total_negative_hits Hits given back.
# TYPE ratelimit_service_rate_limit_total_negative_hits counter
ratelimit_service_rate_limit_total_negative_hits{domain="other",key1="_other",key2="",key3=""} 1
# HELP ratelimit_service_rate_limit_within_limit Hits within the limit.
# TYPE ratelimit_service_rate_limit_within_limit counter
ratelimit_service_rate_limit_within_limit{domain="a.b.c",key1="default",key2="",key3=""} 5
ratelimit_service_rate_limit_within_limit{domain="a.b.c",key1="one",key2="",key3=""} 0
ratelimit_service_rate_limit_within_limit{domain="a.b.c",key1="one_v.1",key2="two",key3="three.four_x.y"} 0
ratelimit_service_rate_limit_within_limit{domain="other",key1="_other",key2="",key3=""} 1
ratelimit_service_rate_limit_within_limit{domain="other",key1="k_first.value",key2="",key3=""} 9
# HELP ratelimit_service_response_time_seconds Time from the arrival of a request to its answer.
# TYPE ratelimit_service_response_time_seconds histogram
BUCKETSratelimit_service_response_time_seconds_sum{grpc_method="ShouldRateLimit"} 0.0033
ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"} 2
# HELP ratelimit_service_should_rate_limit_error Requests that failed.
# TYPE ratelimit_service_should_rate_limit_error counter
ratelimit_service_should_rate_limit_error{err_type="redis_error"} 4
ratelimit_service_should_rate_limit_error{err_type="service_error"} 3
# HELP ratelimit_service_total_requests Requests.
# TYPE ratelimit_service_total_requests counter
ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 10
`
		var buckets strings.Builder
		for _, b := range []struct {
			le string
			n  int
		}{
			{"1e-05", 0},
			{"2.5e-05", 0},
			{"5e-05", 0},
			{"0.0001", 0},
			{"0.00025", 0},
			{"0.0005", 1},
			{"0.001", 1},
			{"0.0025", 1},
			{"0.005", 2},
			{"0.01", 2},
			{"0.025", 2},
			{"0.05", 2},
			{"0.1", 2},
			{"+Inf", 2},
		} {
			fmt.Fprintf(&buckets, "ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=%q} %d\n", b.le, b.n)
		}
		want = strings.Replace(want, "BUCKETS", buckets.String(), 1)
		if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), scrape(t, c)); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
	})
}

func TestTagsAreLabelsAndTimesMayBeInMilliseconds(t *testing.T) {
	f := newFixture(t, "domain: d\n", limiter.Options{})
	f.spent.Observe(3 * time.Millisecond)
	c, err := f.reader.NewCollector(CollectorOptions{Tags: map[string]string{"app.kubernetes.io/name": "rl", "9": "x", "__a": "y"}, Milliseconds: true})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "ratelimit_service_response_time_seconds" {
			continue
		}
		m := family.GetMetric()[0]
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetName()+"="+l.GetValue())
		}
		want := []string{"app_kubernetes_io_name=rl", "grpc_method=ShouldRateLimit", "tag_9=x", "tag_a=y"}
		if diff := cmp.Diff(want, labels); diff != "" || m.GetHistogram().GetSampleSum() != 3 || m.GetHistogram().GetBucket()[0].GetUpperBound() != 0.01 {
			t.Errorf("histogram %v, labels (-want +got):\n%s", m.GetHistogram(), diff)
		}
	}
	for _, tags := range []map[string]string{{"domain": "x"}, {"a-b": "x", "a_b": "y"}, {"key3": "x"}} {
		if _, err := f.reader.NewCollector(CollectorOptions{Tags: tags}); err == nil {
			t.Errorf("tags %v are accepted", tags)
		}
	}
}
