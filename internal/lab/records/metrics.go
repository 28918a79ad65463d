package records

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/metrics"
)

// Metrics returns the collector of the metrics weir_record_*.
func (r *Recorder) Metrics() prometheus.Collector {
	return metrics.NewCollector("weir_record_", nil, r.collect,
		metrics.New("requests_total", "Requests that were answered while they are recorded.", "result"),
		metrics.New("bytes_total", "Bytes of records that were written."),
		metrics.New("failures_total", "Failures to write records."),
		metrics.New("removed_files_total", "Files of records that were removed for newer ones."),
	)
}

func (r *Recorder) collect(to metrics.Scrape) {
	s := r.Stats()
	to.Counter("requests_total", s.Recorded, "recorded")
	to.Counter("requests_total", s.Dropped, "dropped")
	to.Counter("requests_total", s.Lost, "lost")
	to.Counter("requests_total", s.Failed, "failed")
	to.Counter("bytes_total", s.Bytes)
	to.Counter("failures_total", s.Failures)
	to.Counter("removed_files_total", s.Removed)
}
