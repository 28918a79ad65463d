package snapshots

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/metrics"
)

// Metrics returns the collector of the metrics weir_state_*.
func (k *Keeper) Metrics() prometheus.Collector {
	return metrics.NewCollector("weir_state_", nil, k.collect,
		metrics.New("saves_total", "Snapshots of the counts in memory.", "result"),
		metrics.New("last_save_timestamp_seconds", "When the last snapshot was made; 0: never."),
		metrics.New("last_save_bytes", "Size of the last snapshot."),
		metrics.New("last_save_keys", "Keys in the last snapshot."),
		metrics.New("last_save_duration_seconds", "Time until the last snapshot was on the disk."),
		metrics.New("loaded_keys", "Keys that the start has loaded."),
		metrics.New("refused_total", "Snapshots that could not be read and were set aside."),
	)
}

func (k *Keeper) collect(to metrics.Scrape) {
	s := k.Stats()
	to.Counter("saves_total", s.Saves, "success")
	to.Counter("saves_total", s.Failures, "failure")
	at := 0.0
	if !s.Time.IsZero() {
		at = float64(s.Time.UnixNano()) / 1e9
	}
	to.Gauge("last_save_timestamp_seconds", at)
	to.Gauge("last_save_bytes", float64(s.Bytes))
	to.Gauge("last_save_keys", float64(s.Keys))
	to.Gauge("last_save_duration_seconds", s.Duration.Seconds())
	to.Gauge("loaded_keys", float64(s.Loaded))
	to.Counter("refused_total", s.Refused)
}
