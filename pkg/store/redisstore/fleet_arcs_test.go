package redisstore

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// sea is a fleet in virtual time: the script runs in Redis, and the answers may be lost.
type sea struct {
	t       *testing.T
	r       *rand.Rand
	of      *Store
	clock   *clock
	at      time.Duration // since the start, also when the clock of Redis steps
	boats   []*boat
	emptied time.Duration // when Redis last lost its data
	steps   bool          // the clock of Redis steps
}

// boat is a process of a sea.
type boat struct {
	*fleet

	next     time.Duration // beat
	ran      time.Duration // when Redis last ran a beat
	is       bool          // Redis has answered since it did not know the process
	deaf     time.Duration // until then no beat reaches Redis
	late     []*boat       // beats that Redis may run later
	prepared time.Duration // of a late beat
}

func newSea(t *testing.T, seed uint64) *sea {
	t.Helper()
	return &sea{
		t: t, r: rand.New(rand.NewPCG(seed, 1)), clock: newClock(), emptied: -time.Hour,
		of: open(t, urlOf("redis", shared(t).Address()), Options{Prefix: fmt.Sprintf("%s %d %d:", t.Name(), seed, time.Now().UnixNano())}),
	}
}

// join adds a process.
func (s *sea) join() *boat {
	one := &server{
		base:  &base{started: time.Now(), logger: s.of.logger, given: s.clock.now},
		names: s.of.main.names, target: s.of.main.target, connection: s.of.main.connection, seeds: s.of.main.seeds,
	}
	f, err := newFleet(one)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range f.server.name {
		f.server.name[i] = byte(s.r.IntN(3)) // names may look like parts of records
	}
	f.server.name[0] = byte(len(s.boats))
	f.server.name[7] = byte(s.r.IntN(256))
	f.demand.Store(new(func() uint64 { return 0 }))
	b := &boat{fleet: f, next: s.at}
	b.weighs(0)
	s.boats = append(s.boats, b)
	return b
}

// weighs sets the load that the next beat tells.
func (b *boat) weighs(load int64) {
	b.load.at, b.load.beats, b.load.mean = 4e15, loadMemory, float64(load-loadLeast)
} // 4e15: a count in the future

func (b *boat) arc() store.Share {
	share := b.server.share.Load()
	return store.Share{From: uint32(share >> 32), To: uint32(share)}
}

// known reports whether the others must leave room for the process.
func (s *sea) known(b *boat) bool {
	known := fleetKnown * fleetBeat
	if s.steps {
		known /= 2
	}
	b.is = b.is && s.at-b.ran < known && !(b.ran < s.emptied && s.at-s.emptied > fleetKnown*fleetBeat/6)
	return b.is
}

// beat lets Redis run a beat, and loses the answer if told to.
func (s *sea) beat(b *boat, lose bool) {
	share, before := b.server.share.Load(), [...]int64{b.first, b.answered, b.asked}
	moves, processes := b.moves, b.server.processes.Load()
	known := s.known(b)
	b.fleet.beat(s.t.Context(), false)
	b.ran = s.at
	lose = lose || b.last == 0                                  // a busy machine
	returns := !lose && s.at-s.emptied > fleetKnown*fleetBeat/2 // else others that grew may have to tell so
	if b.is = known || returns; lose {
		b.server.share.Store(share)
		b.server.processes.Store(processes)
		b.first, b.answered, b.asked, b.moves, b.last = before[0], before[1], before[2], moves, 0
	}
}

// fails gives a beat up before Redis runs it, which Redis may do later.
func (s *sea) fails(b *boat) {
	ghost := s.join()
	s.boats = s.boats[:len(s.boats)-1]
	ghost.server.name, ghost.prepared = b.server.name, s.at
	ghost.load, ghost.number, ghost.answered, ghost.asked = b.load, b.number, b.answered, b.asked
	ghost.server.share.Store(b.server.share.Load())
	b.late = append(b.late, ghost)
	b.number++
	b.last = 0
}

