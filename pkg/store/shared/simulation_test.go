package shared

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
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

	decisions, local, asked int64 // requests: all, decided from a lease, sent to Redis
	leased, returnedHits    int64
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
	case partTimesOut:
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
	case requestsArrive, replyReaches, partTimesOut, outboxTicks:
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

// free gives back the memory of a call. A part stays, as its time-out still knows it.
func (s *simulation) free(c *simulatedCall) {
	if c.kind != partCall {
		s.unused = append(s.unused, c)
	}
}

// schedule is the fate of a fleet. Durations are in microseconds.
type schedule struct {
	seed       uint64
	limits     []algorithms.Limit // one for each key
	leasing    int                // sidecars with leases
	exact      int                // sidecars without
	fleetKnown int                // as the sidecars know it
	load       float64            // requests per microsecond of the whole fleet
	large      float64            // part of the requests that has many hits
	moves      int64              // mean time from one move of the load to the next; 0: the load is even
	batch      int                // requests at one instant
	usualDelay float64            // mean time of one way to Redis
	timeout    instantOfEvent     // wait for Redis
	lead       instantOfEvent     // error of the deadline that a call carries
	lost       float64            // part of the replies that is lost
	spendings  int64              // mean time between two events of a kind; 0: no such events
	pauses     int64
	stops      int64
	deaths     int64
	cuts       int64
	mistake    mistake
	most       int64 // decisions; then the run ends
}

// mistake is a deliberate error in the rules of leases, which the oracles must find.
type mistake uint8

const (
	noMistake              mistake = iota
	debitLate                      // hits are spent before Redis has charged them
	spendPastTheEnd                // a lease is spent after its end
	returnAcrossAWindow            // hits are given back as of now, and not as of their part
	ignoreOutstanding              // a bucket refills over the hits of leases
	returnTwice                    // hits are given back twice
	mergeAtTheLatest               // several returns of a key count as of the latest part
	returnAsIfNobodyLeased         // a bucket gets back all hits that it would have if nobody had leased meanwhile
)

func (m mistake) String() string {
	return [...]string{
		"no mistake", "debit late", "spend past the end", "return across a window", "ignore outstanding leases", "return twice",
		"merge returns as of the latest part", "return as if nobody leased",
	}[m]
}

// drawSchedule draws a schedule of that many decisions.
func drawSchedule(t *rapid.T, decisions int64) schedule {
	p := schedule{
		seed:       rapid.Uint64().Draw(t, "seed"),
		leasing:    rapid.IntRange(1, 6).Draw(t, "leasing"),
		exact:      rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "exact"),
		large:      rapid.SampledFrom([]float64{0, 0, 0, 0.001, 0.01}).Draw(t, "large"),
		moves:      rapid.SampledFrom([]int64{0, 50_000, 300_000, 2_000_000}).Draw(t, "moves"),
		batch:      rapid.SampledFrom([]int{1, 4, 32}).Draw(t, "batch"),
		usualDelay: rapid.SampledFrom([]float64{50, 300, 3000}).Draw(t, "delay"),
		timeout:    rapid.SampledFrom([]int64{2000, 10_000, 10_000, 100_000, 500_000}).Draw(t, "timeout"),
		lead:       rapid.SampledFrom([]int64{0, 2000}).Draw(t, "lead"),
		lost:       rapid.SampledFrom([]float64{0, 0, 0, 0.01, 0.2}).Draw(t, "lost"),
		spendings:  rapid.SampledFrom([]int64{50_000, 500_000, 3_000_000, 10_000_000}).Draw(t, "spendings"),
		pauses:     seldom(t, "pauses", 500_000, 3_000_000),
		stops:      seldom(t, "stops", 300_000, 3_000_000),
		deaths:     seldom(t, "deaths", 500_000, 3_000_000),
		cuts:       seldom(t, "cuts", 100_000, 1_000_000),
		most:       decisions,
	}
	if p.timeout < 4*int64(p.usualDelay) && p.seed%8 != 0 {
		p.timeout = 4 * int64(p.usualDelay)
	}
	p.fleetKnown = rapid.IntRange(1, p.leasing+p.exact).Draw(t, "fleet known")
	perSecond := 0.0
	for range rapid.IntRange(1, 3).Draw(t, "keys") {
		l := drawLimit(t)
		p.limits = append(p.limits, l)
		perSecond += float64(l.Requests) / l.Period.Seconds()
	}
	factor := rapid.SampledFrom([]float64{0.5, 0.8, 0.9, 0.95, 1.2, 3}).Draw(t, "load")
	p.load = max(factor*perSecond, 300*float64((p.leasing+p.exact)*len(p.limits))) / 1e6
	return p
}

// seldom draws the mean time between two events that most schedules do not have.
func seldom(t *rapid.T, name string, often, rarely int64) int64 {
	return rapid.SampledFrom([]int64{0, 0, 0, 0, often, rarely}).Draw(t, name)
}

// drawLimit draws a limit of an algorithm with leases.
func drawLimit(t *rapid.T) algorithms.Limit {
	l := algorithms.Limit{
		Algorithm: rapid.SampledFrom([]algorithms.Algorithm{
			algorithms.FixedWindow, algorithms.TokenBucket, algorithms.SlidingWindowCounter, algorithms.TokenBucketInteger,
		}).Draw(t, "algorithm"),
		Requests: rapid.SampledFrom([]uint32{50, 500, 3000, 7777, 20_000}).Draw(t, "requests"),
		Period:   rapid.SampledFrom([]time.Duration{100 * time.Millisecond, time.Second, 3 * time.Second, 20 * time.Second}).Draw(t, "period"),
	}
	if l.Algorithm == algorithms.TokenBucket {
		l.Burst = uint32(float64(l.Requests) * rapid.SampledFrom([]float64{0.5, 1, 3, 30}).Draw(t, "burst"))
	}
	return l
}

