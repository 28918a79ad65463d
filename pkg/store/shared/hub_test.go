package shared

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// hub is the remote store of a fleet: the plain model. The clock of the hub is ahead of the
// processes' clock.
type hub struct {
	mu    sync.Mutex // guards the fields below, and the fields of the links
	keys  model.Keys
	ahead time.Duration
}

func newHub(ahead time.Duration) *hub { return &hub{keys: model.Keys{}, ahead: ahead} }

func (h *hub) now() algorithms.Instant { return algorithms.Instant(time.Now().Add(h.ahead).UnixNano()) }

// take decides a transaction, tells the states, and returns the hits that it applied.
func (h *hub) take(charges []store.Charge, decisions []algorithms.Decision) (admitted bool, hits []int64) {
	now := h.now()
	answer := h.keys.Take(charges, now)
	copy(decisions, answer.Decisions)
	for i := range charges {
		c := &charges[i]
		if c.Hold != nil {
			c.Hold.Was = answer.Found[i]
			c.Pair(answer.Phases[i] == algorithms.HoldEnd)
		}
		if c.Left != nil {
			*c.Left = store.State{Now: now, Source: store.Asked}
			if k := h.keys[model.NameOf(c)]; c.Limit.Algorithm.HasState() {
				c.Left.Limit, c.Left.State = k.Limit, k.State
			}
		}
		hits = append(hits, appliedHits(c, decisions[i], answer.Admitted))
	}
	return answer.Admitted, hits
}

// appliedHits is the rule of package store.
func appliedHits(c *store.Charge, d algorithms.Decision, admitted bool) int64 {
	if c.Hold == nil && (c.CountRejected || admitted && d.Allowed) { // others tell the hits of holders
		return c.Hits
	}
	return 0
}

// charge charges hits as of an earlier instant, as the script of redisstore does. Hits of a fixed
// window count in their own window only. A bucket gets hits back less its gain since.
func (h *hub) charge(c store.Charge, hits int64, at algorithms.Instant) {
	now, window := h.now(), func(at algorithms.Instant) int64 { return int64(at) / int64(c.Limit.Period) }
	switch c.Limit.Algorithm {
	case algorithms.FixedWindow:
		if window(at) != window(now) {
			return
		}
	case algorithms.TokenBucket, algorithms.TokenBucketInteger:
		if hits < 0 {
			hits = min(0, hits+int64(scale(now.Sub(at), uint64(c.Limit.Requests), uint64(c.Limit.Period)))+1)
			at = now
		}
	default:
	}
	if hits != 0 {
		h.keys.Take([]store.Charge{{Key: c.Key, Limit: c.Limit, Hits: hits, CountRejected: true}}, at)
	}
}

// count returns the hits in the current window of a charge's key.
func (h *hub) count(c *store.Charge) int64 {
	_, count, _ := h.keys[model.NameOf(c)].State.Parts()
	return int64(count)
}

// probe returns the decision for no hits of a charge's key.
func (h *hub) probe(c *store.Charge) algorithms.Decision {
	d, _ := h.keys.Peek(&store.Charge{Key: c.Key, Limit: c.Limit}, h.now())
	return d
}

// slots returns the slots that the holders of a charge's key hold.
func (h *hub) slots(c *store.Charge) (used uint32) {
	for _, held := range h.keys.Held(c, h.now()) {
		used += held.Hits
	}
	return used
}

// link is the connection of one process to the hub.
type link struct {
	hub    *hub
	is     atomic.Int32 // a condition; the probe reads it
	r      *rand.Rand   // of a link that is stuck
	delay  time.Duration
	err    error  // of each Take, in place of an answer
	before func() // is called before each answer; may be nil

	book    owed.Book      // hits that the hub is told of with the next question
	owes    []func()       // the same of lost answers, and of holders
	later   int            // calls of Later and Instead
	carried int64          // hits that Later was given since the last call of gone
	told    []store.Charge // by HoldLater
	takes   int            // since the last call of asked
	peeks   int
	seen    int64 // hits of the last key in its window, as the hub told last
}

type condition = int32

const (
	up    condition = iota
	stuck           // the hub may decide, but the answer is lost
	down
	late // the hub decides, and the answer is lost
	void // the hub does not decide, and gives no answer
)

// parts returns the parts of a remote store that a link has.
func (k *link) parts(o setup) setup {
	o.Remote, o.Later, o.HoldLater, o.Now = storetest.Of(k), k.Later, k.HoldLater, k.hub.now
	o.Probe = func(context.Context) error {
		k.hub.mu.Lock()
		defer k.hub.mu.Unlock()
		if k.is.Load() == down {
			return errDown
		}
		return k.err
	}
	return o
}