// check fails when two processes use one part of the circle, and returns the sum of all parts.
func (s *sea) check(when string) (sum uint32) {
	s.t.Helper()
	var arcs []store.Share
	for _, b := range s.boats {
		if arc := b.arc(); s.known(b) && arc.To > 0 {
			arcs, sum = append(arcs, arc), sum+arc.To-arc.From
		}
	}
	slices.SortFunc(arcs, func(x, y store.Share) int { return cmp.Compare(x.From, y.From) })
	for i, arc := range arcs {
		if arc.From >= arc.To || i > 0 && arc.From < arcs[i-1].To || arc.To > store.Circle {
			s.t.Fatalf("%s, after %v: arcs overlap: %v", when, s.at, arcs)
		}
	}
	return sum
}

const tick = 50 * time.Millisecond

// sail lets time pass. With faults answers are lost and beats come late.
func (s *sea) sail(d time.Duration, faults bool, when string) {
	s.t.Helper()
	for end := s.at + d; s.at < end; s.at += tick {
		for _, b := range s.boats {
			s.known(b) // notes who is forgotten
		}
		for _, i := range s.r.Perm(len(s.boats)) {
			b := s.boats[i]
			if faults && len(b.late) > 0 && s.r.IntN(20) == 0 {
				ghost := b.late[0]
				b.late = b.late[1:]
				if s.at-ghost.prepared < 3*fleetBeat && ghost.prepared > s.emptied { // else the deadline is over
					ghost.fleet.beat(s.t.Context(), false)
					s.check(when + " late")
				}
			}
			if s.at < b.next {
				continue
			}
			switch n := s.r.IntN(10); {
			case s.at < b.deaf:
				b.last = 0
			case faults && n == 0:
				s.beat(b, true)
			case faults && n == 1:
				s.fails(b)
			default:
				s.beat(b, false)
			}
			s.check(when)
			b.next = s.at + b.pause()
		}
		s.clock.sleep(tick)
	}
}

// happen lets something happen to the fleet.
func (s *sea) happen() {
	b := s.boats[s.r.IntN(len(s.boats))]
	switch n := s.r.IntN(12); {
	case n == 0 && len(s.boats) < 8:
		s.join()
	case n == 1 && len(s.boats) > 1: // leaves
		b.fleet.beat(s.t.Context(), true)
		s.boats = slices.DeleteFunc(s.boats, func(x *boat) bool { return x == b })
	case n == 2 && len(s.boats) > 1: // is killed
		s.boats = slices.DeleteFunc(s.boats, func(x *boat) bool { return x == b })
	case n == 3 || n == 6 && s.steps:
		b.deaf = s.at + time.Duration(s.r.Int64N(int64(20*time.Second)))
	case n == 4 && s.r.IntN(3) == 0:
		command(s.t, s.of, "DEL", s.of.main.prefix+"fleet")
		s.emptied = s.at
	case n == 5 && s.steps:
		s.clock.sleep(time.Duration(s.r.Int64N(int64(time.Minute))) - 30*time.Second)
	default:
		b.weighs(s.load())
	}
}

func (s *sea) load() int64 { return []int64{0, 0, 1, 3, 10, 100, 1000, 1<<32 - 1}[s.r.IntN(8)] }

