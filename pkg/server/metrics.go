package server

import (
	"errors"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/weirproxy/weir/internal/metrics"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

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

// newCollector returns the collector of the limiter and of the server. Requests count in the
// limiter alone. The number of series is bounded by the rules, and by the values per rule that the
// limiter counts apart.
func (s *Server) newCollector() prometheus.Collector {
	return metrics.NewCollector("weir_", nil, s.collect,
		metrics.New("requests_total",
			"Rate limit requests that could be read, by outcome: without requests that are too large, or that "+
				"/json refuses or cannot read.", "code"),
		metrics.New("request_duration_seconds", "Time from the arrival of a rate limit request to its answer."),
		metrics.New("decisions_total", "Descriptors decided by a rule.", "domain", "rule", "code"),
		metrics.New("hits_total", "Hits of the descriptors decided by a rule, refunds left out.", "domain", "rule", "code"),
		metrics.New("refunded_hits_total", "Hits given back.", "domain", "rule"),
		metrics.New("detailed_decisions_total",
			"Descriptors decided by a rule with detailed_metric or value_to_metric, by value.", "domain", "rule", "value", "code"),
		metrics.New("unmatched_total", "Descriptors that no rule matched.", "reason", "domain"),
		metrics.New("blocks_total", "Blocks of keys that have begun, of rules with escalate.", "domain", "rule"),
		metrics.New("warn_at_total", "Keys that have used as much of a limit as a mark of its warn_at, once for each window.",
			"domain", "rule", "mark"),

		metrics.New("holds_total", "Begins and ends of holders of a rule with hold, by event.", "domain", "rule", "event"),
		metrics.New("holds_held",
			"Holders of a rule with hold that hold now, of the begins and ends that this process has seen.", "domain", "rule"),
		metrics.New("holds_estimated_hits_total",
			"Hits that ended holders held, by the first rate limit of a rule with hold.", "domain", "rule"),
		metrics.New("holds_true_hits_total", "Hits that the ends of the same holders named.", "domain", "rule"),

		metrics.New("in_flight_bytes", "Memory that gRPC requests under way make the server hold, as an upper estimate."),
		metrics.New("in_flight_max_bytes", "The bound of the bytes in flight."),
		metrics.New("in_flight_streams", "Open streams of all gRPC connections."),
		metrics.New("in_flight_refused_total", "gRPC requests that were refused because too many bytes were in flight."),
		metrics.New("in_flight_connections_ended_total", "gRPC connections that the server ended, by reason.", "reason"),

		metrics.New("rlqs_streams", "Open streams of RateLimitQuotaService: Envoys."),
		metrics.New("rlqs_buckets", "Buckets of all streams."),
		metrics.New("rlqs_assigned_hits_per_second", "Rate that Envoys may use now without asking.", "domain", "rule"),
		metrics.New("rlqs_hits_total", "Hits that Envoys have reported.", "domain", "rule", "code"),
		metrics.New("rlqs_unsettled", "Assignments that Envoys have not acknowledged, or have only just."),
		metrics.New("rlqs_redis_calls_total", "Calls to Redis that divide limits of RLQS among processes: answered or failed.", "outcome"),
		metrics.New("rlqs_refused_total", "Buckets without an assignment, by reason.", "reason"),

		metrics.New("rules", "Rules in force: descriptors with limits or unlimited.", "domain"),
		metrics.New("tracked_keys", "Keys with the most hits that are tracked now."),
		metrics.New("tracked_keys_used_ratio",
			"Part of the limit that tracked keys with a hit in the last minute have used, by the last "+
				"decision.", "domain", "rule", "quantile"),
	)
}

func (s *Server) collect(to metrics.Scrape) {
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
	s.service.quotas.collect(to)
	s.collectHolds(to)
	s.collectNumbers(to)
	s.collectTop(to)
}

func (s *Server) collectInFlight(to metrics.Scrape) {
	now := s.service.bytes.Stats()
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

func (s *Server) collectNumbers(to metrics.Scrape) {
	rules := s.options.Limiter.Rules()
	n := make(map[string]int) // by domain
	for _, r := range rules.All() {
		if len(r.Limits) > 0 || r.Unlimited {
			n[r.Domain]++
		}
	}
	for _, d := range rules.Domains() {
		to.Gauge("rules", float64(n[d.Name]), d.Name)
	}
}

func (s *Server) collectRules(to metrics.Scrape) {
	for r := range s.options.Limiter.Counts() {
		all := r.Counts.Total()
		for code := range limiter.Codes {
			if all.Decisions[code] > 0 || code == limiter.CodeOK || code == limiter.CodeOverLimit { // most rules never have the others
				to.Counter("decisions_total", all.Decisions[code], r.Domain, r.Path, code.String())
				to.Counter("hits_total", all.Hits[code], r.Domain, r.Path, code.String())
			}
		}
		if all.Refunded > 0 {
			to.Counter("refunded_hits_total", all.Refunded, r.Domain, r.Path)
		}
		s.collectMarks(to, &r)
		if r.Rule.Escalates() {
			to.Counter("blocks_total", r.Counts.Blocks(), r.Domain, r.Path)
		}
		for value, t := range r.Counts.Values() {
			for code, n := range t.Decisions {
				if n > 0 {
					to.Counter("detailed_decisions_total", n, r.Domain, r.Path, value, limiter.Code(code).String())
				}
			}
		}
	}
}

// collectMarks shows each mark of the rule's limits, also before its first notice.
func (s *Server) collectMarks(to metrics.Scrape, r *limiter.RuleCounts) {
	if r.Rule == nil {
		return
	}
	n := make(map[uint8]uint64)
	for i := range r.Rule.Limits {
		for _, mark := range r.Rule.Limits[i].WarnAt.All() {
			n[mark] = 0
		}
	}
	maps.Copy(n, r.Counts.Notices())
	for mark, notices := range n {
		to.Counter("warn_at_total", notices, r.Domain, r.Path, descriptors.MarkText(mark))
	}
}

func (s *Server) collectHolds(to metrics.Scrape) {
	now := time.Now()
	for r := range s.options.Limiter.Counts() {
		if !r.Rule.Holds() {
			continue
		}
		t := r.Counts.Holds(now)
		for event, n := range map[string]uint64{
			"begun": t.Begun, "repeated": t.Repeated, "ended": t.Ended, "ended_unseen": t.Unseen, "released": t.Released, "ran_out": t.RanOut,
			"cut": t.Cut,
		} {
			to.Counter("holds_total", n, r.Domain, r.Path, event)
		}
		to.Gauge("holds_held", float64(t.Held), r.Domain, r.Path)
		to.Counter("holds_estimated_hits_total", t.Estimate, r.Domain, r.Path)
		to.Counter("holds_true_hits_total", t.Cost, r.Domain, r.Path)
	}
}