// flush tells the hub about hits.
func (k *link) flush() {
	k.hub.mu.Lock()
	defer k.hub.mu.Unlock()
	k.flushLocked()
}

func (k *link) flushLocked() {
	for _, tell := range k.owes {
		tell()
	}
	k.owes = nil
	clocks := owed.Clocks{Redis: k.hub.now()}
	k.book.Look(time.Now(), clocks, func(e owed.Entry) {
		t := k.book.Tell(e, clocks)
		for i := range t.Charges {
			k.hub.charge(t.Charges[i], t.Charges[i].Hits, t.Instant[i])
		}
		k.book.Told(t, owed.Applied, clocks)
	})
}

// gone returns the hits that came back since the last call.
func (k *link) gone() int64 {
	k.hub.mu.Lock()
	defer k.hub.mu.Unlock()
	hits := -k.carried
	k.carried = 0
	return hits
}

// asked returns how often the hub was asked since the last call.
func (k *link) asked() int {
	k.hub.mu.Lock()
	defer k.hub.mu.Unlock()
	n := k.takes
	k.takes = 0
	return n
}

// asks fails the test unless do asks the hub that many times.
func (k *link) asks(t *testing.T, want int, do func()) {
	t.Helper()
	k.asked()
	do()
	if got := k.asked(); got != want {
		t.Errorf("the store was asked %d times; want %d", got, want)
	}
}

func (k *link) fail(err error) {
	k.hub.mu.Lock()
	defer k.hub.mu.Unlock()
	k.err = err
}

// lost is the error of a request whose answer is lost.
type lost struct {
	link    *link
	charges []store.Charge
	at      algorithms.Instant
	hits    []int64 // that the hub has applied
}

func (*lost) Error() string     { return "the answer is lost" }
func (*lost) Unwrap() error     { return context.DeadlineExceeded }
func (*lost) Answered(int) bool { return false }
func (e *lost) Instead(hits []int64, parts []store.Part) {
	k := e.link
	k.hub.mu.Lock()
	defer k.hub.mu.Unlock()
	hits, parts = slices.Clone(hits), slices.Clone(parts)
	k.later++
	k.owes = append(k.owes, func() { // the outcome is known
		for i := range e.charges {
			c := e.charges[i]
			c.Hits = hits[i] - e.hits[i]
			k.book.Add(&c, owed.Late{At: e.at, Part: parts[i]})
		}
	})
}

func (k *link) Later(c *store.Charge, at algorithms.Instant, part store.Part) {
	k.hub.mu.Lock()
	defer k.hub.mu.Unlock()
	k.later++
	k.carried += c.Hits
	k.book.Add(c, owed.Late{At: at, Part: part})
}

func (k *link) HoldLater(c *store.Charge, at algorithms.Instant) {
	k.hub.mu.Lock()
	defer k.hub.mu.Unlock()
	later := owned(c)
	k.told = append(k.told, later)
	k.owes = append(k.owes, func() {
		if _, was := k.hub.keys.Peek(&later, at); later.Hold.Phase == algorithms.HoldPair && was.Status != algorithms.HoldHeld {
			later.Pair(false)
			later.Hold.Phase = algorithms.HoldBegun
		}
		k.hub.keys.Take([]store.Charge{later}, at)
	})
}

// owned returns a copy of a charge.
func owned(c *store.Charge) store.Charge {
	own := *c
	own.Key = slices.Clone(c.Key)
	if c.Hold != nil {
		hold := *c.Hold
		own.Hold = &hold
	}
	return own
}

func (k *link) Take(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	time.Sleep(k.delay)
	admitted, err := k.decide(ctx, charges, decisions)
	if k.before != nil {
		k.before()
	}
	if _, isLost := err.(*lost); isLost { //nolint:errorlint // as decide returns it
		time.Sleep(time.Millisecond)
	}
	return admitted, err
}

func (k *link) decide(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	k.hub.mu.Lock()
	defer k.hub.mu.Unlock()
	k.takes++
	switch is := k.is.Load(); {
	case k.err != nil:
		return false, k.err
	case ctx.Err() != nil:
		return false, ctx.Err()
	case is == down:
		return false, errDown
	case is != up:
		e := &lost{link: k, at: k.hub.now(), hits: make([]int64, len(charges))}
		for i := range charges {
			e.charges = append(e.charges, owned(&charges[i]))
		}
		if is == late || is == stuck && k.r.IntN(2) == 0 {
			_, e.hits = k.hub.take(slices.Clone(e.charges), make([]algorithms.Decision, len(charges)))
		}
		return false, e
	}
	k.flushLocked()
	admitted, _ := k.hub.take(charges, decisions)
	for i := range charges {
		k.seen = k.hub.count(&charges[i])
	}
	return admitted, nil
}

