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
	lease  lease
	peak   int64          // most hits in a slot
	asking *simulatedCall // the part under way; nil: no part is
	outbox []returned     // waits to be sent
	denied int64          // fewest hits that Redis has denied
	until  time.Duration  // the denial ends
}

// callKind is the kind of a call.
type callKind uint8

const (
	takeCall   callKind = iota // a client waits for the decision
	partCall                   // a lease asks
	returnCall                 // the outbox gives hits back
	latePart                   // the charge of a lease that is spent already: a mistake
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

// renew asks for a part if the lease wants one.
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
	c := s.newCall()
	*c = simulatedCall{kind: partCall, key: number, hits: hits}
	if s.mistake == debitLate && s.now >= s.redis.pausedUntil { // spends by the state of this moment, and charges later
		copied := s.redis.keys[number]
		d, told := copied.take(s.limits[number], s.instant(), hits, false)
		c.kind = latePart
		s.send(h, c)
		s.giveBack(h, number, [2]taken{k.lease.charged(c.begun, c.begun, d, &told)})
		return
	}
	k.asking = c
	s.send(h, c)
	s.push(event{at: s.now + s.timeout, kind: partTimesOut, who: h.number, call: c})
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
	case s.now >= c.deadline && c.kind != latePart:
		c.refused = true
	case c.kind == returnCall:
		at := c.at
		if s.mistake == returnAcrossAWindow {
			at = now
		}
		k.correct(limit, now, c.hits, at, c.was)
	case c.kind == latePart:
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
	case c.kind == latePart:
	case c == k.asking:
		k.asking = nil
		if c.refused {
			k.lease.failed(now)
			return
		}
		if c.decision.Allowed {
			s.leased++
		}
		s.giveBack(h, c.key, [2]taken{k.lease.charged(c.begun, now, c.decision, &c.told)})
		s.checkStranded(h, c.key)
		s.awaitEnd(h, c)
	case c.kind == partCall: // late
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

// awaitEnd puts an event shortly before the end of the youngest part into the queue.
func (s *simulation) awaitEnd(h *simulatedSidecar, c *simulatedCall) {
	l := &h.keys[c.key].lease
	if ends := max(l.first.ends, l.second.ends); ends > h.clock(s.now) {
		left := int64((ends - h.clock(s.now)) / time.Microsecond)
		s.push(event{at: s.now + left - left*h.drift/1_000_000 - 1, kind: leaseEnds, who: h.number, call: c})
	}
}

// timeOut ends the wait for a part.
func (s *simulation) timeOut(h *simulatedSidecar, c *simulatedCall) {
	if k := &h.keys[c.key]; k.asking == c {
		k.asking = nil
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
		if k := &h.keys[i]; k.asking != nil {
			k.lease.failed(h.clock(s.now))
			k.asking = nil
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

// returned is hits to be given back as of an instant.
type returned struct {
	hits int64
	at   algorithms.Instant
	was  uint64 // deficit of a bucket at that instant without the hits, in 1/Period hit; 0: not known
}

// giveBack puts the hits of parts into the outbox.
func (s *simulation) giveBack(h *simulatedSidecar, number int, parts [2]taken) {
	for _, p := range parts {
		if p.hits > 0 {
			s.returnedHits += p.hits
			s.later(&h.keys[number], returned{hits: p.hits, at: p.at})
		}
	}
}

// later puts hits into the outbox. Hits of the same window join, as of the earlier instant.
func (s *simulation) later(k *heldKey, more returned) {
	period := algorithms.Instant(k.lease.limit.Period)
	for i := range k.outbox {
		if r := &k.outbox[i]; r.at/period == more.at/period && r.was+more.was == 0 {
			r.hits += more.hits
			if s.mistake == mergeAtTheLatest {
				r.at = max(r.at, more.at)
			} else {
				r.at = min(r.at, more.at)
			}
			return
		}
	}
	k.outbox = append(k.outbox, more)
}

// flush sends the hits of a key in the outbox.
func (s *simulation) flush(h *simulatedSidecar, number int) {
	k := &h.keys[number]
	for _, r := range k.outbox {
		times := 1
		if s.mistake == returnTwice {
			times = 2
		}
		for range times {
			c := s.newCall()
			*c = simulatedCall{kind: returnCall, key: number, hits: r.hits, at: r.at, was: r.was}
			s.put(h, c)
		}
	}
	k.outbox = k.outbox[:0]
}

// instantOfEvent is the time of an event in microseconds since the simulation began, by the clock
// of Redis.
type instantOfEvent = int64

// eventKind is the kind of an event.
type eventKind uint8

const (
	requestsArrive  eventKind = iota // clients ask a sidecar
	callReaches                      // a call reaches Redis
	replyReaches                     // a reply reaches the sidecar
	partTimesOut                     // a sidecar stops to wait for a part
	leaseEnds                        // a microsecond before a sidecar's clock ends its leases
	outboxTicks                      // a sidecar sends the hits in its outbox
	loadMoves                        // clients move between sidecars
	everythingSpent                  // all sidecars spend all they hold, and somebody empties Redis
	redisPauses                      // Redis stands still
	sidecarStops                     // a sidecar stands still
	sidecarDies                      // a sidecar is killed, and a new one starts
	connectionEnds                   // a sidecar's connection ends, and a new one begins
)

// event is one event of the simulation. Events at the same time happen in the order of their
// numbers.
type event struct {
	at     instantOfEvent
	number uint64
	kind   eventKind
	who    int // number of the sidecar
	call   *simulatedCall
}

// events is a binary heap of events, the next one first.
type events struct {
	heap []event
	next uint64
}

func (q *events) push(e event) {
	e.number = q.next
	q.next++
	q.heap = append(q.heap, e)
	at := len(q.heap) - 1
	for at > 0 {
		parent := (at - 1) / 2
		if !q.heap[at].before(&q.heap[parent]) {
			break
		}
		q.heap[at], q.heap[parent] = q.heap[parent], q.heap[at]
		at = parent
	}
}

func (q *events) pop() event {
	first := q.heap[0]
	last := len(q.heap) - 1
	moved := q.heap[last]
	q.heap[last] = event{}
	q.heap = q.heap[:last]
	at := 0
	for {
		child := 2*at + 1
		if child >= last {
			break
		}
		if child+1 < last && q.heap[child+1].before(&q.heap[child]) {
			child++
		}
		if !q.heap[child].before(&moved) {
			break
		}
		q.heap[at] = q.heap[child]
		at = child
	}
	if last > 0 {
		q.heap[at] = moved
	}
	return first
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.number < o.number
}

// simulatedRedis is the states of keys, changed as the script of package redisstore changes them.
// The clock of Redis is the clock of the simulation.
type simulatedRedis struct {
	keys        []simulatedKey
	pausedUntil instantOfEvent
}

// simulatedKey is the state of a key with the limit of its last charge.
type simulatedKey struct {
	limit algorithms.Limit
	state algorithms.State
}

// forget forgets an idle key, as Redis lets it expire.
func (k *simulatedKey) forget(now algorithms.Instant) {
	if !k.state.Unused() && algorithms.IdleAt(k.limit, k.state) <= now {
		*k = simulatedKey{}
	}
}

// take applies a charge.
func (k *simulatedKey) take(l algorithms.Limit, now algorithms.Instant, hits int64, countRejected bool) (d algorithms.Decision, told store.State) {
	k.forget(now)
	k.state, k.limit, d = algorithms.TakeAs(k.limit, l, k.state, now, hits, algorithms.Counting(countRejected))
	told = store.State{Now: now, Limit: k.limit, State: k.state}
	if k.state.Unused() {
		*k, told.Limit = simulatedKey{}, algorithms.Limit{}
	}
	return d, told
}

// deficit returns the deficit of a token bucket, in 1/Period hit. The limits here have deficits of
// one word.
func (k *simulatedKey) deficit(now algorithms.Instant) uint64 {
	last, _, deficit := k.state.Parts()
	if k.limit.Algorithm != algorithms.TokenBucket || now <= last {
		return deficit
	}
	return deficit - min(deficit, uint64(now-last)*uint64(k.limit.Requests))
}

// correct gives hits back as of an earlier instant: the script's action for the hits of an outbox.
// was is the deficit of a token bucket at that instant without the hits, if that is known.
func (k *simulatedKey) correct(l algorithms.Limit, now algorithms.Instant, hits int64, at algorithms.Instant, was uint64) {
	k.forget(now)
	if k.state.Unused() {
		return
	}
	if at > now.Add(2*time.Second) {
		at = now
	}
	last, a, b := k.state.Parts()
	switch l.Algorithm {
	case algorithms.FixedWindow:
		now = max(now, last)
		if int64(at)/int64(l.Period) == int64(now)/int64(l.Period) {
			k.state, _ = algorithms.Take(l, k.state, now, -hits, true)
		}
	case algorithms.SlidingWindowCounter:
		now = max(now, last)
		window := int64(now) / int64(l.Period)
		switch window - int64(last)/int64(l.Period) { // as seen from now
		case 0:
		case 1:
			a, b = 0, a
		default:
			a, b = 0, 0
		}
		back := uint64(hits)
		switch window - int64(at)/int64(l.Period) {
		case 0:
			a -= min(a, back)
		case 1:
			b -= min(b, back)
		default:
			return
		}
		k.state = algorithms.StateOf(now, a, b)
	case algorithms.TokenBucket:
		now = max(now, last)
		deficit, period := k.deficit(now), uint64(k.limit.Period)
		excess := uint64(max(0, now-at)) * uint64(k.limit.Requests)
		excess -= min(excess, was)
		if excess >= uint64(hits)*period {
			return
		}
		deficit -= min(deficit, uint64(hits)*period-excess)
		k.state = algorithms.StateOf(now, 0, deficit)
	case algorithms.TokenBucketInteger:
		k.correctInteger(now, hits, at)
	default: // has no leases
	}
	if k.state.Unused() {
		*k = simulatedKey{}
	}
}

// correctInteger is correct for an integer bucket.
func (k *simulatedKey) correctInteger(now algorithms.Instant, hits int64, at algorithms.Instant) {
	mark, deficit, since := k.state.Parts()
	now = max(now, mark+algorithms.Instant(since))
	rate, period := uint64(k.limit.Requests), uint64(k.limit.Period)
	refill := uint64(now-mark) * rate / period
	if refill >= deficit {
		deficit, mark = 0, now
	} else {
		deficit -= refill
		mark += algorithms.Instant(refill * period / rate)
	}
	back := uint64(hits)
	if now > at {
		back -= min(back, uint64(now-at)*rate/period+1)
	}
	if deficit -= min(deficit, back); deficit == 0 {
		*k = simulatedKey{}
		return
	}
	k.state = algorithms.StateOf(mark, deficit, uint64(now-mark))
}

// referee judges the hits that were admitted under a limit, each at its instant, by the promise of
// the algorithm. An referee knows nothing of leases. Instants must not go back.
type referee struct {
	limit    algorithms.Limit
	admitted int64

	// Of a bucket: the deficit of an ideal bucket that admits the same hits, in 1/Period hit, and
	// its instant. The deficit exceeds the burst if and only if an interval has more hits than the
	// burst and the gain in the interval.
	deficit int64
	last    algorithms.Instant

	// Of windows: the number of the window, its hits and the hits of the window before.
	window            int64
	current, previous int64
}

// admit counts hits, and returns an error if they break the promise.
func (o *referee) admit(at algorithms.Instant, hits int64) error {
	o.admitted += hits
	if err := o.would(at, hits); err != nil {
		return err
	}
	switch o.limit.Algorithm {
	case algorithms.TokenBucket, algorithms.TokenBucketInteger:
		o.deficit += hits * int64(o.limit.Period)
	default:
		o.current += hits
	}
	return nil
}

// would returns an error if hits broke the promise, and does not count them.
func (o *referee) would(at algorithms.Instant, hits int64) error {
	period, most := int64(o.limit.Period), int64(o.limit.Capacity())
	used := hits * period
	switch o.limit.Algorithm {
	case algorithms.TokenBucket, algorithms.TokenBucketInteger:
		o.gain(at)
		used += o.deficit
	case algorithms.FixedWindow:
		o.turn(int64(at) / period)
		used += o.current * period
	case algorithms.SlidingWindowCounter:
		o.turn(int64(at) / period)
		used += o.current*period + o.previous*(period-int64(at)%period)
	default: // has no leases
	}
	if used > most*period {
		return fmt.Errorf("%v: %.3f hits too many at %v", o.limit, float64(used-most*period)/float64(period), at)
	}
	return nil
}

// gain lets the ideal bucket gain until an instant.
func (o *referee) gain(at algorithms.Instant) {
	if at > o.last {
		since := int64(at - o.last)
		if most := o.deficit/int64(o.limit.Requests) + 1; since > most {
			since = most // no product beyond 64 bits
		}
		o.deficit = max(0, o.deficit-since*int64(o.limit.Requests))
		o.last = at
	}
}

// charged notes a charge in Redis. An integer bucket may gain a nanosecond more with each charge if
// Requests does not divide Period.
func (o *referee) charged() {
	if l := o.limit; l.Algorithm == algorithms.TokenBucketInteger && int64(l.Period)%int64(l.Requests) != 0 {
		o.deficit = max(0, o.deficit-int64(l.Requests))
	}
}

// turn begins a window, if it is not the window of the last hits.
func (o *referee) turn(window int64) {
	switch window - o.window {
	case 0:
		return
	case 1:
		o.previous = o.current
	default:
		o.previous = 0
	}
	o.window, o.current = window, 0
}