// The arcs of processes are disjoint at each instant, also when beats and answers are lost or late.
// Loads that stand still have their parts after three seconds.
func TestNoTwoProcessesHaveOnePartOfTheCircle(t *testing.T) {
	seeds := 40
	if testing.Short() {
		seeds = 8
	}
	for seed := range uint64(seeds) {
		s := newSea(t, seed)
		s.steps = seed%4 == 3
		name := fmt.Sprintf("seed %d", seed)
		for range 1 + s.r.IntN(8) {
			s.join()
		}
		for range 40 {
			s.happen()
			s.sail(time.Duration(s.r.IntN(20))*tick, true, name)
		}
		for _, b := range s.boats {
			b.deaf = 0
		}
		s.sail(2*fleetKnown*fleetBeat, false, name+" calm")
		for range 3 {
			s.sail(4*fleetKnown*fleetBeat, false, name+" rest")
			sum, heavy := 0.0, 0.0
			for _, b := range s.boats {
				b.weighs(s.load())
				if load := float64(b.load.told()); load > 0 {
					sum, heavy = sum+load, heavy+1
				}
			}
			s.sail(5*fleetBeat, false, name+" calm")
			all, mean := 0.0, max(1, math.Floor(sum/max(1, heavy)))
			weight := func(load int64) float64 {
				if load == 0 || math.Abs(float64(load)-mean) <= mean/8 {
					return mean
				}
				return max(float64(load), math.Ceil(mean/16))
			}
			for _, b := range s.boats {
				all += weight(b.load.told())
			}
			for _, b := range s.boats {
				part, want := float64(b.arc().To-b.arc().From)/store.Circle, weight(b.load.told())/all
				if part < want*7/8-0.001 || part > want*9/8+0.001 {
					t.Errorf("%s: the load %d has %.4f of the circle, want %.4f", name, b.load.told(), part, want)
				}
			}
			if got := float64(s.check(name)) / store.Circle; got < 0.99 {
				t.Fatalf("%s: five seconds after the loads stood still %.3f of the circle is used", name, got)
			}
		}
	}
}

// Each process of a fleet that starts together gets its place with its first arc. Arcs that had to
// move would be short for some beats.
func TestProcessesThatStartTogetherNeedNotMove(t *testing.T) {
	for seed := range uint64(20) {
		s := newSea(t, 1000+seed)
		n := 2 + s.r.IntN(5)
		for range n {
			s.join().next = time.Duration(s.r.Int64N(int64(fleetBeat)))
		}
		for s.at < 10*fleetBeat {
			s.sail(tick, false, fmt.Sprintf("seed %d", seed))
			for i, b := range s.boats {
				if arc := b.arc(); arc.To > 0 && int(arc.To-arc.From) < store.Circle/n-1 {
					t.Fatalf("seed %d, after %v: process %d of %d has the arc %v", seed, s.at, i, n, arc)
				}
			}
		}
		if sum := s.check("at last"); int(sum) < store.Circle-n {
			t.Errorf("seed %d: %d processes have %d of the circle together", seed, n, sum)
		}
	}
}

// Others take the arc of a process that is forgotten. When the process is back it tells that arc
// until it has an answer.
func TestAForgottenProcessClaimsNothing(t *testing.T) {
	s := newSea(t, 1)
	back, _ := s.join(), s.join()
	s.sail(2*fleetKnown*fleetBeat, false, "together")
	back.deaf = time.Hour
	s.sail(2*fleetKnown*fleetBeat, false, "alone")
	if sum := s.check("alone"); sum != store.Circle {
		t.Fatalf("the other process has %d of the circle", sum)
	}
	s.beat(back, true)
	s.beat(back, false)
	s.check("back")
}

// A failover can lose beats. The process whose beat is lost has told that it uses less, and another
// process has the rest: nobody else may get it.
func TestNoArcGrowsIntoAValueThatIsTooOld(t *testing.T) {
	s := newSea(t, 2)
	gives, takes, third := s.join(), s.join(), s.join()
	gives.weighs(1000)
	s.sail(2*fleetKnown*fleetBeat, false, "before")
	client, err := s.of.main.client()
	if err != nil {
		t.Fatal(err)
	}
	key := s.of.main.prefix + "fleet"
	old, err := client.Do(t.Context(), client.B().Get().Key(key).Build()).ToString()
	if err != nil {
		t.Fatal(err)
	}
	gives.weighs(1)
	takes.weighs(1000)
	s.sail(4*fleetBeat, false, "since")
	if arc := takes.arc(); arc.To-arc.From < store.Circle/2 {
		t.Fatalf("the load has moved, and its share is %v", arc)
	}
	if err := client.Do(t.Context(), client.B().Set().Key(key).Value(old).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	third.weighs(1 << 20)
	for range 2 {
		s.beat(gives, false)
		s.beat(third, false)
		s.check("after the failover")
	}
}
