// Package metricstest reads metrics in tests.
package metricstest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Gather returns the metrics of a registry whose names begin with prefix, by
// `name{label="value",…}`. A histogram gives its count, sum and buckets. Gather fails tb when the
// registry fails.
func Gather(tb testing.TB, registry prometheus.Gatherer, prefix string) map[string]float64 {
	tb.Helper()
	families, err := registry.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	all := make(map[string]float64)
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), prefix) {
			continue
		}
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := family.GetName()
			if labels != nil {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			switch {
			case m.GetCounter() != nil:
				all[name] = m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				all[name] = m.GetGauge().GetValue()
			case m.GetHistogram() != nil:
				all[name+"_count"], all[name+"_sum"] = float64(m.GetHistogram().GetSampleCount()), m.GetHistogram().GetSampleSum()
				for _, b := range m.GetHistogram().GetBucket() {
					all[fmt.Sprintf("%s_le_%v", name, b.GetUpperBound())] = float64(b.GetCumulativeCount())
				}
			}
		}
	}
	return all
}
