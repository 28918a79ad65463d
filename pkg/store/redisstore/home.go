package redisstore

import (
	"hash/maphash"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// home is a server with the queues of the calls to it.
type home struct {
	*server

	queues []*queue
}

// newHome returns the home of a server. The queues send in goroutines of the group until they are
// closed.
func newHome(s *server, sending *sync.WaitGroup) *home {
	h, queues, flights := &home{server: s}, singleQueues, singleFlights
	if s.cluster {
		queues, flights = clusterQueues, clusterFlights
	}
	for range queues {
		h.queues = append(h.queues, newQueue(s, flights, sending))
	}
	return h
}

// queueFor returns the queue of calls in a slot whose first charge has that key. Adjacent
// slots share a queue, as one node mostly has them all, and calls to one node can share a flight.
func (h *home) queueFor(slot uint16, key []byte) *queue {
	if h.cluster {
		return h.queues[int(slot)*len(h.queues)/slots]
	}
	return h.queues[maphash.Bytes(h.seed, key)%uint64(len(h.queues))]
}

// locate returns the location that the key of a charge would have here.
func (h *home) locate(c *store.Charge, at algorithms.Instant) location {
	if !h.cluster {
		return location{home: h}
	}
	name, _ := h.appendName(nil, c, at)
	return location{h, slotOf(string(name))}
}

// location is where a key is kept.
type location struct {
	home *home
	slot uint16 // 0 without a cluster
}

// queue returns the queue of a call to the location.
func (l location) queue(c *call) *queue { return l.home.queueFor(l.slot, c.charges[0].Key) }

// put puts a call into its queue.
func (l location) put(c *call) { l.queue(c).put(c) }

// homes is all homes of a store.
type homes struct {
	*base

	main    *home
	seconds *home // of Options.Seconds; nil: main keeps limits of a second, too
}

// all yields the homes.
func (h *homes) all() iter.Seq[*home] {
	return func(yield func(*home) bool) {
		_ = yield(h.main) && h.seconds != nil && yield(h.seconds)
	}
}

// of returns the home of a charge's limit.
func (h *homes) of(c *store.Charge) *home {
	if h.seconds != nil && c.Limit.Period == time.Second {
		return h.seconds
	}
	return h.main
}

// locate returns the location of the key of a charge at an instant.
func (h *homes) locate(c *store.Charge, at algorithms.Instant) location { return h.of(c).locate(c, at) }

// isCounter reports whether the state of a charge is a counter.
func (h *homes) isCounter(c *store.Charge) bool { return h.of(c).isCounter(c) }

// several reports whether the keys of a request may lie at several locations.
func (h *homes) several(at algorithms.Instant, charges []store.Charge) bool {
	if !h.main.cluster && h.seconds == nil {
		return false
	}
	return slices.ContainsFunc(charges[1:], func(c store.Charge) bool { return h.locate(&c, at) != h.locate(&charges[0], at) })
}

// queueBefore returns the queue in which a call about charge i comes before a request of charges;
// nil means the queue of its key.
func (h *homes) queueBefore(charges []store.Charge, i int) *queue {
	of := h.of(&charges[i])
	if of.cluster {
		return nil
	}
	first := slices.IndexFunc(charges, func(c store.Charge) bool { return h.of(&c) == of })
	return of.queueFor(0, charges[first].Key)
}

// Now implements [store.Remote]. The instant is by Redis's clock: the time of this process and the
// known lead of that clock. The lead is too large by a round trip at most. Before the first answer
// Now returns the time of this process. In a cluster the clock of the last node that answered
// counts, and with two servers the one of Options.Target. Windows of counters follow the clock of
// this process.
func (h *homes) Now(l algorithms.Limit) algorithms.Instant {
	return h.nowOf(h.hasCounters && l.Algorithm == algorithms.FixedWindow)
}

// nowOf returns the instant by the clock of a key. The keys of counters have this process's clock.
func (h *homes) nowOf(counter bool) algorithms.Instant {
	switch {
	case counter:
		return h.here()
	case h.given != nil:
		return h.given()
	}
	return h.main.clock.instant(time.Now())
}

// noneConnected reports whether no server has a connection.
func (h *homes) noneConnected() bool {
	for home := range h.all() {
		if _, err := home.connection.Client(); err == nil {
			return false
		}
	}
	return true
}

// reach says whether hits can be sent to a server.
type reach uint8

const (
	answering reach = iota
	silent          // there is a connection, and no answer
	nobody          // there is no connection
)

// reaches looks at each server once. The zero value with homes is ready.
type reaches struct {
	homes *homes
	known [2]bool // of the main server and of the one of limits of a second
	looks [2]reach
}

// of returns the reach of the server, or the cluster's node, of a charge at an instant.
func (r *reaches) of(c *store.Charge, at algorithms.Instant) reach {
	home, i := r.homes.of(c), 0
	if home != r.homes.main {
		i = 1
	}
	if !r.known[i] {
		r.known[i] = true
		if _, err := home.connection.Client(); err != nil {
			r.looks[i] = nobody
		} else if r.homes.Health(nil).Silent > 0 || !home.cluster && home.silent(0, c.Key) {
			r.looks[i] = silent
		}
	}
	if r.looks[i] == answering && home.cluster && home.silent(home.locate(c, at).slot, c.Key) {
		return silent
	}
	return r.looks[i]
}

// silent reports whether the last flight to the node of a slot ended without an answer.
func (h *home) silent(slot uint16, key []byte) bool {
	q := h.queueFor(slot, key)
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.nodeQueueLocked(slot).lost > 0
}
