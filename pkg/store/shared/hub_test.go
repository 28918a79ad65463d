package shared

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// hub is the primary of a fleet, as plain as can be. The clock of the hub is ahead of the
// processes' clock.
type hub struct {
	keys  map[string]counted
	ahead time.Duration
}

// counted is a key of the hub, under one limit.
type counted struct {
	state store.State
	log   *algorithms.Log // of sliding_window_log; never changed

	holders map[store.Holder]algorithms.Hold // never changed
}

func newHub(ahead time.Duration) *hub { return &hub{keys: map[string]counted{}, ahead: ahead} }

func (h *hub) now() algorithms.Instant { return algorithms.Instant(time.Now().Add(h.ahead).UnixNano()) }

func name(c *store.Charge) string {
	return c.Limit.Algorithm.String() + c.Limit.Period.String() + string(c.Key)
}

// takeOne takes hits from a key.
func (h *hub) takeOne(c *store.Charge, hits int64, at algorithms.Instant, countRejected bool) (d algorithms.Decision) {
	k := h.keys[name(c)]
	if c.Limit.Algorithm == algorithms.Concurrency {
		atMost := time.Duration(0) // of a probe
		if c.Hold != nil {
			atMost = c.Hold.AtMost
		}
		return k.slots(at).Decide(c.Limit, at, uint32(hits), atMost)
	}
	if c.Limit.Algorithm.HasState() {
		d = k.state.Take(c.Limit, at, hits, countRejected)
	} else {
		log := new(algorithms.Log)
		if k.log != nil {
			for _, e := range k.log.AppendEntries(nil) {
				log.Restore(c.Limit, e, at)
			}
		}
		d = log.Take(c.Limit, at, hits, countRejected)
		k.log = log
	}
	h.keys[name(c)] = k
	return d
}

// take decides a transaction, and says which hits it applied.
func (h *hub) take(charges []store.Charge, decisions []algorithms.Decision) (admitted bool, hits []int64) {
	now := h.now()
	h.takeEnds(charges, decisions, now)
	before := maps.Clone(h.keys)
	for i := range charges {
		if c := &charges[i]; !isEnd(c) {
			decisions[i] = h.takeBegin(c, now)
		}
	}
	if admitted = store.Admitted(charges, decisions); !admitted {
		h.keys = before
		for i := range charges {
			c, hits := &charges[i], int64(0)
			if isEnd(c) {
				continue
			}
			if c.CountRejected {
				hits = c.Hits
			}
			d := h.takeOne(c, hits, now, c.CountRejected)
			if !c.CountRejected {
				d.Allowed, d.RetryAfter = true, 0
			}
			if decisions[i].Allowed {
				decisions[i] = d
			}
		}
	}
	for i := range charges {
		c := &charges[i]
		if c.Hold != nil && !isEnd(c) {
			h.hold(c, now, admitted && decisions[i].Allowed)
		}
		hits = append(hits, appliedHits(c, decisions[i], admitted))
	}
	return admitted, hits
}

// appliedHits is the rule of package store.
func appliedHits(c *store.Charge, d algorithms.Decision, admitted bool) int64 {
	switch {
	case c.Hold != nil:
		return 0 // the caller tells these
	case c.CountRejected:
		return c.Hits
	case admitted && d.Allowed:
		return c.Hits
	default:
		return 0
	}
}

// charge charges hits in their own window only.
func (h *hub) charge(c store.Charge, hits int64, at algorithms.Instant) {
	window := func(at algorithms.Instant) int64 { return int64(at) / int64(c.Limit.Period) }
	aligned := c.Limit.Algorithm == algorithms.FixedWindow
	if hits == 0 || aligned && window(at) != window(h.now()) {
		return
	}
	h.takeOne(&c, hits, at, true)
}

// link is the connection of one process to the hub.
type link struct {
	hub   *hub
	is    atomic.Int32 // a condition; the probe reads it
	r     *rand.Rand
	owes  []func()       // tell the hub about hits, as soon as the link is up
	later int            // calls of Later and Instead
	told  []store.Charge // by HoldLater
}

type condition = int32

