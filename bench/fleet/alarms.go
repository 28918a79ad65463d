package main

import (
	"fmt"

	"github.com/weirproxy/weir/bench/drive"
)

// falseAlarms returns the metrics of deploy/prometheus that contradict the clients. A sidecar that
// was replaced has taken its metrics away.
func falseAlarms(all []drive.Metrics, v *verdict, outage, replaced bool) (alarms []string) {
	sum := func(name string, labels ...string) (n float64) {
		for _, m := range all {
			n += m.Sum(name, labels...)
		}
		return n
	}
	wrong := func(is bool, format string, args ...any) {
		if is {
			alarms = append(alarms, fmt.Sprintf(format, args...))
		}
	}
	for _, name := range []string{
		"weir_store_disagreements_total", "weir_store_full_total", "weir_store_evictions_total",
		"weir_in_flight_refused_total", "weir_connections_refused_total", "weir_unmatched_total",
	} {
		n := sum(name)
		wrong(n > 0, "%s is %.0f", name, n)
	}
	lost := sum("weir_store_lost_hits_total")
	wrong(lost > 0 && v.over == 0, "weir_store_lost_hits_total is %.0f, and no limit was passed", lost)
	failed := sum("weir_requests_total", `code="error"`)
	wrong(!replaced && int(failed) != v.errors, "weir_requests_total has %.0f errors, the clients saw %d", failed, v.errors)
	opened := sum("weir_store_opened_total")
	wrong(!outage && opened > 0, "weir_store_opened_total is %.0f without an outage", opened)
	return alarms
}
