package server

import (
	"cmp"
	"errors"
	"iter"
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/weirproxy/weir/internal/metrics"
	"github.com/weirproxy/weir/pkg/limiter"
)

// registerMetrics registers the metrics of Weir, the Go runtime, the process and the build.
func (s *Server) registerMetrics() error {
	all := []prometheus.Collector{
		s.newCollector(),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	}
	var errs []error
	for _, c := range all {
		errs = append(errs, s.options.Registry.Register(c))
	}
	return errors.Join(errs...)
}

// newCollector returns the collector of the limiter and of the store in memory. Requests count in
// the limiter alone. The number of series is bounded by the rules, and by the values per rule that
// the limiter counts apart.
func (s *Server) newCollector() prometheus.Collector {
	return metrics.NewCollector("weir_", nil, s.collect,
		metrics.New("build_info", "The build of this program; always 1.", "version", "revision", "goversion"),
		metrics.New("requests_total", "Rate limit requests that could be read, by outcome: without requests that are too large, or that /json refuses or cannot read.", "code"),
		metrics.New("request_duration_seconds", "Time from the arrival of a rate limit request to its answer."),
		metrics.New("decisions_total", "Descriptors decided by a rule.", "domain", "rule", "code"),
		metrics.New("hits_total", "Hits of the descriptors decided by a rule, refunds left out.", "domain", "rule", "code"),
		metrics.New("refunded_hits_total", "Hits given back.", "domain", "rule"),
		metrics.New("detailed_decisions_total", "Descriptors decided by a rule with detailed_metric or value_to_metric, by value.", "domain", "rule", "value", "code"),
		metrics.New("unmatched_total", "Descriptors that no rule matched.", "reason", "domain"),

		metrics.New("holds_total", "Begins and ends of holders of a rule with hold, by event.", "domain", "rule", "event"),
		metrics.New("holds_held", "Holders of a rule with hold that hold now, of the begins and ends that this process has seen.", "domain", "rule"),
		metrics.New("holds_estimated_hits_total", "Hits that ended holders held, by the first rate limit of a rule with hold.", "domain", "rule"),
		metrics.New("holds_true_hits_total", "Hits that the ends of the same holders named.", "domain", "rule"),

		metrics.New("in_flight_bytes", "Memory that gRPC requests under way make the server hold, as an upper estimate."),
		metrics.New("in_flight_max_bytes", "The bound of the bytes in flight."),
		metrics.New("in_flight_streams", "Open streams of all gRPC connections."),
		metrics.New("in_flight_refused_total", "gRPC requests that were refused because too many bytes were in flight."),
		metrics.New("in_flight_connections_ended_total", "gRPC connections that the server ended, by reason.", "reason"),

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

		metrics.New("config_last_reload_successful", "Whether the last attempt to load rules succeeded."),
		metrics.New("config_last_reload_success_timestamp_seconds", "When rules were last loaded."),
		metrics.New("config_reloads_total", "Attempts to load rules.", "result"),
		metrics.New("rules", "Rules in force: descriptors with limits or unlimited.", "domain"),
		metrics.New("tracked_keys", "Keys with the most hits that are tracked now."),
		metrics.New("tracked_keys_used_ratio", "Part of the limit that tracked keys with a hit in the last minute have used, by the last decision.", "domain", "rule", "quantile"),
		metrics.New("rules_info", "The hash of the rules in force; always 1.", "hash"),
	)
}

// collect reads all values, except the values of a remote store.
func (s *Server) collect(to metrics.Scrape) {
	to.Gauge("build_info", 1, cmp.Or(s.options.Version, "unknown"), cmp.Or(s.options.Revision, "unknown"), runtime.Version())
	r := s.options.Limiter.Requests()
	to.Counter("requests_total", r.OK, "ok")
	to.Counter("requests_total", r.OverLimit, "over_limit")
	to.Counter("requests_total", r.Failed+s.service.lost.Load(), "error")
	to.Counter("unmatched_total", r.DomainNotFound, "domain_not_found", "") // clients choose the names
	for domain, n := range s.options.Limiter.Unmatched() {
		to.Counter("unmatched_total", n, "no_match", domain)
	}
	to.Histogram("request_duration_seconds", s.Spent())
	s.collectInFlight(to)
	s.collectRules(to)
	s.collectHolds(to)
	s.collectReloads(to)
	s.collectTop(to)
	if s.options.Stats != nil {
		m := s.options.Stats()
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
	}
}

