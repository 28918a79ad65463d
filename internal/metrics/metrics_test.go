package metrics

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/pkg/store"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"pkg/algorithms", "pkg/store"},
		Third: []string{"github.com/prometheus/client_golang/prometheus"},
	})
}

func TestACollectorShowsTheValuesOfTheMoment(t *testing.T) {
	c := NewCollector("t_", prometheus.Labels{"pod": "a"}, func(s Scrape) {
		s.Counter("requests_total", 3, "ok")
		s.Gauge("keys", 1.5)
		s.Bool("up", true)
		s.ScaledHistogram("took", store.Durations{Buckets: map[float64]uint64{0.5: 1}, Count: 2, Sum: 3 * time.Second}, 1000)
	}, New("requests_total", "Requests.", "code"), New("keys", "Keys."), New("up", "Up."), New("took", "Time."))
	const want = `# HELP t_keys Keys.
# TYPE t_keys gauge
t_keys{pod="a"} 1.5
# HELP t_requests_total Requests.
# TYPE t_requests_total counter
t_requests_total{code="ok",pod="a"} 3
# HELP t_took Time.
# TYPE t_took histogram
t_took_bucket{pod="a",le="500"} 1
t_took_bucket{pod="a",le="+Inf"} 2
t_took_sum{pod="a"} 3000
t_took_count{pod="a"} 2
# HELP t_up Up.
# TYPE t_up gauge
t_up{pod="a"} 1
`
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	got := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	if diff := cmp.Diff(want, got.Body.String()); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func TestAMistakeIsAnErrorOfTheScrapeAndTheOtherValuesStay(t *testing.T) {
	for name, mistake := range map[string]func(Scrape){
		"not_listed":        func(s Scrape) { s.Counter("missing", 1) },
		"histogram_missing": func(s Scrape) { s.Histogram("missing", store.Durations{}) },
		"too_many_labels":   func(s Scrape) { s.Gauge("good", 1, "x") },
		"not_utf8":          func(s Scrape) { s.Gauge("labeled", 1, "\xff") },
		"histogram_labels":  func(s Scrape) { s.Histogram("good", store.Durations{}, "x") },
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			registry.MustRegister(NewCollector("t_", nil, func(s Scrape) {
				mistake(s)
				s.Gauge("good", 1)
			}, New("good", "Good."), New("labeled", "Labeled.", "label")))
			families, err := registry.Gather()
			if err == nil {
				t.Error("Gather: got no error; want one")
			}
			if len(families) != 1 || families[0].GetName() != "t_good" {
				t.Errorf("Gather: got %v; want t_good", families)
			}
		})
	}
}