func (k *link) Peek(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	k.hub.mu.Lock()
	defer k.hub.mu.Unlock()
	k.peeks++
	if k.is.Load() != up {
		return errDown
	}
	k.flushLocked()
	for i := range charges {
		c := &charges[i]
		d, was := k.hub.keys.Peek(c, k.hub.now())
		if decisions[i] = d; c.Hold != nil {
			c.Hold.Was = was
		}
	}
	return nil
}

func (k *link) Reset(ctx context.Context, charges []store.Charge) (int, error) {
	k.hub.mu.Lock()
	defer k.hub.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	k.flushLocked()
	return k.hub.keys.Reset(charges), nil
}

func (k *link) Holders(_ context.Context, c *store.Charge, most int) (held []store.Held, all int, err error) {
	k.hub.mu.Lock()
	defer k.hub.mu.Unlock()
	if k.is.Load() != up {
		return nil, 0, errDown
	}
	if c.Limit.Algorithm != algorithms.Concurrency {
		return nil, 0, store.ErrNotListed
	}
	k.flushLocked()
	held = k.hub.keys.Held(c, k.hub.now())
	return held[:min(most, len(held))], len(held), nil
}

// inHub runs a test on a process that is linked to a hub, in time that only sleeps move.
func inHub(t *testing.T, o setup, test func(t *testing.T, s *Store, k *link)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := &link{hub: newHub(0)}
		s := open(t, k.parts(o))
		synctest.Wait() // the breaker closes
		test(t, s, k)
	})
}

// fleet is processes that share a hub.
type fleet struct {
	hub   *hub
	links []*link
	procs []*Store
	size  int                     // that the processes see
	share func(i int) store.Share // of process i; nil: equal shares
	told  []atomic.Bool           // process i has learned that all have told their hits
	log   logtest.Log
}

// newFleet returns a fleet of n, which knows its size. Call close before the bubble ends.
func newFleet(t *testing.T, r *rand.Rand, n int, ahead time.Duration) (f *fleet, closeAll func()) {
	t.Helper()
	f = &fleet{hub: newHub(ahead), size: n, told: make([]atomic.Bool, n)}
	var closes []func()
	for i := range n {
		k := &link{hub: f.hub, r: r}
		local := must.Get(memstore.New(memstore.Options{SweepInterval: 100 * time.Hour, Now: f.hub.now}))(t)
		o := k.parts(setup{Fleet: func() int { return f.size }, Share: func() store.Share {
			if f.share != nil {
				return f.share(i)
			}
			return store.Share{From: arc(i%f.size, f.size), To: arc(i%f.size+1, f.size)}
		}, Told: f.told[i].Load})
		s := must.Get(New(Options{Local: local, Logger: slogTo(&f.log), Remote: remote{o.Remote, &o}}))(t)
		f.links, f.procs, closes = append(f.links, k), append(f.procs, s), append(closes, s.Close, local.Close)
	}
	return f, func() {
		for _, c := range closes {
			c()
		}
	}
}

// arc returns where part i of n equal parts of the circle begins.
func arc(i, n int) uint32 { return uint32(store.Circle * i / n) }

// are sets the condition of all links.
func (f *fleet) are(c condition) {
	for _, k := range f.links {
		k.is.Store(c)
	}
}

// flush lets all links tell the hub about hits.
func (f *fleet) flush() {
	for _, k := range f.links {
		k.flush()
	}
}

// take takes a transaction by one of the processes, alone or together with others, without leases.
func (f *fleet) take(t interface{ Fatalf(string, ...any) }, s *Store, charges []store.Charge, together bool) (admitted bool, decisions []algorithms.Decision) {
	decisions = make([]algorithms.Decision, len(charges))
	for i := range charges {
		charges[i].Exact = true
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

// show has each process see the state of a key.
func (f *fleet) show(t *testing.T, limit algorithms.Limit) {
	t.Helper()
	for i := range f.procs {
		f.take(t, f.procs[i], []store.Charge{{Key: []byte("key"), Limit: limit}}, false)
	}
}

// midnight sleeps until a day has begun, and lets breakers close.
func midnight() {
	time.Sleep(time.Until(time.Now().Truncate(24 * time.Hour).Add(24*time.Hour + time.Minute)))
	synctest.Wait()
}
