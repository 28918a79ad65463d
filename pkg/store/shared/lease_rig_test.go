package shared

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// telling is a shared store in memory that tells states, and its outbox, which charges at once. The
// zero value is ready.
type telling struct {
	delay time.Duration // of each Take

	mu    sync.Mutex // guards the fields below
	keys  map[string]kept
	takes int   // calls of Take
	peeks int   // calls of Peek
	err   error // of Take, after it has applied the hits if applies is set
	late  []store.Charge
}

type kept struct {
	state store.State
	log   []algorithms.LogEntry
}

func instant() algorithms.Instant { return algorithms.Instant(time.Now().UnixNano()) }

func stateOf(c *store.Charge) string {
	return fmt.Sprintf("%x %v %v", c.Key, c.Limit.Algorithm, c.Limit.Period)
}

func (s *telling) takeLocked(c *store.Charge, hits int64, countRejected bool) (d algorithms.Decision) {
	k := s.keys[stateOf(c)]
	if c.Limit.Algorithm.HasState() {
		d = k.state.Take(c.Limit, instant(), hits, countRejected)
	} else {
		var log algorithms.Log
		for _, e := range k.log {
			log.Restore(c.Limit, e, instant())
		}
		d = log.Take(c.Limit, instant(), hits, countRejected)
		k.log = log.AppendEntries(nil)
	}
	k.state.Now, k.state.Source = instant(), store.Asked
	if s.keys == nil {
		s.keys = map[string]kept{}
	}
	s.keys[stateOf(c)] = k
	return d
}

func (s *telling) Take(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	time.Sleep(s.delay)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes++
	if s.err != nil {
		return false, s.err
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	before := maps.Clone(s.keys)
	for i := range charges {
		decisions[i] = s.takeLocked(&charges[i], charges[i].Hits, charges[i].CountRejected)
	}
	admitted := store.Admitted(charges, decisions)
	if !admitted {
		s.keys = before
		for i := range charges {
			c, hits := &charges[i], int64(0)
			if c.CountRejected {
				hits = c.Hits
			}
			d := s.takeLocked(c, hits, c.CountRejected)
			if !c.CountRejected {
				d.Allowed, d.RetryAfter = true, 0
			}
			if decisions[i].Allowed {
				decisions[i] = d
			}
		}
	}
	for i := range charges {
		if c := &charges[i]; c.Left != nil {
			*c.Left = s.keys[stateOf(c)].state
		}
	}
	return admitted, nil
}

func (s *telling) Peek(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peeks++
	for i := range charges {
		before := maps.Clone(s.keys)
		decisions[i] = s.takeLocked(&charges[i], charges[i].Hits, false)
		s.keys = before
	}
	return nil
}

func (s *telling) Reset(ctx context.Context, charges []store.Charge) (n int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range charges {
		if _, known := s.keys[stateOf(&charges[i])]; known {
			n++
		}
		delete(s.keys, stateOf(&charges[i]))
	}
	return n, nil
}

func (s *telling) Later(c *store.Charge, at algorithms.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := *c
	own.Key = slices.Clone(c.Key)
	s.late = append(s.late, own)
	k := s.keys[stateOf(c)]
	one := shared{limit: c.Limit, state: k.state, from: instant()}
	one.back(0, taken{-c.Hits, at})
	k.state = one.state
	s.keys[stateOf(c)] = k
}

// gone returns the hits that came back, and forgets them.
func (s *telling) gone() (hits int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.late {
		hits -= c.Hits
	}
	s.late = nil
	return hits
}

// asked returns how often the store was asked since the last call.
func (s *telling) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.takes
	s.takes = 0
	return n
}

// peeked returns the number of calls of Peek.
func (s *telling) peeked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peeks
}

func (s *telling) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// inBubble runs a test on a store of leases in front of a telling store.
func inLeases(t *testing.T, o setup, test func(t *testing.T, s *Store, told *telling)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		told := &telling{}
		o.Remote, o.Later = storetest.Of(told), told.Later
		s := open(t, o)
		synctest.Wait() // the breaker closes
		test(t, s, told)
	})
}

// minute returns a charge of one hit under a fixed window of a minute.
func minute(key string, requests uint32) store.Charge {
	return store.Charge{Key: []byte(key), Limit: window(requests, time.Minute), Hits: 1, CountRejected: true}
}

// take takes charges, and lets the goroutines of the bubble go on.
func take(t *testing.T, s store.Store, charges ...store.Charge) (bool, []algorithms.Decision) {
	t.Helper()
	decisions := make([]algorithms.Decision, len(charges))
	admitted, err := store.Take(t.Context(), s, charges, decisions)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return admitted, decisions
}

// spent returns the hits that were spent from leases. A lease that comes in the background leaves
// the number as it is.
func spent(s *Store) uint64 {
	l := s.Stats().Leases
	return l.Charged - l.Held - l.Back - l.Expired
}

// warm asks a key until it is leased.
func warm(t *testing.T, s *Store, told *telling, c store.Charge) {
	t.Helper()
	for range 20 {
		take(t, s, c)
	}
	if s.Stats().Leases.Held == 0 {
		t.Fatalf("after 20 calls: got %+v, want hits held", s.Stats())
	}
	told.asked()
}
