package admin

import (
	"cmp"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/metrics"
)

// newCollector returns the collector of the build, the store in memory and the loads of rules.
func (s *Server) newCollector() prometheus.Collector {
	return metrics.NewCollector("weir_", nil, s.collect,
		metrics.New("build_info", "The build of this program; always 1.", "version", "revision", "goversion"),
		metrics.New("store_keys", "Keys in memory now: with a remote store, those counted here instead."),
		metrics.New("store_places", "Places in memory that the keys take: one for a key, three or more for a key of sliding_window_log."),
		metrics.New("store_max_keys", "The bound of the places in memory."),
		metrics.New("store_evictions_total", "Keys forgotten from memory before their time to make room for others."),
		metrics.New("store_full_total", "New keys, and logs that had to grow, that found memory full, by action.", "action"),
		metrics.New("store_swept_total", "Idle keys forgotten from memory."),
		metrics.New("store_clock_steps_total", "Steps of the wall clock after which windows in memory were realigned."),
		metrics.New("store_holders", "Holders in memory now, by status.", "status"),
		metrics.New("store_max_holds", "The bound of the holders in memory."),
		metrics.New("store_holders_ran_out_total", "Holders in memory that held hits until at_most was over."),
		metrics.New("store_holders_dropped_total", "Denied and ended holders forgotten from memory before their time to make room for others."),
		metrics.New("store_full_holders_total", "Begins that found memory full of holders, by action.", "action"),
		metrics.New("store_offenders", "Keys with offenses in memory now, by status: blocked or free.", "status"),
		metrics.New("store_offenders_dropped_total", "Keys with offenses forgotten or not remembered, as there are too many."),
		metrics.New("config_last_reload_successful", "Whether the last attempt to load rules succeeded."),
		metrics.New("config_last_reload_success_timestamp_seconds", "When rules were last loaded."),
		metrics.New("config_reloads_total", "Attempts to load rules.", "result"),
		metrics.New("rules_info", "The hash of the rules in force; always 1.", "hash"),
	)
}

func (s *Server) collect(to metrics.Scrape) {
	to.Gauge("build_info", 1, cmp.Or(s.options.Version, "unknown"), cmp.Or(s.options.Revision, "unknown"), runtime.Version())
	if s.options.Memory != nil {
		m := s.options.Memory()
		to.Gauge("store_keys", float64(m.Keys))
		to.Gauge("store_places", float64(m.Places))
		to.Gauge("store_max_keys", float64(m.MaxKeys))
		to.Counter("store_evictions_total", m.Evicted)
		to.Counter("store_full_total", m.FullAllowed, "allow")
		to.Counter("store_full_total", m.FullDenied, "deny")
		to.Counter("store_full_total", m.FullJoined, "join")
		to.Counter("store_swept_total", m.Swept)
		to.Counter("store_clock_steps_total", m.ClockSteps)
		to.Gauge("store_holders", float64(m.HoldersHeld), "held")
		to.Gauge("store_holders", float64(m.HoldersDenied), "denied")
		to.Gauge("store_holders", float64(m.HoldersEnded), "ended")
		to.Gauge("store_max_holds", float64(m.MaxHolds))
		to.Counter("store_holders_ran_out_total", m.HoldersRanOut)
		to.Counter("store_holders_dropped_total", m.HoldersDropped)
		to.Counter("store_full_holders_total", m.FullHoldersAllowed, "allow")
		to.Counter("store_full_holders_total", m.FullHoldersDenied, "deny")
		to.Gauge("store_offenders", float64(m.Blocked), "blocked")
		to.Gauge("store_offenders", float64(m.Offenders-m.Blocked), "free")
		to.Counter("store_offenders_dropped_total", m.OffendersForced)
	}

	now := s.options.loads()
	to.Bool("config_last_reload_successful", now.GetLoads() > 0 && len(now.GetErrors()) == 0)
	if at := now.GetLoadedAt(); at != nil {
		to.Gauge("config_last_reload_success_timestamp_seconds", float64(at.AsTime().UnixNano())/1e9)
	}
	to.Counter("config_reloads_total", uint64(now.GetLoads()), "success")
	to.Counter("config_reloads_total", uint64(now.GetRefusals()), "failure")
	if now.GetHash() != "" {
		to.Gauge("rules_info", 1, now.GetHash())
	}
}