// schedules returns schedules of that many decisions by number. The same number gives the same
// schedule.
func schedules(decisions int64) func(number int) schedule {
	g := rapid.Custom(func(t *rapid.T) schedule { return drawSchedule(t, decisions) })
	return func(number int) schedule { return g.Example(number) }
}

// WEIR_SIMULATED_DECISIONS=1e9 makes a long run of longer schedules, from number WEIR_TEST_SEED on.
func TestNoScheduleAdmitsTooMany(t *testing.T) {
	decisions, each, first := 4e6, int64(20_000), 0
	if race.Enabled {
		decisions = 4e5
	}
	if text := os.Getenv("WEIR_SIMULATED_DECISIONS"); text != "" {
		var err error
		if decisions, err = strconv.ParseFloat(text, 64); err != nil {
			t.Fatalf("WEIR_SIMULATED_DECISIONS: %v", err)
		}
		each = 200_000
		first, _ = strconv.Atoi(os.Getenv("WEIR_TEST_SEED"))
	}
	of := schedules(each)
	var sum simulation // the counters of all
	for number := first; float64(sum.decisions) < decisions; number++ {
		s := newSimulation(of(number))
		if err := s.run(); err != nil {
			t.Fatalf("schedule %d: %v", number, err)
		}
		sum.decisions += s.decisions
		sum.local += s.local
		sum.asked += s.asked
		sum.leased += s.leased
		sum.returnedHits += s.returnedHits
	}
	t.Logf("%d decisions: %d from leases, %d by Redis, the others from remembered denials; %d parts charged, %d hits given back",
		sum.decisions, sum.local, sum.asked, sum.leased, sum.returnedHits)
}

func TestTheSimulationFindsEachMistake(t *testing.T) {
	race.Without(t)
	for _, c := range []struct {
		mistake mistake
		from    int // number of a schedule: two mistakes show in one of some hundred schedules, shortly after these
	}{
		{debitLate, 0},
		{spendPastTheEnd, 0},
		{returnAcrossAWindow, 0},
		{ignoreOutstanding, 0},
		{returnTwice, 0},
		{mergeAtTheLatest, 260},
		{returnAsIfNobodyLeased, 330},
	} {
		t.Run(c.mistake.String(), func(t *testing.T) {
			const most = 2000
			of := schedules(20_000)
			for i := range most {
				p := of(c.from + i)
				p.mistake = c.mistake
				if err := newSimulation(p).run(); err != nil {
					t.Logf("schedule %d: %v", c.from+i, err)
					return
				}
			}
			t.Errorf("%d schedules kept all promises", most)
		})
	}
}

// saturated returns a schedule of four sidecars and clients that want that many times the limit,
// for about 30 seconds.
func saturated(l algorithms.Limit, times float64, moves time.Duration) schedule {
	p := schedule{
		seed: 12, limits: []algorithms.Limit{l}, leasing: 4, fleetKnown: 4, moves: moves.Microseconds(), batch: 1,
		usualDelay: 150, timeout: 10_000,
	}
	p.load = times * float64(l.Requests) / float64(l.Period.Microseconds())
	p.most = int64(p.load * 30e6)
	return p
}

// runUntil lets the simulation run until a time.
func (s *simulation) runUntil(end instantOfEvent) {
	for s.now < end {
		s.step()
	}
}

func TestAFleetUsesItsLimit(t *testing.T) {
	if race.Enabled {
		t.Skip("decides millions of requests")
	}
	for _, a := range []algorithms.Algorithm{
		algorithms.FixedWindow, algorithms.TokenBucket, algorithms.SlidingWindowCounter, algorithms.TokenBucketInteger,
	} {
		for _, c := range []struct {
			name  string
			times float64
			moves time.Duration
			least float64 // percent of the hits that the fleet admits without leases
		}{
			{"under even load", 1.2, 0, 99},
			{"under even load of twice the limit", 2, 0, 99},
			{"under load that moves in 100 ms", 1.2, 100 * time.Millisecond, 97},
			{"under load that moves in a second", 1.2, time.Second, 97},
			{"under load of twice the limit that moves in a second", 2, time.Second, 97},
		} {
			t.Run(fmt.Sprint(a, " ", c.name), func(t *testing.T) {
				t.Parallel()
				limit := algorithms.Limit{Algorithm: a, Requests: 2000, Period: time.Second}
				if a == algorithms.TokenBucket {
					limit.Burst = 4000
				}
				p := saturated(limit, c.times, c.moves)
				leasing := newSimulation(p)
				must.Do(t, leasing.run())
				p.leasing, p.exact = 0, p.leasing
				exact := newSimulation(p)
				exact.runUntil(leasing.now)
				with, without := leasing.oracles[0].admitted, exact.oracles[0].admitted
				used := 100 * float64(with) / float64(without)
				t.Logf("%.2f %% of %d hits; %.0f %% from leases", used, without, 100*float64(leasing.local)/float64(with))
				if used < c.least {
					t.Errorf("%.2f %% of %d hits were admitted; want %v %% at least", used, without, c.least)
				}
			})
		}
	}
}
