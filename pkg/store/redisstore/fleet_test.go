package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// ships returns stores with one clock that share a count of their fleet, and do not beat by
// themselves.
func ships(t *testing.T, n int, urls []string) (all []*Store, c *clock) {
	t.Helper()
	c = newClock()
	prefix := fmt.Sprintf("%s %d:", t.Name(), time.Now().UnixNano())
	for range n {
		s := open(t, urls, Options{Prefix: prefix})
		c.drives(s)
		all = append(all, s)
	}
	return all, c
}

// beaten is the answer to a beat in a fleet of a size.
func beaten(size int) string {
	return fmt.Sprintf("*7\r\n:%d\r\n:%d\r\n:1\r\n:0\r\n:0\r\n:%d\r\n:0\r\n", time.Now().UnixMicro(), size, store.Circle/size)
}

func TestFleetCountsTheProcessesThatAreThere(t *testing.T) {
	all, c := ships(t, 5, urlOf("redis", shared(t).Address()))
	beat := func(some []*Store) {
		for _, s := range some {
			s.fleet.beat(t.Context(), false)
		}
		c.sleep(fleetBeat)
	}
	for n := range 12 {
		if n == 3 {
			all[4].fleet.beat(t.Context(), true) // leaves
		}
		beat(all[:5-min(1, n/3)])
		for i, s := range all[:4] {
			switch got := s.Health(0).Fleet; {
			case n == 0 && got != i+1:
				t.Errorf("process %d of 5 counts %d at its first beat; want those that came before it", i+1, got)
			case n == 1 && got != 5, n == 2 && got != 5, n >= 8 && got != 4:
				t.Errorf("beat %d: process %d counts %d", n, i+1, got)
			}
		}
	}
	for n := range 14 { // two are killed
		beat(all[:2])
		if got := all[0].Health(0).Fleet; got > 4 || n < 9 && got != 4 || n >= 11 && got != 2 {
			t.Errorf("beat %d after two of four were killed: %d are counted", n, got)
		}
	}
}

// After an outage the first process to come back must not believe that it is alone.
func TestFleetStaysKnownOverAnOutageAndALossOfTheKey(t *testing.T) {
	all, c := ships(t, 4, urlOf("redis", shared(t).Address()))
	round := func(some []*Store) {
		for _, s := range some {
			s.fleet.beat(t.Context(), false)
			if got := all[0].Health(0).Fleet; got != 4 {
				t.Errorf("%d are counted; want 4", got)
			}
		}
		c.sleep(fleetBeat)
	}
	for range 2 {
		for _, s := range all {
			s.fleet.beat(t.Context(), false)
		}
		c.sleep(fleetBeat)
	}
	for range 6 {
		round(all)
	}
	c.sleep(time.Minute)
	round(all[:1])
	round(all[:1])
	for range 10 {
		round(all)
	}
	command(t, all[0], "DEL", all[0].main.prefix+"fleet")
	for range 10 {
		round(all)
	}
	c.sleep(-2500 * time.Millisecond) // the clock of Redis goes back
	for range 10 {
		round(all)
	}
}

func TestFleetIsCountedInACluster(t *testing.T) {
	all, c := ships(t, 3, urlOf("redis-cluster", sharedCluster(t).Addresses()...))
	for range 3 {
		for _, s := range all {
			s.fleet.beat(t.Context(), false)
		}
		c.sleep(fleetBeat)
	}
	for _, s := range all {
		if got := s.Health(0).Fleet; got != 3 {
			t.Errorf("%d are counted; want 3", got)
		}
	}
}

func TestFleetBeatsUntilClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var beats, left atomic.Int64
		f := farBy(time.Millisecond)
		f.beats = func(args []string) string {
			beats.Add(1)
			if args[5] == "1" {
				left.Add(1)
			}
			return beaten(7)
		}
		s := away(t, f, Options{CountFleet: true})
		time.Sleep(10*time.Second + fleetBeat/2)
		if got := s.Health(0).Fleet; got != 7 || beats.Load() != 12 {
			t.Errorf("%d are counted after %d beats in 10 s; want 7 after 12, two of which came with the first share", got, beats.Load())
		}
		s.Close()
		if beats.Load() != 13 || left.Load() != 1 {
			t.Errorf("%d beats, of which %d leave; want 13 and 1", beats.Load(), left.Load())
		}
	})
}

