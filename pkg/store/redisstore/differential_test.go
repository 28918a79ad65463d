package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// operation is the method of a store that a world calls.
type operation uint8

const (
	opTake operation = iota
	opPeek
	opReset
)

// recorded is one question to the model and its answer.
type recorded struct {
	op        operation
	now       algorithms.Instant
	charges   []store.Charge
	admitted  bool
	decisions []algorithms.Decision
}

// answered returns the question with the answer of a model.
func (q recorded) answered(m model.Keys) recorded {
	switch q.op {
	case opTake:
		a := m.Take(q.charges, q.now)
		q.admitted, q.decisions = a.Admitted, a.Decisions
	case opPeek:
		q.decisions = make([]algorithms.Decision, len(q.charges))
		for i := range q.charges {
			q.decisions[i], _ = m.Peek(&q.charges[i], q.now)
		}
	case opReset:
		m.Reset(q.charges)
	}
	return q
}

// span is how much time a world has: instants end 292 years after 1970.
const span = 200 * 365 * 24 * time.Hour

// record asks a model random questions. Time moves by whole microseconds.
func record(seed uint64, steps int) []recorded {
	r, m := newRand(seed), model.Keys{}
	world := make([]recorded, 0, steps)
	all := families(r, fmt.Sprintf("world %d", seed), 1+r.IntN(6))
	begun := newClock().now()
	now := begun
	var last []algorithms.Decision
	for range steps {
		q := recorded{charges: randomCharges(r, all, last)}
		if len(last) > 0 && r.IntN(2) == 0 {
			c := q.charges[r.IntN(len(q.charges))]
			if pause := randomPause(r, c.Limit, last[r.IntN(len(last))], now); now.Sub(begun) < span-pause {
				now = now.Add(pause)
			}
		}
		q.now = now
		switch r.IntN(20) {
		case 0:
			q.op = opReset
		case 1, 2:
			q.op = opPeek
		}
		if q = q.answered(m); q.op != opReset {
			last = q.decisions
		}
		world = append(world, q)
	}
	return world
}

// replay asks a store the questions of a world at their instants. replay returns an error at the
// first answer that differs.
func replay(t *testing.T, redis *Store, s store.Store, c *clock, world []recorded) error {
	t.Helper()
	for i, q := range world {
		if s != redis && int64(q.now) != c.at.Load() {
			payAll(t, redis)
		}
		c.at.Store(int64(q.now))
		decisions := make([]algorithms.Decision, len(q.charges))
		var admitted bool
		var err error
		switch q.op {
		case opTake:
			admitted, err = store.Take(t.Context(), s, q.charges, decisions)
		case opPeek:
			err = s.Peek(t.Context(), q.charges, decisions)
		case opReset:
			_, err = s.Reset(t.Context(), q.charges)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w: %s", i, err, story(world[:i+1]))
		}
		if q.op == opReset {
			continue
		}
		if admitted != q.admitted || !slices.Equal(decisions, q.decisions) {
			return fmt.Errorf("step %d: admitted %v, want %v (-want +got)\n%s%s",
				i, admitted, q.admitted, cmp.Diff(q.decisions, decisions), story(world[:i+1]))
		}
	}
	return nil
}

// payAll sends all hits of the outbox, and waits for the answers.
func payAll(t *testing.T, s *Store) {
	t.Helper()
	s.sendAll()
	eventually(t, "the outbox is empty", s.idle)
}

// story returns all questions of a world about the keys of the last one.
func story(world []recorded) string {
	keys := map[string]bool{}
	for _, c := range world[len(world)-1].charges {
		keys[string(c.Key)] = true
	}
	text := ""
	for i, q := range world {
		concerns := false
		for _, c := range q.charges {
			concerns = concerns || keys[string(c.Key)]
		}
		if concerns {
			text += fmt.Sprintf("\n%d at %d, %d:", i, q.now, q.op)
			for n, c := range q.charges {
				text += fmt.Sprintf("\n\t%s %+v hits %d rule %d mode %d counted %v", c.Key, c.Limit, c.Hits, c.Rule, c.Mode, c.CountRejected)
				if q.op != opReset {
					text += fmt.Sprintf(": %+v", q.decisions[n])
				}
			}
		}
	}
	return text
}

// shrink removes questions from a world on which store and model differ, as long as they differ.
func shrink(t *testing.T, fresh func() (*Store, *clock, store.Store), world []recorded) error {
	t.Helper()
	fails := func(world []recorded) error {
		m := model.Keys{}
		asked := make([]recorded, len(world))
		for i := range world {
			asked[i] = world[i].answered(m)
		}
		s, c, asking := fresh()
		defer s.Close()
		return replay(t, s, asking, c, asked)
	}
	err := fails(world)
	if err == nil {
		return errors.New("not again on fresh keys")
	}
	for size := len(world); size > 0; size /= 2 {
		for at := 0; at+size <= len(world); {
			less := slices.Concat(world[:at], world[at+size:])
			if e := fails(less); e != nil {
				world, err = less, e
			} else {
				at += size
			}
		}
	}
	for i := range world {
		for n := 0; n < len(world[i].charges) && len(world[i].charges) > 1; {
			less := slices.Clone(world)
			less[i].charges = slices.Delete(slices.Clone(world[i].charges), n, n+1)
			if e := fails(less); e != nil {
				world, err = less, e
			} else {
				n++
			}
		}
	}
	return err
}

// differ replays worlds on several stores at once, as each waits for Redis most of the time.
func differ(t *testing.T, urls []string, o Options, maxAge time.Duration, worlds, steps int, after func(t *testing.T, s *Store, world []recorded) error) {
	t.Helper()
	const stores = 8
	queue := make(chan []recorded, stores)
	var running sync.WaitGroup
	for n := range stores {
		tries := 0
		fresh := func() (*Store, *clock, store.Store) {
			o := o
			o.Prefix = fmt.Sprintf("%s %d %d %d:", t.Name(), n, tries, time.Now().UnixNano())
			tries++
			c, s := newClock(), open(t, urls, o)
			c.drives(s)
			return s, c, front(t, s, maxAge)
		}
		s, c, asking := fresh()
		running.Go(func() {
			for world := range queue {
				if t.Failed() {
					continue
				}
				err := replay(t, s, asking, c, world)
				if err != nil {
					t.Errorf("%.400s ... %s\nin short: %v", err, lastOf(err), shrink(t, fresh, world))
				} else if err := after(t, s, world); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for seed := range worlds {
		if t.Failed() {
			break
		}
		queue <- record(uint64(seed), steps)
	}
	close(queue)
	running.Wait()
}

func TestRandomTransactionsAreDecidedAsByTheModel(t *testing.T) {
	differ(t, urlOf("redis", shared(t).Address()), Options{}, 0, race.Scale(400), 250, holdsWhat)
}

func TestRandomTransactionsAreDecidedAsByTheModelInACluster(t *testing.T) {
	differ(t, urlOf("redis-cluster", sharedCluster(t).Addresses()...), Options{}, 0, race.Scale(40), 250, holdsWhat)
}

func lastOf(err error) string { s := err.Error(); return s[max(0, len(s)-1800):] }
