package shared

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// simulation is a fleet of sidecars that spend leases of keys in one Redis, in virtual time. A
// queue of events replaces goroutines and real clocks, so the same schedule gives the same run. The
// leases are real: lease.go. Redis is a model with the states of package algorithms. Connections
// delay, lose and cut off calls, processes stand still or die, clocks drift, and the load moves.
//
// Each admitted hit goes to the referee of its key. A run ends at the first broken promise.
type simulation struct {
	schedule

	random   *rand.Rand
	queue    events
	now      instantOfEvent
	epoch    algorithms.Instant
	redis    simulatedRedis
	sidecars []simulatedSidecar
	oracles  []referee
	unused   []*simulatedCall
	broken   error

	decisions, local, asked       int64 // requests: all, decided from a lease, sent to Redis
	grants, granted, returnedHits int64
}

func newSimulation(p schedule) *simulation {
	s := &simulation{schedule: p, random: rand.New(rand.NewPCG(p.seed, 12))} //nolint:gosec // a schedule must repeat
	s.epoch = algorithms.Instant(1_700_000_000_000_000+s.random.Int64N(1_000_000_000)) * 1000
	s.redis.keys = make([]simulatedKey, len(p.limits))
	for _, l := range p.limits {
		s.oracles = append(s.oracles, referee{limit: l})
	}
	s.sidecars = make([]simulatedSidecar, p.leasing+p.exact)
	for i := range s.sidecars {
		h := &s.sidecars[i]
		h.number, h.exact, h.keys = i, i >= p.leasing, make([]heldKey, len(p.limits))
		s.restart(h)
		s.push(event{at: s.random.Int64N(100_000), kind: outboxTicks, who: i})
	}
	s.move()
	for _, e := range []struct {
		kind eventKind
		mean int64
	}{
		{loadMoves, p.moves},
		{everythingSpent, p.spendings},
		{redisPauses, p.pauses},
		{sidecarStops, p.stops},
		{sidecarDies, p.deaths},
		{connectionEnds, p.cuts},
	} {
		s.again(e.kind, e.mean)
	}
	return s
}

// run runs the schedule to its end, or to the first broken promise.
func (s *simulation) run() error {
	for s.decisions < s.most && s.broken == nil {
		s.step()
	}
	if s.broken != nil {
		return fmt.Errorf("%w after %d decisions, %.3f s of %+v", s.broken, s.decisions, float64(s.now)/1e6, s.schedule)
	}
	return nil
}

// step lets the next event happen.
func (s *simulation) step() {
	e := s.queue.pop()
	s.now = e.at
	h := &s.sidecars[e.who]
	if s.now < h.stopped && e.kind.ofProcess() {
		e.at = h.stopped
		s.push(e)
		return
	}
	switch e.kind {
	case requestsArrive:
		s.arrive(h)
	case callReaches:
		s.reach(h, e.call)
	case replyReaches:
		s.reply(h, e.call)
	case grantTimesOut:
		s.timeOut(h, e.call)
	case leaseEnds:
		s.audit(e.call.key)
	case outboxTicks:
		s.tick(h)
		e.at = s.now + 100_000
		s.push(e)
	case loadMoves:
		s.move()
		s.again(e.kind, s.moves)
	case everythingSpent:
		s.spendEverything()
		s.again(e.kind, s.spendings)
	case redisPauses:
		s.redis.pausedUntil = s.now + 5000 + s.random.Int64N(495_000)
		s.again(e.kind, s.pauses)
	case sidecarStops:
		s.any().stopped = s.now + s.exponential(300_000)
		s.again(e.kind, s.stops)
	case sidecarDies:
		s.restart(s.any())
		s.again(e.kind, s.deaths)
	case connectionEnds:
		s.reconnect(s.any())
		s.again(e.kind, s.cuts)
	}
}

// ofProcess reports whether an event waits while its sidecar stands still.
func (k eventKind) ofProcess() bool {
	switch k {
	case requestsArrive, replyReaches, grantTimesOut, outboxTicks:
		return true
	default:
		return false
	}
}

// arrive lets the next requests of a sidecar arrive.
func (s *simulation) arrive(h *simulatedSidecar) {
	if h.arriving = h.mean > 0; !h.arriving {
		return
	}
	n := 1
	if s.batch > 1 {
		n += s.random.IntN(s.batch)
	}
	for range n {
		key := 0
		if len(s.limits) > 1 {
			key = s.random.IntN(len(s.limits))
		}
		hits := int64(1)
		if s.large > 0 && s.chance(s.large) {
			hits += s.random.Int64N(int64(s.limits[key].Capacity()))
		}
		s.request(h, key, hits)
	}
	s.push(event{at: s.now + s.exponential(h.mean*float64(n)), kind: requestsArrive, who: h.number})
}

