package redisstore

import (
	"hash/maphash"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Hits that nobody waits for are charged also by a Redis that is slower than the timeout.
func TestASlowRedisChargesTheHitsOfTheOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := farBy(12 * time.Millisecond)
		s := away(t, f, Options{})
		time.Sleep(time.Second)
		c := hit("a", perAge(algorithms.FixedWindow, 10))
		const all = 20
		for range all {
			s.Later(&c, 0)
			time.Sleep(200 * time.Millisecond)
		}
		time.Sleep(time.Second)
		if lost, told := s.metrics.lostHits.Load(), s.metrics.deferredHits.Load(); lost != 0 || told != all {
			t.Errorf("lost %d hits, and charged %d of %d", lost, told, all)
		}
	})
}

// Close sends also the calls of a queue that never had a worker.
func TestCloseSendsCallsThatWaitForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := farBy(time.Millisecond)
		s := away(t, f, Options{})
		c := hit("a", perAge(algorithms.FixedWindow, 10))
		s.Later(&c, 0)
		s.outbox.sendBefore([]store.Charge{c}) // the request's own call does not come
		s.Close()
		if f.calls.Load() == 0 || s.metrics.deferredHits.Load() != 1 {
			t.Errorf("%d calls reached the server, and %d hits were charged; want both 1", f.calls.Load(), s.metrics.deferredHits.Load())
		}
	})
}

// A call of the outbox about two keys waits for one key. No later call about the other key may overtake the waiting call.
func TestNoCallOvertakesAWaitingCallOfTheOutbox(t *testing.T) {
	s := unconnected(false, &Store{timeout: 10 * time.Millisecond, seed: maphash.MakeSeed()})
	q := newQueue(s.main, singleFlights, nil)
	q.workers = singleFlights
	one, two := hit("k1", perAge(algorithms.FixedWindow, 10)), hit("k2", perAge(algorithms.FixedWindow, 10))
	of := func(o *outbox, charges ...store.Charge) *call {
		c := newCall()
		c.set(take, location{server: s.main}, 0, charges)
		c.outbox = o
		return c
	}
	o := newOutbox(s)
	var first, second flight
	q.put(of(o, one))
	if !q.takeLocked(&first, time.Now()) {
		t.Fatal("the first call does not fly")
	}
	q.put(of(o, one, two))
	q.put(of(nil, two))
	if q.takeLocked(&second, time.Now().Add(time.Second)) {
		t.Errorf("%d calls fly; want both to wait", len(second.calls))
	}
}

// Calls that everybody has abandoned say nothing about a Redis that answers nothing.
func TestAFlightWithoutCallsIsNoAnswer(t *testing.T) {
	s := unconnected(false, &Store{timeout: 10 * time.Millisecond, seed: maphash.MakeSeed()})
	q := newQueue(s.main, singleFlights, nil)
	q.workers, q.lost, q.under = singleFlights, singleFlights, 1
	c := newCall()
	c.set(take, location{server: s.main}, 0, []store.Charge{hit("k1", perAge(algorithms.FixedWindow, 10))})
	c.status.Store(abandoned)
	f := &flight{server: s.main, current: map[uint16]*batch{}, calls: []*call{c}, begun: time.Now()}
	sent, answered := f.fly()
	q.land(f, sent, answered)
	if got := q.mostLocked(); got != 1 {
		t.Errorf("%d flights at once; want 1 until Redis answers", got)
	}
}
