package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/durations"
)

// RemoteStats is the figures at one moment of a store that is elsewhere, and of what stands in for it.
type RemoteStats struct {
	State string // of the circuit breaker: closed (the store is asked), open (it is not) or half_open (it is being tried)
	Up    bool   // the breaker is closed

	Opened                       uint64 // how often the breaker has opened
	Timeouts, Unavailable, Other uint64 // requests that failed: no answer in time, no connection, an answer that is an error
	Local, Allow, Deny           uint64 // charges decided without the store, by what their rules say of that

	RoundTrip     durations.Snapshot // from a question to the store to its answer
	RoundTrips    uint64             // calls of the script
	Transactions  uint64             // requests in them, or the parts of requests
	DeniedLocally uint64             // requests denied from memory, as the store had denied as much
	DeniedKeys    int                // remembered for that now
	DeferredHits  uint64             // hits that the store was told of later: of requests denied from memory, and given back
	LostHits      uint64             // those that it could not be told of
}

// remoteCollector reads the figures of a remote store when they are asked for.
type remoteCollector struct {
	stats func() RemoteStats

	up, state, opened, errors, fallbacks   *prometheus.Desc
	duration, roundTrips, transactions     *prometheus.Desc
	deniedLocally, deniedKeys, later, lost *prometheus.Desc
}

func newRemoteCollector(stats func() RemoteStats) *remoteCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("weir_store_"+name, help, labels, nil)
	}
	return &remoteCollector{
		stats: stats,

		up:        desc("up", "Whether the remote store is asked: its circuit breaker is closed."),
		state:     desc("state", "State of the circuit breaker of the remote store: 1 for the one it is in.", "state"),
		opened:    desc("opened_total", "How often the circuit breaker of the remote store has opened."),
		errors:    desc("errors_total", "Requests to the remote store that failed.", "kind"),
		fallbacks: desc("fallback_decisions_total", "Charges decided without the remote store, by on_store_error.", "policy"),

		duration:     desc("request_duration_seconds", "Time from a question to the remote store to its answer."),
		roundTrips:   desc("round_trips_total", "Calls of the script of the remote store."),
		transactions: desc("transactions_total", "Requests, or parts of them, in the calls of the script of the remote store."),

		deniedLocally: desc("denied_locally_total", "Requests denied from memory, as the remote store had denied as many hits."),
		deniedKeys:    desc("denied_keys", "Keys remembered as denied by the remote store."),
		later:         desc("deferred_hits_total", "Hits that the remote store was told of later: of requests denied from memory, and those to give back."),
		lost:          desc("lost_hits_total", "Hits that the remote store could not be told of."),
	}
}

// Describe implements [prometheus.Collector].
func (c *remoteCollector) Describe(all chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.up, c.state, c.opened, c.errors, c.fallbacks, c.duration, c.roundTrips, c.transactions,
		c.deniedLocally, c.deniedKeys, c.later, c.lost,
	} {
		all <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *remoteCollector) Collect(all chan<- prometheus.Metric) {
	to, s := sink{all}, c.stats()
	to.gauge(c.up, oneIf(s.Up))
	for _, state := range []string{"closed", "open", "half_open"} {
		to.gauge(c.state, oneIf(s.State == state), state)
	}
	to.counter(c.opened, s.Opened)
	to.counter(c.errors, s.Timeouts, "timeout")
	to.counter(c.errors, s.Unavailable, "unavailable")
	to.counter(c.errors, s.Other, "other")
	to.counter(c.fallbacks, s.Local, "local")
	to.counter(c.fallbacks, s.Allow, "allow")
	to.counter(c.fallbacks, s.Deny, "deny")
	to.send(histogram(c.duration, s.RoundTrip))
	to.counter(c.roundTrips, s.RoundTrips)
	to.counter(c.transactions, s.Transactions)
	to.counter(c.deniedLocally, s.DeniedLocally)
	to.gauge(c.deniedKeys, float64(s.DeniedKeys))
	to.counter(c.later, s.DeferredHits)
	to.counter(c.lost, s.LostHits)
}

// oneIf returns 1 for true, else 0.
func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
