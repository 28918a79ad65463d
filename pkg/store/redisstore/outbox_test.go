package redisstore

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// sendAll has all waiting hits sent.
func (o *outbox) sendAll() {
	o.sendSome(time.Now(), outboxShards*owed.MostHits, false)
}

// count returns the hits that Redis has of a fixed window, from a store that remembers nothing.
func count(t *testing.T, s *Store, c store.Charge) uint64 {
	t.Helper()
	raw, err := command(t, s, "GET", s.name(&c)).ToString()
	if err != nil {
		t.Fatal(err)
	}
	k, err := parse(raw, c.Limit)
	if err != nil {
		t.Fatal(err)
	}
	_, n, _ := k.state.Parts()
	return n
}

// Also when they are more than one charge can have.
func TestHitsOfTheOutboxReachRedisWhileOthersAsk(t *testing.T) {
	look := open(t, urlOf("redis", shared(t).Address()), Options{})
	s := open(t, urlOf("redis", shared(t).Address()), Options{Prefix: look.main.prefix})
	c := hit("k", perAge(algorithms.FixedWindow, 10))
	var total atomic.Int64
	storm(8, 1000, func(n int) {
		c := c
		switch n {
		case 0:
			remains(t, s, c)
		case 1:
			c.Limit.Requests++
			c.Hits = 0
			ask(t, s, c)
		default:
			if c.Hits = int64(n); total.Load() == 0 {
				c.Hits = 3 * algorithms.MaxHits
			}
			s.Later(&c, s.Now(algorithms.Limit{}), store.Part{})
			total.Add(c.Hits)
		}
	})
	s.Close() // sends the outbox
	if got := count(t, look, c); got != uint64(total.Load()) || s.Stats().LostHits != 0 {
		t.Errorf("Redis counts %d of %d hits: %+v", got, total.Load(), s.Stats())
	}
}

func TestResetForgetsHitsThatRedisDoesNotKnowOf(t *testing.T) {
	s, clock := given(t, Options{})
	for n := range 10 {
		c := hit(fmt.Sprint(n), perAge(algorithms.FixedWindow, 5))
		for range 20 {
			s.Later(&c, clock.now(), store.Part{})
		}
		if _, err := s.Reset(t.Context(), []store.Charge{c}); err != nil {
			t.Fatal(err)
		}
		if got := remains(t, s, c); got != 5 {
			t.Errorf("%d of 5 remain after Reset", got)
		}
	}
}

// watched is a server of a store that sends nothing, and watches the outbox look for the server.
type watched struct {
	*far

	looks func()
}

func (w *watched) Client() (rueidis.Client, error) {
	w.looks()
	return w.far.Client()
}

// A request waits at most while one key is sent, also if all keys of its shard are.
func TestARequestDoesNotWaitForTheKeysOfOthersThatAreSent(t *testing.T) {
	s := unconnected(names{})
	s.main.queue.nodeQueueLocked(0).workers = mostFlights // nobody flies
	var all []store.Charge
	for n := 0; len(all) < owed.MostHits; n++ {
		if c := hit(fmt.Sprint(n), perAge(algorithms.FixedWindow, 10)); s.shard(c.Key) == &s.shards[0] {
			all = append(all, c)
			s.Later(&c, s.Now(algorithms.Limit{}), store.Part{})
		}
	}
	looks, asked, answered := 0, make(chan struct{}), make(chan int)
	sending := func() (keys int) {
		s.main.queue.mu.Lock()
		defer s.main.queue.mu.Unlock()
		return len(s.main.queue.nodeQueueLocked(0).waiting)
	}
	s.main.connection = &watched{far: new(far), looks: func() {
		switch looks++; {
		case looks == 2: // the first look is for a connection at all
			go func() {
				close(asked)
				s.owedOf(&all[0], s.Now(algorithms.Limit{}))
				answered <- sending()
			}()
			<-asked
		case looks%50 == 0: // a mutex goes to a goroutine that has waited for it for a millisecond
			for until := time.Now().Add(2 * time.Millisecond); time.Now().Before(until); {
				runtime.Gosched()
			}
		}
	}}
	var outbox sync.WaitGroup
	outbox.Go(func() { s.sendSome(time.Now(), outboxPerTick, false) })
	if keys := <-answered; keys >= len(all) {
		t.Errorf("a request waited until all %d keys of its shard were sent", keys)
	}
	outbox.Wait()
}
