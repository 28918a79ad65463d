package grants

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/metrics"
)

// Metrics returns the collector of the metrics weir_grants_*.
func (k *Keeper) Metrics() prometheus.Collector {
	return metrics.NewCollector("weir_grants_", nil, k.collect,
		metrics.New("in_force", "Grants in force."),
		metrics.New("max", "Bound of the number of grants."),
		metrics.New("unknown", "Grants in Redis that have no effect here: above the bounds, or not readable."),
		metrics.New("failures_total", "Changes of grants that were not kept, and reads of grants that failed."),
	)
}

func (k *Keeper) collect(to metrics.Scrape) {
	now, n := k.wall(), 0
	for g := range k.options.Limiter.Grants() { // mu may be held while Redis does not answer
		if g.Until.After(now) {
			n++
		}
	}
	to.Gauge("in_force", float64(n))
	to.Gauge("max", float64(k.options.Max))
	if k.shared != nil {
		to.Gauge("unknown", float64(k.shared.unknown.Load()))
	}
	to.Counter("failures_total", k.failures.Load())
}
