package redisstore

import (
	"iter"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

type location struct {
	server *server
	slot   uint16 // 0 without a cluster
}

type servers struct {
	*base

	main    *server
	seconds *server // of Options.Seconds; nil: main keeps limits of a second, too
}

func (s *servers) all() iter.Seq[*server] {
	return func(yield func(*server) bool) {
		_ = yield(s.main) && s.seconds != nil && yield(s.seconds)
	}
}

func (s *servers) of(c *store.Charge) *server {
	if s.seconds != nil && c.Limit.Period == time.Second {
		return s.seconds
	}
	return s.main
}

func (s *servers) locate(c *store.Charge, at algorithms.Instant) location {
	return s.of(c).locate(c, at)
}

func (s *server) locate(c *store.Charge, at algorithms.Instant) location {
	if !s.cluster {
		return location{server: s}
	}
	name, _ := s.appendName(make([]byte, 0, 128), c, at) // room for most names
	return location{s, slotOf(rueidis.BinaryString(name))}
}

func (s *servers) isCounter(c *store.Charge) bool { return s.of(c).isCounter(c) }

func (s *servers) several(at algorithms.Instant, charges []store.Charge) bool {
	if !s.main.cluster && s.seconds == nil {
		return false
	}
	return slices.ContainsFunc(charges[1:], func(c store.Charge) bool { return s.locate(&c, at) != s.locate(&charges[0], at) })
}

// Now implements [store.Remote]. The instant is by Redis's clock: the time of this process and the
// known lead of that clock. The lead is wrong by a round trip at most. Before the first answer
// Now returns the time of this process. In a cluster the clock of the last node that answered
// counts, and with two servers the one of Options.Target. Windows of counters follow the clock of
// this process.
func (s *servers) Now(l algorithms.Limit) algorithms.Instant {
	return s.nowOf(s.hasCounters && countable(l))
}

// nowOf returns the instant by the clock of a key. The keys of counters have this process's clock.
func (s *servers) nowOf(counter bool) algorithms.Instant {
	switch {
	case counter:
		return s.here()
	case s.given != nil:
		return s.given()
	}
	return s.main.clock.instant(time.Now())
}

func (s *servers) connected() bool {
	for server := range s.all() {
		if _, err := server.client(); err == nil {
			return true
		}
	}
	return false
}

// Shard implements [store.Remote]. A shard is a server, or a primary of a cluster.
func (s *servers) Shard(c *store.Charge) int {
	if s.seconds == nil && !s.main.cluster {
		return 0
	}
	where := s.locate(c, s.here())
	return s.numberOf(where)
}

// numberOf returns the number of the shard of a location.
func (s *servers) numberOf(l location) int {
	switch n := l.server.nodeOf(l.slot); {
	case s.seconds == nil:
		return n
	case l.server == s.seconds:
		return 2*n + 1
	default:
		return 2 * n
	}
}

// shardOf returns the server of a shard, and the number of its node there.
func (s *servers) shardOf(shard int) (of *server, node int) {
	switch {
	case s.seconds == nil:
		return s.main, shard
	case shard%2 == 1:
		return s.seconds, shard / 2
	default:
		return s.main, shard / 2
	}
}

func (s *servers) queueOf(shard int) *nodeQueue {
	server, node := s.shardOf(shard)
	return server.queue.node(node)
}

// Shards implements [store.Remote].
func (s *servers) Shards() (names []string) {
	for server := range s.all() {
		n := 0
		for node, name := range server.primaries() {
			if name == "" {
				continue
			}
			if n = node; s.seconds != nil {
				n *= 2
			}
			if server == s.seconds {
				n++
			}
			for n >= len(names) {
				names = append(names, "")
			}
			names[n] = name
		}
	}
	return names
}

// Health implements [store.Remote].
func (s *servers) Health(shard int) store.Health {
	h := s.queueOf(shard).pulse.health()
	h.Fleet, h.Share, h.Told = s.fleetSize(), s.shareNow(), s.told.Load()
	return h
}

// Silences implements [store.Remote].
func (s *servers) Silences() <-chan struct{} { return s.silences }

// Release implements [store.Remote].
func (s *servers) Release(shard int) (released int) { return s.queueOf(shard).release() }

// answerNothing reports whether all nodes that were asked are silent.
func (s *servers) answerNothing() bool {
	asked := false
	for server := range s.all() {
		for _, n := range *server.queue.byNode.Load() {
			if at := n.pulse.heard.Load(); !n.pulse.silent.Load() && at > 0 {
				return false
			}
			asked = asked || n.pulse.silent.Load()
		}
	}
	return asked
}

// reach says whether hits can be sent to a server.
type reach uint8

const (
	answering reach = iota
	silent          // there is a connection, and no answer
	nobody          // there is no connection
)

// reach returns the reach of the server, or the cluster's node, of a charge at an instant.
func (s *servers) reach(c *store.Charge, at algorithms.Instant) reach {
	where := s.locate(c, at)
	switch _, err := where.server.client(); {
	case err != nil:
		return nobody
	case where.server.queue.silent(where.slot):
		return silent
	}
	return answering
}