func TestFleetThatRedisDoesNotCountStaysKnownAndIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := atomic.Pointer[string]{}
		answers := func(text string) { answer.Store(&text) }
		answers(beaten(7))
		f := farBy(time.Millisecond)
		f.beats = func([]string) string { return *answer.Load() }
		var lines logtest.Log
		s := away(t, f, Options{CountFleet: true, Logger: slog.New(slog.NewTextHandler(&lines, nil))})
		time.Sleep(3 * time.Second)
		for _, text := range []string{"-NOPERM no permission\r\n", "-WRONGTYPE of a key\r\n", "-NOPERM no permission\r\n"} {
			answers(text)
			time.Sleep(time.Minute)
		}
		answers("-OOM command not allowed\r\n")
		time.Sleep(time.Minute)
		answers("-READONLY a replica\r\n")
		time.Sleep(time.Minute)
		if got := s.Health(0).Fleet; got != 7 {
			t.Errorf("%d are counted; want 7", got)
		}
		logged := 0
		for _, line := range lines.Lines() {
			if strings.Contains(line, "cannot count the processes") {
				logged++
			}
		}
		if logged != 1 {
			t.Errorf("%d lines; want 1:\n%s", logged, strings.Join(lines.Lines(), "\n"))
		}
	})
}

// A Redis that stood still runs the beats that nobody waits for any more.
func TestFleetDoesNotCountBeatsThatComeLate(t *testing.T) {
	s := open(t, urlOf("redis", shared(t).Address()), Options{Prefix: fmt.Sprintf("%s %d:", t.Name(), time.Now().UnixNano())})
	f := s.fleet
	f.beat(t.Context(), false)
	first, last := f.first, f.last
	for range 3 {
		f.first, f.last = 0, 0 // as if the beats before had no answer
		f.ahead -= time.Minute.Microseconds()
		f.beat(t.Context(), false)
		if f.last != 0 {
			t.Error("the process believes that Redis has counted a late beat")
		}
	}
	f.first, f.last = first, last
	f.beat(t.Context(), false) // has learned the clock
	if got := s.Health(0).Fleet; got != 1 || f.last == 0 {
		t.Errorf("%d processes are counted after late beats of one, in the epoch %d; want 1", got, f.last)
	}
}

func TestFleetIsCountedAgainAfterAForeignValue(t *testing.T) {
	s := open(t, urlOf("redis", shared(t).Address()), Options{Prefix: fmt.Sprintf("%s %d:", t.Name(), time.Now().UnixNano())})
	for _, value := range []string{"hello", "", strings.Repeat("x", 16), strings.Repeat("x", 20), strings.Repeat("x", 80)} {
		command(t, s, "SET", s.main.prefix+"fleet", value)
		s.fleet.first, s.fleet.last = 0, 0
		s.processes.Store(0)
		s.fleet.beat(t.Context(), false)
		if got := s.Health(0).Fleet; got != 1 {
			t.Errorf("after the value %q: got %d processes, want 1", value, got)
		}
	}
}

// connecting is a connection that is made after a moment.
type connecting struct {
	*far
	made chan struct{} // closed then
}

func (c connecting) Client() (rueidis.Client, error) {
	select {
	case <-c.made:
		return c.far.Client()
	default:
		return nil, ErrUnavailable
	}
}

func (c connecting) Await(ctx context.Context) error {
	select {
	case <-c.made:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A process that has just started, and loses Redis then, must not believe that it is alone.
func TestAProcessIsCountedAsSoonAsItIsConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := farBy(time.Millisecond)
		f.beats = func([]string) string { return beaten(4) }
		c := connecting{f, make(chan struct{})}
		s := awayBy(t, f, c, Options{CountFleet: true})
		time.Sleep(300 * time.Millisecond)
		close(c.made)
		time.Sleep(10 * time.Millisecond)
		if err := s.AwaitCount(t.Context()); err != nil {
			t.Error(err)
		}
		if got := s.Health(0).Fleet; got != 4 {
			t.Errorf("10 ms after the connection %d processes are counted, want 4", got)
		}
	})
}

