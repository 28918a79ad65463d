package main

import (
	"fmt"
	"time"

	"github.com/weirproxy/weir/bench/drive"
)

const (
	// shortWait is half the default time that a request waits for Redis. Without an answer that took
	// longer, Redis has answered all requests.
	shortWait = 5 * time.Millisecond
	// sureOutage is an outage that each sidecar must report, however busy the machine is.
	sureOutage = 5 * time.Second
)

// seen is a run for the comparison with metrics.
type seen struct {
	verdict

	quiet    bool // nothing happened to Redis or to a sidecar
	away     bool // Redis was away for all sidecars for sureOutage
	replaced bool // a sidecar has ended, and its metrics with it
	opened   int  // circuits that had opened before the clients began, as a start on a busy machine can take long
}

// falseAlarms returns the metrics of the alerts in deploy/prometheus that contradict the clients.
func falseAlarms(all []drive.Metrics, s *seen) (alarms []string) {
	sum := func(name string, labels ...string) (n int) {
		for _, m := range all {
			n += int(m.Sum(name, labels...))
		}
		return n
	}
	wrong := func(is bool, format string, args ...any) {
		if is {
			alarms = append(alarms, fmt.Sprintf(format, args...))
		}
	}
	for _, name := range []string{
		"weir_store_disagreements_total", "weir_store_full_total", "weir_store_evictions_total", "weir_in_flight_refused_total",
		"weir_connections_refused_total", "weir_unmatched_total", "weir_state_refused_total",
	} {
		wrong(sum(name) > 0, "%s is %d", name, sum(name))
	}
	wrong(sum("weir_config_last_reload_successful") != len(all), "weir_config_last_reload_successful is not 1")
	wrong(sum("weir_decisions_total", `code="shadow_over_limit"`) > 0, "weir_decisions_total has decisions of a shadow mode")
	lost := sum("weir_store_lost_hits_total")
	wrong(lost > 0 && s.over == 0, "weir_store_lost_hits_total is %d, and no limit was passed", lost)
	opened := sum("weir_store_opened_total") - s.opened
	wrong(s.quiet && opened > 0 && s.slowest < shortWait, "weir_store_opened_total has grown by %d, and no answer took %v", opened, shortWait)
	without := sum("weir_store_fallback_decisions_total")
	wrong(s.quiet && without > 0 && s.slowest < shortWait, "weir_store_fallback_decisions_total is %d, and all answers were fast", without)
	if s.replaced {
		return alarms
	}
	if s.away {
		for i, m := range all {
			wrong(m.Sum("weir_store_opened_total") == 0, "sidecar %d has not said that Redis was away", i)
		}
	}
	failed, answered := sum("weir_requests_total", `code="error"`), s.asked-s.errors-s.unreached
	wrong(failed != s.errors, "weir_requests_total has %d errors, the clients saw %d", failed, s.errors)
	if s.errors+s.unreached == 0 {
		allowed, measured := sum("weir_requests_total", `code="ok"`), sum("weir_request_duration_seconds_count")
		wrong(allowed != s.admitted, "weir_requests_total has %d admitted requests, the clients saw %d", allowed, s.admitted)
		wrong(measured != answered, "weir_request_duration_seconds has %d requests, the clients saw %d", measured, answered)
	}
	return alarms
}