// move divides the load anew. A quarter of the sidecars gets most of it while the load moves.
func (s *simulation) move() {
	weights, sum := make([]float64, len(s.sidecars)), 0.0
	for i := range weights {
		weights[i] = 1
		if s.moves > 0 {
			weights[i] = max(0, s.random.Float64()-0.5)
		}
		sum += weights[i]
	}
	if sum == 0 {
		weights[0], sum = 1, 1
	}
	for i := range s.sidecars {
		h := &s.sidecars[i]
		h.mean = 0
		if weights[i] > 0 {
			h.mean = sum / (weights[i] * s.load)
		}
		if h.mean > 0 && !h.arriving {
			h.arriving = true
			s.push(event{at: s.now + s.exponential(h.mean), kind: requestsArrive, who: i})
		}
	}
}

// spendEverything lets all running sidecars spend their leases at one instant. Somewhere between
// them an exact sidecar takes all hits that Redis has left. No schedule can admit more now.
func (s *simulation) spendEverything() {
	key := s.random.IntN(len(s.limits))
	empty := s.random.IntN(len(s.sidecars))
	for i := range s.sidecars {
		if i == empty && s.now >= s.redis.pausedUntil {
			k := &s.redis.keys[key]
			s.oracles[key].charged()
			d, _ := k.take(s.limits[key], s.instant(), 0, false)
			if d.Remaining > 0 {
				k.take(s.limits[key], s.instant(), int64(d.Remaining), false)
				s.admit(key, int64(d.Remaining))
			}
		}
		h := &s.sidecars[i]
		if s.now < h.stopped || h.exact {
			continue
		}
		l, now := &h.keys[key].lease, s.spendingClock(h)
		if held := l.held(now); held > 0 {
			if _, spent := l.spend(now, held); spent {
				s.admit(key, held)
			}
		}
	}
}

// audit finds out whether a promise would break now if all sidecars spent their leases, and exact
// ones took all hits that Redis has. A stopped sidecar may go on at this moment. So no schedule
// that is the same up to now can break the promise now.
func (s *simulation) audit(key int) {
	held := int64(0)
	for i := range s.sidecars {
		h := &s.sidecars[i]
		held += h.keys[key].lease.held(s.spendingClock(h))
	}
	k := s.redis.keys[key]
	k.forget(s.instant())
	d, _ := k.take(s.limits[key], s.instant(), 0, false)
	if err := s.oracles[key].would(s.instant(), held+int64(d.Remaining)); err != nil && s.broken == nil {
		s.broken = fmt.Errorf("key %d, with %d held and %d in Redis: %w", key, held, d.Remaining, err)
	}
}

// admit tells the referee of hits that were admitted now.
func (s *simulation) admit(key int, hits int64) {
	if err := s.oracles[key].admit(s.instant(), hits); err != nil && s.broken == nil {
		s.broken = fmt.Errorf("key %d: %w", key, err)
	}
}

// instant returns the time by Redis's clock.
func (s *simulation) instant() algorithms.Instant {
	return s.epoch + algorithms.Instant(time.Duration(s.now)*time.Microsecond)
}

func (s *simulation) push(e event)           { s.queue.push(e) }
func (s *simulation) any() *simulatedSidecar { return &s.sidecars[s.random.IntN(len(s.sidecars))] }
func (s *simulation) chance(p float64) bool  { return p > 0 && s.random.Float64() < p }

// again lets an event of a kind happen after a random time; 0: never.
func (s *simulation) again(kind eventKind, mean int64) {
	if mean > 0 {
		s.push(event{at: s.now + s.exponential(float64(mean)), kind: kind})
	}
}

// exponential returns a random time with a mean, both in microseconds.
func (s *simulation) exponential(mean float64) int64 { return int64(s.random.ExpFloat64() * mean) }

// delay returns the time of one way between a sidecar and Redis.
func (s *simulation) delay() int64 { return 20 + s.exponential(s.usualDelay) }

// drift returns the drift of a sidecar's clock against the clock of Redis, in ppm: up to 500 for
// each of the two.
func (s *simulation) drift() int64 {
	if s.chance(0.3) {
		return 1000 * (2*s.random.Int64N(2) - 1)
	}
	return s.random.Int64N(2001) - 1000
}

// newCall returns memory of a call.
func (s *simulation) newCall() *simulatedCall {
	if last := len(s.unused) - 1; last >= 0 {
		c := s.unused[last]
		s.unused = s.unused[:last]
		return c
	}
	return new(simulatedCall)
}

// free gives back the memory of a call. A grant stays, as its time-out still knows it.
func (s *simulation) free(c *simulatedCall) {
	if c.kind != grantCall {
		s.unused = append(s.unused, c)
	}
}