func (s *Server) collectInFlight(to metrics.Scrape) {
	now := s.service.bound.Stats()
	to.Gauge("in_flight_bytes", float64(now.Bytes))
	to.Gauge("in_flight_max_bytes", float64(now.MaxBytes))
	to.Gauge("in_flight_streams", float64(now.Streams))
	to.Counter("in_flight_refused_total", now.Refused)
	for reason, n := range now.Ended {
		to.Counter("in_flight_connections_ended_total", n, reason)
	}
}

func (s *Server) collectTop(to metrics.Scrape) {
	to.Gauge("tracked_keys", float64(s.options.Limiter.TrackedKeys()))
	for _, u := range s.options.Limiter.Used() {
		to.Gauge("tracked_keys_used_ratio", u.P99, u.Domain, u.Path, "0.99")
		to.Gauge("tracked_keys_used_ratio", u.Highest, u.Domain, u.Path, "1")
	}
}

func (s *Server) collectReloads(to metrics.Scrape) {
	now, rules := s.options.loads(), s.options.Limiter.Rules()
	to.Bool("config_last_reload_successful", now.Loads > 0 && len(now.Errors) == 0)
	if !now.LoadedAt.IsZero() {
		to.Gauge("config_last_reload_success_timestamp_seconds", float64(now.LoadedAt.UnixNano())/1e9)
	}
	to.Counter("config_reloads_total", now.Loads, "success")
	to.Counter("config_reloads_total", now.Refusals, "failure")
	n := make(map[string]int) // by domain
	for _, r := range rules.All() {
		if len(r.Limits) > 0 || r.Unlimited {
			n[r.Domain]++
		}
	}
	for _, d := range rules.Domains() {
		to.Gauge("rules", float64(n[d.Name]), d.Name)
	}
	if now.Hash != "" {
		to.Gauge("rules_info", 1, now.Hash)
	}
}

// series is the labels of a rule. Two rules may have the same path in words (the key a=b, and the
// key a with the value b). The counts of both are added up, because two equal series would make the
// whole page invalid.
type series struct{ domain, rule, value string }

// totals adds up counts by series, in the order of the first of each. The zero value has none.
type totals[T any] struct {
	order []series
	sums  map[series]*T
}

// of returns the sum of a series, at first the zero value.
func (t *totals[T]) of(s series) *T {
	sum := t.sums[s]
	if sum == nil {
		if sum = new(T); t.sums == nil {
			t.sums = make(map[series]*T)
		}
		t.sums[s], t.order = sum, append(t.order, s)
	}
	return sum
}

func (t *totals[T]) each() iter.Seq2[series, *T] {
	return func(yield func(series, *T) bool) {
		for _, of := range t.order {
			if !yield(of, t.sums[of]) {
				return
			}
		}
	}
}

// counts returns the counts of each rule in force. Rules that count together come once.
func (s *Server) counts() iter.Seq[limiter.RuleCounts] {
	return func(yield func(limiter.RuleCounts) bool) {
		seen := make(map[*limiter.Counts]bool)
		for r := range s.options.Limiter.Counts() {
			if seen[r.Counts] {
				continue
			}
			if seen[r.Counts] = true; !yield(r) {
				return
			}
		}
	}
}

func (s *Server) collectRules(to metrics.Scrape) {
	var all totals[limiter.Tally]
	add := func(of series, t limiter.Tally) {
		sum := all.of(of)
		for code := range limiter.Codes {
			sum.Decisions[code] += t.Decisions[code]
			sum.Hits[code] += t.Hits[code]
		}
		sum.Refunded += t.Refunded
	}
	for r := range s.counts() {
		add(series{domain: r.Domain, rule: r.Path}, r.Counts.Total())
		for value, t := range r.Counts.Values() {
			add(series{r.Domain, r.Path, "=" + value}, t)
		}
	}
	for of, t := range all.each() {
		value, detailed := strings.CutPrefix(of.value, "=")
		for code := range limiter.Codes {
			if t.Decisions[code] == 0 && (detailed || code != limiter.CodeOK && code != limiter.CodeOverLimit) {
				continue // most rules never have these codes
			}
			if detailed {
				to.Counter("detailed_decisions_total", t.Decisions[code], of.domain, of.rule, value, code.String())
				continue
			}
			to.Counter("decisions_total", t.Decisions[code], of.domain, of.rule, code.String())
			to.Counter("hits_total", t.Hits[code], of.domain, of.rule, code.String())
		}
		if !detailed && t.Refunded > 0 {
			to.Counter("refunded_hits_total", t.Refunded, of.domain, of.rule)
		}
	}
}