func TestAnAssumedFleetCountsUntilRedisHasCountedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := farBy(time.Millisecond)
		f.beats = func([]string) string { return beaten(2) }
		c := connecting{f, make(chan struct{})}
		s := awayBy(t, f, c, Options{CountFleet: true})
		if got := s.Stats(); got.Fleet != 0 || got.FleetCounted {
			t.Errorf("before all: %d processes, counted %t; want none", got.Fleet, got.FleetCounted)
		}
		s.Assume(4)
		time.Sleep(time.Minute)
		if got := s.Stats(); got.Fleet != 4 || got.FleetCounted {
			t.Errorf("without Redis: %d processes, counted %t; want 4 that are assumed", got.Fleet, got.FleetCounted)
		}
		close(c.made)
		time.Sleep(2 * fleetBeat)
		if got := s.Stats(); got.Fleet != 4 || !got.FleetCounted {
			t.Errorf("while others may not have been counted: %d processes, counted %t; want 4", got.Fleet, got.FleetCounted)
		}
		time.Sleep(fleetSettled + fleetBeat)
		if got := s.Stats(); got.Fleet != 2 || !got.FleetCounted {
			t.Errorf("afterwards: %d processes, counted %t; want 2", got.Fleet, got.FleetCounted)
		}
	})
}

// The shares of a fleet fill the circle, and stay while a process is cut off.
func TestProcessesHaveEqualPartsOfTheCircle(t *testing.T) {
	all, c := ships(t, 4, urlOf("redis", shared(t).Address()))
	beat := func(some []*Store) {
		for _, s := range some {
			s.fleet.beat(t.Context(), false)
		}
		c.sleep(fleetBeat)
	}
	check := func(when string, some []*Store, parts uint32) {
		t.Helper()
		at := uint32(0)
		for i, s := range some { // in the order of their first beats
			if got := s.Health(0).Share; got.From != at || got.To-at-store.Circle/parts > 1 {
				t.Errorf("%s process %d has %v, want a part of %d from %d on", when, i, got, parts, at)
			}
			at = s.Health(0).Share.To
		}
		if uint32(len(some)) == parts && at != store.Circle {
			t.Errorf("%s the parts end at %d of %d", when, at, store.Circle)
		}
	}
	for range 8 {
		beat(all)
	}
	check("together", all, 4)
	for range 9 { // one is cut off
		beat(all[:3])
	}
	check("9 s after the last beat of one", all[:3], 4)
	for range 6 {
		beat(all[:3])
	}
	check("15 s after the last beat of one", all[:3], 3)
}

// After an outage a process is told when all others have told their hits.
func TestAProcessLearnsWhenAllHaveToldWhatTheyOwed(t *testing.T) {
	all, c := ships(t, 3, urlOf("redis", shared(t).Address()))
	owes := false
	all[2].fleet.owes = func() bool { return owes }
	for range 6 {
		for _, s := range all {
			s.fleet.beat(t.Context(), false)
		}
		c.sleep(fleetBeat)
	}
	first := all[0]
	lost := func(ago time.Duration) { // Redis was away, and answers again
		first.fleet.away()
		first.fleet.lost.Store(1)
		first.fleet.ahead = int64(c.now())/int64(Granularity) - ago.Microseconds()
	}
	lost(0)
	owes = true
	for n, want := range []bool{false, false, false, true} {
		first.fleet.beat(t.Context(), false)
		first.fleet.ahead = int64(c.now())/int64(Granularity) - int64(n)*1000 // as before
		if got := first.Health(0).Told; got != want {
			t.Errorf("beat %d: told %t, want %t", n, got, want)
		}
		switch c.sleep(time.Millisecond); n {
		case 0:
			all[1].fleet.beat(t.Context(), false)
		case 1:
			all[2].fleet.beat(t.Context(), false) // is back, and owes hits
		case 2:
			owes = false
			all[2].fleet.beat(t.Context(), false)
		}
	}
}

// While the others tell their hits, a process decides without Redis, so hits always wait. Only hits
// of before its return keep the others waiting. Without an outage it owes nothing.
func TestHitsSinceTheReturnKeepNobodyWaiting(t *testing.T) {
	s := open(t, urlOf("redis", shared(t).Address()), Options{Prefix: fmt.Sprintf("%s %d:", t.Name(), time.Now().UnixNano())})
	c := hit("k", perAge(algorithms.FixedWindow, 1000))
	add := func() { s.Later(&c, s.Now(c.Limit), store.Part{}) }
	if err := s.Await(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	s.fleet.learnTold(0)
	if add(); s.fleet.owes() {
		t.Error("a late hit is owed without an outage")
	}
	s.fleet.away()
	if add(); !s.fleet.owes() {
		t.Error("a hit of an outage is not owed")
	}
	if err := s.Await(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the hits of the outage are told", func() bool {
		add()
		return !s.fleet.owes() && s.Stats().OwedKeys > 0
	})
}

