package shared

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

var errCut = errors.New("connection refused")

// center is one key of a shared store, which several processes reach by lines.
type center struct {
	mu    sync.Mutex // guards all fields, and these of the lines
	limit algorithms.Limit
	state store.State
}

// line is the connection of one process to the center.
type line struct {
	*center
	cut  bool
	seen int64          // count that the center told last
	owes []store.Charge // hits that go to the center with the next request
}

func (l *line) Later(c *store.Charge, _ algorithms.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owes = append(l.owes, *c)
}

func (l *line) payLocked() {
	for _, c := range l.owes {
		l.state.Take(l.limit, instant(), c.Hits, true)
	}
	l.owes = nil
}

// countLocked returns the hits of the window.
func (l *line) countLocked() int64 {
	_, count, _ := l.state.State.Parts()
	return int64(count)
}

func (l *line) Take(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return false, errCut
	}
	l.payLocked()
	for i := range charges {
		decisions[i] = l.state.Take(l.limit, instant(), charges[i].Hits, charges[i].CountRejected)
		l.state.Now = instant()
		if charges[i].Left != nil {
			*charges[i].Left = l.state
		}
	}
	l.seen = l.countLocked()
	return store.Admitted(charges, decisions), nil
}

func (l *line) Peek(context.Context, []store.Charge, []algorithms.Decision) error { return errCut }
func (l *line) Reset(context.Context, []store.Charge) (int, error)                { return 0, errCut }

// ping is the probe of the breaker.
func (l *line) ping(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return errCut
	}
	return nil
}

// newProcess returns a process with leases and memory of its own, and the function that ends it.
func newProcess(t *testing.T, l *line, fleet func() int) (s *Store, end func()) {
	t.Helper()
	memory, err := memstore.New(memstore.Options{SweepInterval: 100 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	s, err = New(Options{
		Remote: remote{storetest.Of(l), &setup{Probe: l.ping, Fleet: fleet, Later: l.Later}}, Local: memory, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, func() { s.Close(); memory.Close() }
}

// Hits from leases are no hits of memory. So memory must hear of each grant, or an outage would
// begin with the share of a full key.
func TestAnOutageGoesOnFromTheGrantsOfLeases(t *testing.T) {
	fromLeases := uint64(0)
	for seed := range uint64(race.Scale(100)) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 12))
			n := 1 + r.IntN(4)
			time.Sleep(time.Until(time.Now().Truncate(24 * time.Hour).Add(25 * time.Hour)))
			c := &center{limit: algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: uint32(500 + r.IntN(3000)), Period: 24 * time.Hour}}
			var lines []*line
			var processes []*Store
			for range n {
				l := &line{center: c}
				s, end := newProcess(t, l, func() int { return n })
				defer end()
				lines, processes = append(lines, l), append(processes, s)
			}
			synctest.Wait()
			total := int64(0)
			flood := func(requests int) {
				for range requests {
					charge := store.Charge{Key: []byte("key"), Limit: c.limit, Hits: 1}
					admitted, err := store.Take(t.Context(), processes[r.IntN(n)], []store.Charge{charge}, make([]algorithms.Decision, 1))
					if err != nil {
						t.Fatal(err)
					}
					if admitted {
						total++
					}
					synctest.Wait()
					time.Sleep(time.Duration(r.Int64N(int64(2 * time.Millisecond))))
				}
			}
			flood(r.IntN(int(c.limit.Requests)))
			c.mu.Lock()
			most := lines[0].countLocked()
			for _, l := range lines {
				l.cut = true
				most += (int64(c.limit.Requests) - l.seen) / int64(n)
			}
			c.mu.Unlock()
			flood(2 * int(c.limit.Requests))
			if total > most {
				t.Errorf("seed %d, %d processes: %d hits of %d were admitted; the bound is %d", seed, n, total, c.limit.Requests, most)
			}
			for _, s := range processes {
				fromLeases += s.Stats().Leases.Decided
			}
		})
	}
	if fromLeases == 0 {
		t.Error("nothing was decided from leases")
	}
}
