package xds

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/testing/must"
)

func TestMetrics(t *testing.T) {
	synctest.Test(t, testMetrics)
}

func testMetrics(t *testing.T) {
	c := must.Get(New(Options{Address: "localhost:1", Push: (&fakeRules{}).push, Logger: slog.New(slog.DiscardHandler)}))(t)
	c.status.Store(&Status{Connected: true, Streams: 4, Failures: 3, Accepted: 7, Refused: 2, Resources: 5, Bad: 1, Unconfirmed: time.Now().Add(-7 * time.Second)})
	registry := prometheus.NewPedanticRegistry()
	must.Do(t, registry.Register(c.Metrics()))
	families := must.Get(registry.Gather())(t)
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	if diff := cmp.Diff(map[string]float64{
		"weir_xds_connected": 1, "weir_xds_streams_total": 4, "weir_xds_failures_total": 3, "weir_xds_responses_total accepted": 7,
		"weir_xds_responses_total refused": 2, "weir_xds_resources": 5, "weir_xds_resources_bad": 1, "weir_xds_unconfirmed_seconds": 7,
	}, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func TestReasonsAreCutWhereTheyAreTooMany(t *testing.T) {
	line := strings.Repeat("x", 99)
	long := strings.TrimSuffix(strings.Repeat(line+"\n", 1000), "\n")
	got := detail(errors.New(long))
	if len(got) > maxDetail+30 || !strings.HasSuffix(got, line+"\n… and 837 more") {
		t.Errorf("a thousand reasons: got %d bytes that end in %q", len(got), got[len(got)-50:])
	}
	if got := detail(errors.New(strings.Repeat("é", maxDetail))); len(got) > maxDetail+3 || !strings.HasSuffix(got, "é…") {
		t.Errorf("one long reason: got %d bytes that end in %q", len(got), got[len(got)-10:])
	}
	if got := detail(errors.New("short\nlist")); got != "short\nlist" {
		t.Errorf("a short list: got %q", got)
	}
}
