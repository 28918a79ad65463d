package shared

import (
	"fmt"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// simulatedSidecar is one process with leases: the holder of lease.go, with a clock that drifts, a
// connection to Redis and an outbox.
type simulatedSidecar struct {
	number      int
	exact       bool  // never leases
	drift       int64 // of the clock, in ns for each millisecond
	started     time.Duration
	stopped     instantOfEvent // until then the process stands still
	mean        float64        // microseconds between two requests; 0: no requests
	arriving    bool           // an event for the next requests is in the queue
	keys        []heldKey
	connection  int            // number of the connection; calls of an earlier one get no replies
	lastReached instantOfEvent // when the last call of the connection reaches Redis
	lastReplied instantOfEvent
}

// heldKey is the knowledge that a sidecar has of a key.
type heldKey struct {
	lease    lease
	peak     int64          // most hits in a slot
	granting *simulatedCall // the grant under way; nil: no grant is
	outbox   []returned     // waits to be sent
	denied   int64          // fewest hits that Redis has denied
	until    time.Duration  // the denial ends
}

// callKind is the kind of a call.
type callKind uint8

const (
	takeCall   callKind = iota // a client waits for the decision
	grantCall                  // a lease asks
	returnCall                 // the outbox gives hits back
	lateGrant                  // the charge of a lease that is spent already: a mistake
)

// simulatedCall is a call on the way to Redis and back.
type simulatedCall struct {
	kind       callKind
	key        int
	hits       int64
	at         algorithms.Instant // of hits to be given back
	was        uint64             // see returned
	connection int
	begun      time.Duration  // by the sidecar's clock
	sent       instantOfEvent // when the call began
	deadline   instantOfEvent // Redis refuses the call from then on

	refused  bool
	counted  bool // the referee has counted the hits
	instead  int64
	decision algorithms.Decision
	told     store.State
}

// clock returns the sidecar's monotonic time.
func (h *simulatedSidecar) clock(now instantOfEvent) time.Duration {
	return h.started + time.Duration(now)*time.Microsecond + time.Duration(now*h.drift/1000)
}

// request decides a request for hits of a key.
func (s *simulation) request(h *simulatedSidecar, number int, hits int64) {
	s.decisions++
	k := &h.keys[number]
	now := h.clock(s.now)
	if h.exact {
		s.ask(h, number, hits)
		return
	}
	l := &k.lease
	s.giveBack(h, number, l.ended(now))
	l.rate.note(now, hits)
	k.peak = max(k.peak, l.rate.hits)
	if _, spent := l.spend(s.spendingClock(h), hits); spent {
		s.local++
		s.admit(number, hits)
	} else {
		s.giveBack(h, number, [2]taken{l.first.remove(), l.second.remove()})
		s.ask(h, number, hits)
	}
	s.renew(h, number)
}

// spendingClock returns the time by which a sidecar spends.
func (s *simulation) spendingClock(h *simulatedSidecar) time.Duration {
	now := h.clock(s.now)
	if s.mistake == spendPastTheEnd {
		now -= 300 * time.Millisecond
	}
	return now
}

// renew asks for a grant if the lease wants one.
func (s *simulation) renew(h *simulatedSidecar, number int) {
	k := &h.keys[number]
	if s.mistake == ignoreOutstanding {
		k.lease.bounds.park = 0
	}
	k.lease.trip = time.Duration(2*s.usualDelay) * time.Microsecond
	hits := k.lease.want(h.clock(s.now), s.fleetKnown)
	if hits == 0 {
		return
	}
	s.grants++
	c := s.newCall()
	*c = simulatedCall{kind: grantCall, key: number, hits: hits}
	if s.mistake == debitLate && s.now >= s.redis.pausedUntil { // spends by the state of this moment, and charges later
		copied := s.redis.keys[number]
		d, told := copied.take(s.limits[number], s.instant(), hits, false)
		c.kind = lateGrant
		s.send(h, c)
		s.giveBack(h, number, [2]taken{k.lease.charged(c.begun, c.begun, d, &told)})
		return
	}
	k.granting = c
	s.send(h, c)
	s.push(event{at: s.now + s.timeout, kind: grantTimesOut, who: h.number, call: c})
}

// ask asks Redis for a decision, unless the sidecar knows that Redis would deny.
func (s *simulation) ask(h *simulatedSidecar, number int, hits int64) {
	k := &h.keys[number]
	if h.clock(s.now) < k.until && hits >= k.denied {
		return
	}
	s.asked++
	c := s.newCall()
	*c = simulatedCall{kind: takeCall, key: number, hits: hits}
	s.send(h, c)
}

// send sends a call behind the hits in the outbox of the same key.
func (s *simulation) send(h *simulatedSidecar, c *simulatedCall) {
	s.flush(h, c.key)
	s.put(h, c)
}

// put puts a call on the connection. Calls of one connection reach Redis in order.
func (s *simulation) put(h *simulatedSidecar, c *simulatedCall) {
	c.connection, c.begun, c.sent = h.connection, h.clock(s.now), s.now
	c.deadline = s.now + s.timeout + s.lead + 1000
	h.lastReached = max(h.lastReached, s.now+s.delay())
	s.push(event{at: h.lastReached, kind: callReaches, who: h.number, call: c})
}

// reach lets a call reach Redis.
func (s *simulation) reach(h *simulatedSidecar, c *simulatedCall) {
	switch {
	case s.now < s.redis.pausedUntil:
		s.push(event{at: s.redis.pausedUntil, kind: callReaches, who: h.number, call: c})
		return
	case c.connection != h.connection && s.chance(0.5): // lost with the connection
		s.free(c)
		return
	}
	now := s.instant()
	k, limit := &s.redis.keys[c.key], s.limits[c.key]
	back := s.now + s.delay()
	lost := c.connection != h.connection || s.chance(s.lost)
	switch {
	case s.now >= c.deadline && c.kind != lateGrant:
		c.refused = true
	case c.kind == returnCall:
		at := c.at
		if s.mistake == returnAcrossAWindow {
			at = now
		}
		k.correct(limit, now, c.hits, at, c.was)
	case c.kind == lateGrant:
		k.take(limit, now, c.hits, true)
	default:
		s.oracles[c.key].charged()
		c.was = k.deficit(now)
		c.decision, c.told = k.take(limit, now, c.hits, false)
		if c.kind == takeCall && c.decision.Allowed && !lost && back <= c.sent+s.timeout {
			c.counted = true
			s.admit(c.key, c.hits)
		}
	}
	s.audit(c.key)
	if lost {
		s.free(c)
		return
	}
	h.lastReplied = max(h.lastReplied, back)
	s.push(event{at: h.lastReplied, kind: replyReaches, who: h.number, call: c})
}

// reply lets a reply reach the sidecar.
func (s *simulation) reply(h *simulatedSidecar, c *simulatedCall) {
	defer s.free(c)
	if c.connection != h.connection {
		return
	}
	k := &h.keys[c.key]
	now := h.clock(s.now)
	switch {
	case c.kind == returnCall:
		if c.refused { // sends again
			s.later(k, returned{c.hits, c.at, c.was})
		}
	case c.kind == lateGrant:
	case c == k.granting:
		k.granting = nil
		if c.refused {
			k.lease.failed(now)
			return
		}
		if c.decision.Allowed {
			s.granted++
		}
		s.giveBack(h, c.key, [2]taken{k.lease.charged(c.begun, now, c.decision, &c.told)})
		s.checkStranded(h, c.key)
		s.awaitEnd(h, c)
	case c.kind == grantCall: // late
		if !c.refused && c.decision.Allowed {
			s.giveBack(h, c.key, [2]taken{{c.instead, c.told.Now}})
		}
	case c.refused:
	case c.decision.Allowed && !c.counted: // the client waits no more
		was := uint64(0)
		if s.mistake == returnAsIfNobodyLeased {
			was = c.was
		}
		s.later(k, returned{c.hits, c.told.Now, was})
	default:
		k.lease.learn(now, &c.told)
		k.until = 0
		if !c.decision.Allowed {
			k.denied = c.hits
			k.until = now + min(c.decision.RetryAfter, time.Second)
		}
	}
}

// checkStranded compares the hits that a lease holds with the bound that docs/redis-leases.md
// states.
func (s *simulation) checkStranded(h *simulatedSidecar, number int) {
	k := &h.keys[number]
	most := 2 * scale(slot+2*min(k.lease.trip, longestTrip), uint64(k.peak), uint64(slot))
	if k.lease.bounds.park > 0 {
		most *= 2
	}
	if held := k.lease.held(h.clock(s.now)); held > int64(most) && s.broken == nil {
		s.broken = fmt.Errorf("key %d: a lease holds %d hits, %d at most in a slot; want %d at most", number, held, k.peak, most)
	}
}

// awaitEnd puts an event shortly before the end of the youngest grant into the queue.
func (s *simulation) awaitEnd(h *simulatedSidecar, c *simulatedCall) {
	l := &h.keys[c.key].lease
	if ends := max(l.first.ends, l.second.ends); ends > h.clock(s.now) {
		left := int64((ends - h.clock(s.now)) / time.Microsecond)
		s.push(event{at: s.now + left - left*h.drift/1_000_000 - 1, kind: leaseEnds, who: h.number, call: c})
	}
}

// timeOut ends the wait for a grant.
func (s *simulation) timeOut(h *simulatedSidecar, c *simulatedCall) {
	if k := &h.keys[c.key]; k.granting == c {
		k.granting = nil
		c.instead = k.lease.failed(h.clock(s.now))
	}
}

// tick ends leases, and sends the hits in the outbox.
func (s *simulation) tick(h *simulatedSidecar) {
	now := h.clock(s.now)
	for i := range h.keys {
		s.giveBack(h, i, h.keys[i].lease.ended(now))
		s.giveBack(h, i, h.keys[i].lease.unused(now))
		s.flush(h, i)
	}
}

// reconnect gives the sidecar a new connection. The fate of the calls on the old one stays unknown.
func (s *simulation) reconnect(h *simulatedSidecar) {
	h.connection++
	h.lastReached, h.lastReplied = 0, 0
	for i := range h.keys {
		if k := &h.keys[i]; k.granting != nil {
			k.lease.failed(h.clock(s.now))
			k.granting = nil
		}
	}
}

// restart replaces the sidecar by a new process.
func (s *simulation) restart(h *simulatedSidecar) {
	s.reconnect(h)
	h.drift = s.drift()
	h.started = time.Duration(s.random.Int64N(int64(time.Minute))) - time.Duration(s.now)*time.Microsecond
	for i := range h.keys {
		h.keys[i] = heldKey{}
		h.keys[i].lease.use(s.limits[i])
	}
}