const (
	up    condition = iota
	stuck           // the hub may decide, but the answer is lost
	down
	late // the hub decides, and the answer is lost
	void // the hub does not decide, and gives no answer
)

func (k *link) flush() {
	for _, tell := range k.owes {
		tell()
	}
	k.owes = nil
}

// lost is the error of a request whose answer is lost.
type lost struct {
	link    *link
	charges []store.Charge
	at      algorithms.Instant
	hits    []int64 // that the hub has applied
}

func (*lost) Error() string { return "the answer is lost" }
func (*lost) Unwrap() error { return context.DeadlineExceeded }
func (e *lost) Instead(hits []int64) {
	hits = append([]int64(nil), hits...)
	e.link.later++
	e.link.owes = append(e.link.owes, func() {
		for i := range e.charges {
			e.link.hub.charge(e.charges[i], hits[i]-e.hits[i], e.at)
		}
	})
}

func (k *link) Later(c *store.Charge, at algorithms.Instant) {
	later := owned(c)
	k.later++
	k.owes = append(k.owes, func() { k.hub.charge(later, later.Hits, at) })
}

func (k *link) Take(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	switch is := k.is.Load(); is {
	case down:
		return false, errDown
	case stuck, late, void:
		e := &lost{link: k, at: k.hub.now(), hits: make([]int64, len(charges))}
		for i := range charges {
			e.charges = append(e.charges, owned(&charges[i]))
		}
		if is == late || is == stuck && k.r.IntN(2) == 0 {
			_, e.hits = k.hub.take(charges, make([]algorithms.Decision, len(charges)))
		}
		time.Sleep(time.Millisecond)
		return false, e
	}
	k.flush()
	admitted, _ := k.hub.take(charges, decisions)
	for i := range charges {
		if left := charges[i].Left; left != nil {
			*left = k.hub.keys[name(&charges[i])].state
			left.Now = k.hub.now()
		}
	}
	return admitted, nil
}

func (k *link) Peek(context.Context, []store.Charge, []algorithms.Decision) error {
	return errors.New("not asked")
}

func (k *link) Reset(context.Context, []store.Charge) (int, error) { return 0, errors.New("not asked") }

// fleet is processes that share a hub.
type fleet struct {
	hub   *hub
	links []*link
	procs []*Store
	log   logtest.Log
}

// newFleet returns a fleet of n, which knows its size. Call close before the bubble ends.
func newFleet(t *testing.T, r *rand.Rand, n int, ahead time.Duration) (f *fleet, closeAll func()) {
	t.Helper()
	f = &fleet{hub: newHub(ahead)}
	var closes []func()
	for range n {
		k := &link{hub: f.hub, r: r}
		local, err := memstore.New(memstore.Options{SweepInterval: 100 * time.Hour, Now: f.hub.now})
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(Options{Local: local, Logger: slogTo(&f.log), Remote: remote{storetest.Of(k), &setup{
			Later: k.Later, HoldLater: k.HoldLater, Now: f.hub.now, Fleet: func() int { return n },
			Probe: func(context.Context) error {
				if k.is.Load() == down {
					return errDown
				}
				return nil
			},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		f.links, f.procs, closes = append(f.links, k), append(f.procs, s), append(closes, s.Close, local.Close)
	}
	return f, func() {
		for _, c := range closes {
			c()
		}
	}
}

// are sets the condition of all links.
func (f *fleet) are(c condition) {
	for _, k := range f.links {
		k.is.Store(c)
	}
}

// take takes a transaction by one of the processes, alone or together with others.
func (f *fleet) take(t interface{ Fatalf(string, ...any) }, s *Store, charges []store.Charge, together bool) (admitted bool, decisions []algorithms.Decision) {
	decisions = make([]algorithms.Decision, len(charges))
	for i := range charges {
		charges[i].Exact = true // the hub knows no leases
	}
	var err error
	if together {
		all := []store.Transaction{{Ctx: context.Background(), Charges: charges, Decisions: decisions}}
		s.TakeAll(all, func([]int) {})
		admitted, err = all[0].Admitted, all[0].Err
	} else {
		admitted, err = store.Take(context.Background(), s, charges, decisions)
	}
	if err != nil {
		t.Fatalf("Take: %v", err)
	}
	return admitted, decisions
}
