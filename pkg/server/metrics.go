package server

import (
	"errors"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/weirproxy/weir/pkg/limiter"
)

// registerMetrics registers what Weir counts, and the Go runtime, the process and the build.
func (s *Server) registerMetrics() error {
	if s.options.Remote != nil {
		if err := s.options.Registry.Register(newRemoteCollector(s.options.Remote)); err != nil {
			return err
		}
	}
	return errors.Join(
		s.options.Registry.Register(newCollector(s.service)),
		s.options.Registry.Register(collectors.NewGoCollector()),
		s.options.Registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})),
		s.options.Registry.Register(collectors.NewBuildInfoCollector()),
	)
}

// collector reads the figures of the limiter and the store when they are asked for: a request counts in the limiter and
// nowhere else. Its series are bounded by the number of rules, and of values per rule that the limiter tells apart.
type collector struct {
	options Options
	service *service

	requests, duration                    *prometheus.Desc
	decisions, hits, refunds, detailed    *prometheus.Desc
	unmatched                             *prometheus.Desc
	keys, maxKeys, evictions, full, swept *prometheus.Desc
	reloadOK, reloadAt, reloads, rules    *prometheus.Desc
}

func newCollector(s *service) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("weir_"+name, help, labels, nil)
	}
	return &collector{
		options: s.options,
		service: s,

		requests:  desc("requests_total", "Rate limit requests that could be read, by what became of them: without those too large and bodies of /json that are no request.", "code"),
		duration:  desc("request_duration_seconds", "Time from the arrival of a rate limit request to its answer."),
		decisions: desc("decisions_total", "Descriptors decided by a rule.", "domain", "rule", "code"),
		hits:      desc("hits_total", "Hits of the descriptors decided by a rule, refunds left out.", "domain", "rule", "code"),
		refunds:   desc("refunded_hits_total", "Hits given back.", "domain", "rule"),
		detailed: desc("detailed_decisions_total", "Descriptors decided by a rule with detailed_metric or value_to_metric, by value.",
			"domain", "rule", "value", "code"),
		unmatched: desc("unmatched_total", "Descriptors that no rule matched.", "reason"),

		keys:      desc("store_keys", "Keys in memory now: with a remote store, of what it could not be asked about."),
		maxKeys:   desc("store_max_keys", "Most keys in memory at once."),
		evictions: desc("store_evictions_total", "Keys forgotten from memory before their time to make room for others."),
		full:      desc("store_full_total", "New keys that found memory full, by what was done about them.", "action"),
		swept:     desc("store_swept_total", "Keys forgotten from memory as they were as if never used."),

		reloadOK: desc("config_last_reload_successful", "Whether the last attempt to load rules succeeded."),
		reloadAt: desc("config_last_reload_success_timestamp_seconds", "When rules were last loaded."),
		reloads:  desc("config_reloads_total", "Attempts to load rules.", "result"),
		rules:    desc("rules", "Rules in force.", "domain"),
	}
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(all chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.requests, c.duration, c.decisions, c.hits, c.refunds, c.detailed, c.unmatched,
		c.keys, c.maxKeys, c.evictions, c.full, c.swept, c.reloadOK, c.reloadAt, c.reloads, c.rules,
	} {
		all <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(all chan<- prometheus.Metric) {
	to := sink{all}
	r := c.options.Limiter.Requests()
	to.counter(c.requests, r.OK, "ok")
	to.counter(c.requests, r.OverLimit, "over_limit")
	to.counter(c.requests, r.Failed+c.service.lost.Load(), "error")
	to.counter(c.unmatched, r.DomainNotFound, "domain_not_found")
	to.counter(c.unmatched, r.NoMatch, "no_match")
	to.send(histogram(c.duration, c.service.spent.Snapshot()))
	c.collectRules(to)
	c.collectReloads(to)
	if c.options.Stats != nil {
		s := c.options.Stats()
		to.gauge(c.keys, float64(s.Keys))
		to.gauge(c.maxKeys, float64(s.MaxKeys))
		to.counter(c.evictions, s.Evicted)
		to.counter(c.full, s.FullAllowed, "allow")
		to.counter(c.full, s.FullDenied, "deny")
		to.counter(c.swept, s.Swept)
	}
}

func (c *collector) collectReloads(to sink) {
	s := c.options.Limiter.Status()
	to.gauge(c.reloadOK, oneIf(s.Loads > 0 && len(s.Errors) == 0))
	if !s.LoadedAt.IsZero() {
		to.gauge(c.reloadAt, float64(s.LoadedAt.UnixNano())/1e9)
	}
	to.counter(c.reloads, s.Loads, "success")
	to.counter(c.reloads, s.Refusals, "failure")
	n := make(map[string]int) // by domain
	for _, r := range s.Rules.All() {
		n[r.Domain]++
	}
	for _, d := range s.Rules.Domains() {
		to.gauge(c.rules, float64(n[d.Name]), d.Name)
	}
}

// series is what the label values of a rule stand for. Different rules may have the same path in words (a=b without a value
// and a with the value b): their figures are added up, as two series of one name would make all metrics unreadable.
type series struct{ domain, rule, value string }

func (c *collector) collectRules(to sink) {
	var order []series
	totals := make(map[series]limiter.Tally)
	add := func(s series, t limiter.Tally) {
		sum, known := totals[s]
		if !known {
			order = append(order, s)
		}
		for code := range limiter.Codes {
			sum.Decisions[code] += t.Decisions[code]
			sum.Hits[code] += t.Hits[code]
		}
		sum.Refunded += t.Refunded
		totals[s] = sum
	}
	seen := make(map[*limiter.Counts]bool)
	for r := range c.options.Limiter.Counts() {
		if seen[r.Counts] {
			continue
		}
		seen[r.Counts] = true
		add(series{domain: r.Domain, rule: r.Path}, r.Counts.Total())
		for value, t := range r.Counts.Values() {
			add(series{r.Domain, r.Path, "=" + value}, t)
		}
	}
	for _, s := range order {
		t := totals[s]
		value, detailed := strings.CutPrefix(s.value, "=")
		for code := range limiter.Codes {
			if t.Decisions[code] == 0 && (detailed || code != limiter.CodeOK && code != limiter.CodeOverLimit) {
				continue // what never happened to a rule, and mostly cannot
			}
			if detailed {
				to.counter(c.detailed, t.Decisions[code], s.domain, s.rule, value, code.String())
				continue
			}
			to.counter(c.decisions, t.Decisions[code], s.domain, s.rule, code.String())
			to.counter(c.hits, t.Hits[code], s.domain, s.rule, code.String())
		}
		if !detailed && t.Refunded > 0 {
			to.counter(c.refunds, t.Refunded, s.domain, s.rule)
		}
	}
}

// sink takes metrics.
type sink struct{ to chan<- prometheus.Metric }

func (s sink) counter(d *prometheus.Desc, value uint64, labels ...string) {
	s.send(prometheus.NewConstMetric(d, prometheus.CounterValue, float64(value), labels...))
}

func (s sink) gauge(d *prometheus.Desc, value float64, labels ...string) {
	s.send(prometheus.NewConstMetric(d, prometheus.GaugeValue, value, labels...))
}

// send sends a metric. It fails only for label values that are not UTF-8, which neither rules nor requests can have.
func (s sink) send(m prometheus.Metric, err error) {
	if err == nil {
		s.to <- m
	}
}
