package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/metrics"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/pkg/store/shared"
)

// remoteStats is the state of the remote store, and of the store in front of it, at one moment.
type remoteStats struct {
	shared.Stats
	redis redisstore.Stats
	fleet fleetSource
}

func newRemoteCollector(stats func() remoteStats) prometheus.Collector {
	return metrics.NewCollector("weir_store_", nil, func(to metrics.Scrape) { collectRemote(to, stats()) },
		metrics.New("up", "Whether all shards of the remote store are asked: their circuit breakers are closed."),
		metrics.New("state", "State of the circuit breaker of the shard that answers worst: 1 for the one it is in.", "state"),
		metrics.New("shard_up", "Whether a shard of the remote store is asked: its circuit breaker is closed.", "shard"),
		metrics.New("opened_total", "How often a circuit breaker of the remote store has opened."),
		metrics.New("released_requests_total", "Requests that were decided without the remote store when the circuit breaker opened, while they waited for an answer."),
		metrics.New("silent_seconds_total", "How long shards of the remote store were silent before their circuit breakers opened."),
		metrics.New("errors_total", "Requests to the remote store that failed.", "kind"),
		metrics.New("fallback_decisions_total", "Charges decided without the remote store, by on_store_error.", "policy"),
		metrics.New("divided_denials_total",
			"Limits that denied hits without the remote store, although the hits were left: they were not in the part of this process."),
		metrics.New("carried_hits_total", "Hits admitted or counted without the remote store, of which it is told later."),
		metrics.New("carried_holds_total", "Begins and ends of holders that were decided without the remote store, of which it is told later."),
		metrics.New("fleet_size", "Processes that share the remote store, and divide the hits that are left while the store does not answer. "+
			"The source is counted, remembered, setting or unknown.", "source"),
		metrics.New("other_zones", "Releases of the time zones that processes which share the remote store have, and this one does not, while a rule needs a time zone."),
		metrics.New("share", "Part of the hits that are left which this process admits while the store does not answer."),

		metrics.New("request_duration_seconds", "Time from a question to the remote store to its answer."),
		metrics.New("round_trips_total", "Calls of the script of the remote store."),
		metrics.New("transactions_total", "Requests, or parts of them, in the calls of the script of the remote store."),

		metrics.New("denied_locally_total", "Requests denied from memory, as the remote store had denied as many hits."),
		metrics.New("denied_keys", "Keys remembered as denied by the remote store."),
		metrics.New("leased_decisions_total", "Charges decided from a lease, without asking the remote store."),
		metrics.New("leases", "Keys of which this process holds hits."),
		metrics.New("leased_hits", "Hits that this process holds and has not spent."),
		metrics.New("stranded_hits", "Hits that no other process can use: hits held here, and hits that leased buckets must lack beside."),
		metrics.New("granted_hits_total", "Hits that the remote store has granted to leases."),
		metrics.New("returned_hits_total", "Hits that leases gave back."),
		metrics.New("expired_hits_total", "Hits that leases held when their window ended."),
		metrics.New("grants_failed_total", "Grants that leases wanted and did not get.", "reason"),
		metrics.New("deferred_hits_total",
			"Hits that the remote store was told of later: of requests denied from memory, and those to give back."),
		metrics.New("lost_hits_total", "Hits that the remote store was to count later, and that were dropped."),
		metrics.New("unknown_hits_total", "Hits that the remote store was told of once more as an answer never came, once for each time, and hits that it may "+
			"not have given back. The store counted at most so many too often."),
		metrics.New("forgotten_hits_total", "Hits that mattered to no decision any more before the remote store could be told."),
		metrics.New("owed_keys", "Keys with hits that the remote store does not know of, once for each window."),
		metrics.New("disagreements_total", "Requests that the remote store decided otherwise than this program. The store's verdict counted."),
		metrics.New("seeded_keys_total", "Keys whose states the remote store had lost, and got back from this process."),
		metrics.New("remote_evicted_keys", "Keys that the remote store has evicted since its start, as last asked: once a minute."),
		metrics.New("invalid_replies_total", "Connections to the remote store that ended because of a reply that cannot be one."),
	)
}

func collectRemote(to metrics.Scrape, s remoteStats) {
	to.Bool("up", s.State == shared.Closed)
	for _, state := range []string{"closed", "open", "half_open"} {
		to.Bool("state", s.State.String() == state, state)
	}
	for _, shard := range s.Shards {
		to.Bool("shard_up", shard.State == shared.Closed, shard.Name)
	}
	to.Counter("opened_total", s.Opened)
	to.Counter("released_requests_total", s.Released)
	to.Seconds("silent_seconds_total", s.Silent)
	to.Counter("errors_total", s.Failures.Timeout, "timeout")
	to.Counter("errors_total", s.Failures.Unavailable, "unavailable")
	to.Counter("errors_total", s.Failures.Other, "other")
	to.Counter("fallback_decisions_total", s.Decided.Local, "local")
	to.Counter("fallback_decisions_total", s.Decided.Allow, "allow")
	to.Counter("fallback_decisions_total", s.Decided.Deny, "deny")
	to.Counter("divided_denials_total", s.Divided)
	to.Counter("carried_hits_total", s.Carried)
	to.Counter("carried_holds_total", s.Holders)
	to.Gauge("fleet_size", float64(s.Fleet), string(s.fleet))
	to.Gauge("other_zones", float64(s.redis.OtherZones))
	to.Gauge("share", s.Share)
	to.Histogram("request_duration_seconds", s.redis.RoundTrip)
	to.Counter("round_trips_total", s.redis.RoundTrips)
	to.Counter("transactions_total", s.redis.Transactions)
	to.Counter("denied_locally_total", s.Denials.Requests)
	to.Gauge("denied_keys", float64(s.Denials.Keys))
	to.Counter("leased_decisions_total", s.Leases.Decided)
	to.Gauge("leases", float64(s.Leases.Leases))
	to.Gauge("leased_hits", float64(s.Leases.Held))
	to.Gauge("stranded_hits", float64(s.Leases.Stranded()))
	to.Counter("granted_hits_total", s.Leases.Charged)
	to.Counter("returned_hits_total", s.Leases.Back)
	to.Counter("expired_hits_total", s.Leases.Expired)
	to.Counter("grants_failed_total", s.Leases.Refused, "denied")
	to.Counter("grants_failed_total", s.Leases.Failed, "unanswered")
	to.Counter("deferred_hits_total", s.redis.DeferredHits)
	to.Counter("lost_hits_total", s.redis.LostHits)
	to.Counter("unknown_hits_total", s.redis.UnknownHits)
	to.Counter("forgotten_hits_total", s.redis.ExpiredHits)
	to.Gauge("owed_keys", float64(s.redis.OwedKeys))
	to.Counter("disagreements_total", s.redis.Disagreements)
	to.Counter("seeded_keys_total", s.redis.SeededKeys)
	to.Gauge("remote_evicted_keys", float64(s.redis.EvictedKeys))
	to.Counter("invalid_replies_total", s.redis.InvalidReplies)
}