// Neither chance nor beats that follow each other fast change a load by much. A burst does not move
// the shares of processes that get equal parts of it. A load that stays is told within some
// seconds.
func TestALoadIsToldWhenItChangesClearly(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 14))
	for _, rate := range []float64{0, 0.3, 1, 5, 50, 700} {
		var l load
		var count uint64
		demand, at := func() uint64 { return count }, int64(1)
		beat := func(rate float64) float64 {
			for left := rate - r.ExpFloat64(); left > 0; left -= r.ExpFloat64() {
				count++
			}
			at += fleetBeat.Microseconds()
			return float64(l.next(at, &demand))
		}
		l.next(at, &demand)
		for n := range 300 {
			if got, want := beat(rate), rate+loadLeast; n > 4*loadMemory && math.Abs(got-want) > want/4 {
				t.Errorf("%v requests in a second, and the load is %v", rate, got)
			}
			was := l.told()
			count++
			if at += fleetTelling.Microseconds(); l.next(at, &demand) != was {
				t.Errorf("the load changes after %v", fleetTelling)
			}
			at, count = at-fleetTelling.Microseconds(), count-1
		}
		for range 2 * loadMemory {
			beat(rate + 1000)
		}
		if got := float64(l.told()); got < 0.8*(rate+1000) {
			t.Errorf("16 s of 1000 requests more than %v, and the load is %v", rate, got)
		}
		for range 4 * loadMemory {
			beat(0)
		}
		if got := float64(l.told()); got > loadLeast+0.03*(rate+1000) {
			t.Errorf("32 seconds without requests, and the load is %v", got)
		}
	}
	for _, burst := range []uint64{4, 20, 100, 1000, 100_000} {
		for cut := range uint64(11) {
			for _, begins := range []int64{3, loadMemory + 3} {
				var whole, parts load
				var first, second uint64
				var demands [2]func() uint64
				demands[0], demands[1] = func() uint64 { return first }, func() uint64 { return second }
				for n := range int64(60) {
					switch n {
					case begins:
						first, second = burst, burst*cut/10
					case begins + 1:
						second = burst
					}
					a := float64(whole.next(1+n*fleetBeat.Microseconds(), &demands[0]))
					b := float64(parts.next(1+n*fleetBeat.Microseconds(), &demands[1]))
					if n < loadMemory && a+b > 0 {
						t.Fatalf("the loads are %v and %v after %d beats", a, b, n)
					}
					if n > begins && math.Abs(a-b) > (a+b)/8+1 { // arcs stand still while loads are within an eighth of their mean
						t.Fatalf("%d requests in a burst, %d0 %% of them in the first beat of another process: the loads are %v and %v after %d beats",
							burst, cut, a, b, n-begins)
					}
				}
			}
		}
	}
}

// Processes that end while Redis is away are not counted beside the ones that go on for them.
func TestAProcessTakesThePlaceOfTheOneBefore(t *testing.T) {
	urls := urlOf("redis", shared(t).Address())
	before, c := ships(t, 4, urls)
	for range 2 {
		for _, s := range before {
			s.fleet.beat(t.Context(), false)
			c.sleep(time.Millisecond)
		}
	}
	for n, old := range before {
		c.sleep(time.Second)
		next := open(t, urls, Options{Prefix: old.main.prefix})
		c.drives(next)
		next.Succeed("not a name")
		next.Succeed(old.Name())
		for range 2 {
			next.fleet.beat(t.Context(), false)
			if got := next.processes.Load(); got != 4 {
				t.Errorf("the process after number %d counts %d, want 4", n, got)
			}
		}
		if other := open(t, urls, Options{Prefix: old.main.prefix}); other.Name() != "" || next.Name() == old.Name() {
			t.Errorf("a process that was not counted has the name %q, and two that were have %q and %q", other.Name(), old.Name(), next.Name())
		}
	}
}
