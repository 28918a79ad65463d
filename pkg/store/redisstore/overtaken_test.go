package redisstore

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/redis"
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
			s.Later(&c, s.Now(algorithms.Limit{}), store.Part{})
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
		s.Later(&c, s.Now(algorithms.Limit{}), store.Part{})
		s.sendBefore([]store.Charge{c}) // the request's own call does not come
		s.Close()
		if f.calls.Load() == 0 || s.metrics.deferredHits.Load() != 1 {
			t.Errorf("%d calls reached the server, and %d hits were charged; want both 1", f.calls.Load(), s.metrics.deferredHits.Load())
		}
	})
}

// A call of the outbox about two keys waits for one key. No later call about the other key may
// overtake the waiting call.
func TestNoCallOvertakesAWaitingCallOfTheOutbox(t *testing.T) {
	q := unconnected(names{}).main.queue
	l := q.nodeQueueLocked(0)
	l.workers = mostFlights
	one, two := hit("k1", perAge(algorithms.FixedWindow, 10)), hit("k2", perAge(algorithms.FixedWindow, 10))
	of := func(fences bool, charges ...store.Charge) *call {
		c := new(call)
		c.set(take, 0, 0, charges)
		c.fences = fences
		return c
	}
	var first, second flight
	q.put(of(true, one), false)
	if !taken(l, &first, time.Now()) {
		t.Fatal("the first call does not fly")
	}
	q.put(of(true, one, two), false)
	q.put(of(false, two), false)
	if taken(l, &second, time.Now().Add(time.Second)) {
		t.Errorf("%d calls fly; want both to wait", len(second.calls))
	}
}

// Calls that everybody has abandoned say nothing about a Redis that answers nothing.
func TestAFlightWithoutCallsIsNoAnswer(t *testing.T) {
	q := unconnected(names{}).main.queue
	l := q.nodeQueueLocked(0)
	l.workers, l.lost = mostFlights, mostFlights
	c := new(call)
	c.set(take, 0, 0, []store.Charge{hit("k1", perAge(algorithms.FixedWindow, 10))})
	c.status.Store(abandoned)
	f := &flight{node: l, current: map[uint16]*batch{}, calls: []*call{c}, begun: time.Now()}
	l.flying = []*flight{f}
	l.send(f, true)
	if got := l.mostLocked(); got != 1 {
		t.Errorf("%d flights at once; want 1 until Redis answers", got)
	}
}

// Slots may change their node while calls wait. Calls about one key then go on in their order, and
// behind the same calls of the outbox.
func TestNoCallOvertakesTheOutboxWhenSlotsChangeTheirNode(t *testing.T) {
	q := unconnected(names{cluster: true}).main.queue
	at, _ := q.server.connection.(*farCluster)
	before, after := q.node(0), q.node(1)
	before.workers, after.workers = mostFlights, mostFlights
	of := func(fences bool, key string) *call {
		c := new(call)
		c.set(take, 7, 0, []store.Charge{hit(key, perAge(algorithms.FixedWindow, 10))})
		c.fences = fences
		return c
	}
	first, second := of(true, "k"), of(true, "k")
	question, other := of(false, "k"), of(false, "other")
	var sent, behind, last flight
	at.nodes = new(redis.Nodes)
	q.put(first, false)
	if !taken(before, &sent, time.Now()) {
		t.Fatal("the first call does not fly")
	}
	q.put(second, false)
	at.nodes = &redis.Nodes{7: 1}
	q.put(question, false)
	q.put(other, false)
	soon := time.Now().Add(time.Second)
	if n := len(before.waiting); n != 0 {
		t.Errorf("%d calls wait for the node before; want 0", n)
	}
	if !taken(after, &behind, soon) || len(behind.calls) != 1 || behind.calls[0] != other {
		t.Errorf("%d calls fly while a call of the outbox is under way; want the one about another key", len(behind.calls))
	}
	before.land(&sent, true, true)
	if !taken(after, &last, soon.Add(time.Second)) || !slices.Equal(last.calls, []*call{second, question}) {
		t.Errorf("%d calls fly after the end of that call; want 2, in their order", len(last.calls))
	}
}

// taken is takeLocked with the lock.
func taken(n *nodeQueue, f *flight, now time.Time) bool {
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	return n.takeLocked(f, now)
}
