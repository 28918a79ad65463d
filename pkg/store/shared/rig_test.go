package shared

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

var errDown = errors.New("connection refused")

// scripted is a primary that admits everything, with 77 remaining, or fails as its script says.
type scripted struct {
	script atomic.Pointer[func(context.Context) error]
	asked  atomic.Int64
}

func (p *scripted) follow(script func(context.Context) error) { p.script.Store(&script) }
func (p *scripted) fail(err error)                            { p.follow(func(context.Context) error { return err }) }

func (p *scripted) act(ctx context.Context) error {
	p.asked.Add(1)
	if err := ctx.Err(); err != nil {
		return err
	}
	if script := p.script.Load(); script != nil {
		return (*script)(ctx)
	}
	return nil
}

func (p *scripted) Take(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	return true, p.Peek(ctx, charges, decisions)
}

func (p *scripted) Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	if err := p.act(ctx); err != nil {
		return err
	}
	for i := range charges {
		decisions[i] = algorithms.Decision{Allowed: true, Remaining: 77}
	}
	return nil
}

func (p *scripted) Reset(ctx context.Context, charges []store.Charge) (int, error) {
	if err := p.act(ctx); err != nil {
		return 0, err
	}
	return len(charges), nil
}

// rig is a store under test, with its parts.
type rig struct {
	*Store
	t       *testing.T // nil in a benchmark
	primary *scripted
	local   *memstore.Store
	asking  atomic.Pointer[func(context.Context) error] // the probe
	probes  atomic.Int64
	silence chan struct{}
	log     logtest.Log
}

func (r *rig) probeBy(probe func(context.Context) error) { r.asking.Store(&probe) }
func (r *rig) probeAnswers(err error)                    { r.probeBy(func(context.Context) error { return err }) }

// newRig returns a rig. The primary and the probe serve, unless o says otherwise. The first probe
// may still come. The test's end closes it.
func newRig(tb testing.TB, o setup) *rig {
	tb.Helper()
	local := must.Get(memstore.New(memstore.Options{SweepInterval: 10 * time.Minute}))(tb)
	tb.Cleanup(local.Close)
	r := &rig{primary: &scripted{}, local: local, silence: make(chan struct{}, 1)}
	o.Silences = r.silence
	r.t, _ = tb.(*testing.T)
	if o.Probe == nil {
		o.Probe = func(context.Context) error { return nil }
	}
	r.probeBy(o.Probe)
	o.Local = local
	if o.Remote == nil {
		o.Remote = storetest.Of(r.primary)
	}
	o.Probe = func(ctx context.Context) error {
		r.probes.Add(1)
		return (*r.asking.Load())(ctx)
	}
	o.Logger = slogTo(&r.log)
	r.Store = open(tb, o)
	r.breaker.pace.failingFor = o.FailingFor // 0 where a test says nothing of it: failures open the breaker as soon as there are enough
	return r
}

// inBubble runs a test on a rig that is closed, in time that only the test's sleeps move.
func inBubble(t *testing.T, o setup, test func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, o)
		synctest.Wait()
		r.want(Closed)
		test(r)
	})
}

// inBubbleAway is inBubble with a primary that fails and a breaker that is open.
func inBubbleAway(t *testing.T, o setup, test func(r *rig)) {
	t.Helper()
	inBubble(t, o, func(r *rig) {
		r.primary.fail(errDown)
		r.probeAnswers(errDown)
		for r.State() != Open {
			r.hit()
		}
		synctest.Wait()
		test(r)
	})
}

// want fails the test unless the breaker is in that state.
func (r *rig) want(want State) {
	r.t.Helper()
	if got := r.State(); got != want {
		r.t.Fatalf("the breaker is %v; want %v", got, want)
	}
}

// left returns the hits of a charge's key that the local store has left.
func (r *rig) left(c store.Charge) uint64 {
	r.t.Helper()
	n, d := units(c.Limit), make([]algorithms.Decision, 1)
	c.Limit, c.Hits = inUnits(c.Limit), 0
	must.Do(r.t, r.local.Peek(r.t.Context(), []store.Charge{c}, d))
	return d[0].Remaining / uint64(n)
}

// hit takes one hit of a key whose charge is allowed without the primary, and reports whether the
// primary decided.
func (r *rig) hit() (primary bool) {
	r.t.Helper()
	c, decisions := charge("hit", 5), make([]algorithms.Decision, 1)
	c.OnError = store.OnErrorAllow
	if admitted, err := store.Take(r.t.Context(), r, []store.Charge{c}, decisions); !admitted || err != nil {
		r.t.Fatalf("Take = %v, %v; want admitted", admitted, err)
	}
	return decisions[0].Remaining == 77
}

// charge returns a charge of one hit under a fixed window of an hour, without leases.
func charge(key string, requests uint32) store.Charge {
	return store.Charge{
		Key:   []byte(key),
		Limit: algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: requests, Period: time.Hour},
		Hits:  1,
		Exact: true,
	}
}

// slogTo returns a logger that writes lines without the time.
func slogTo(l *logtest.Log) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// setup is the options of a store in a test, and the parts of its remote store. Of a nil part
// nothing comes.
type setup struct {
	Remote           store.Store
	Probe            func(context.Context) error
	Answered         func() time.Time
	Silent           func() time.Duration
	Silences         chan struct{}
	Shards           []string
	Shard            func(c *store.Charge) int
	Sick             int // the shard of Probe, Answered and Silent
	Release          func(shard int) int
	Fleet            func() int
	Share            func() store.Share
	Told             func() bool
	Later            func(c *store.Charge, at algorithms.Instant, part store.Part)
	HoldLater        func(c *store.Charge, at algorithms.Instant)
	Now              func() algorithms.Instant
	Local            store.Local // nil: memory
	Denials          time.Duration
	Unavailable      error
	Failures         int
	FailingFor       time.Duration
	MinOpen, MaxOpen time.Duration
	Logger           *slog.Logger // nil: none
}

// remote is a remote store of parts.
type remote struct {
	store.Store

	of *setup
}

func (r remote) Later(c *store.Charge, at algorithms.Instant, part store.Part) {
	if r.of.Later != nil {
		r.of.Later(c, at, part)
	}
}

func (r remote) HoldLater(c *store.Charge, at algorithms.Instant) {
	if r.of.HoldLater != nil {
		r.of.HoldLater(c, at)
	}
}

func (r remote) Now(algorithms.Limit) algorithms.Instant {
	if r.of.Now != nil {
		return r.of.Now()
	}
	return algorithms.Instant(time.Now().UnixNano())
}

func (r remote) Shards() []string {
	if r.of.Shards == nil {
		return []string{"one"}
	}
	return r.of.Shards
}

func (r remote) Shard(c *store.Charge) int {
	if r.of.Shard != nil {
		return r.of.Shard(c)
	}
	return 0
}

func (r remote) Silences() <-chan struct{} { return r.of.Silences }

func (r remote) Release(shard int) int {
	if r.of.Release != nil {
		return r.of.Release(shard)
	}
	return 0
}

func (r remote) Health(shard int) (h store.Health) {
	if shard != r.of.Sick {
		return h
	}
	if r.of.Answered != nil {
		h.Answered = r.of.Answered()
	}
	if r.of.Silent != nil {
		h.Silent = r.of.Silent()
	}
	if r.of.Fleet != nil {
		h.Fleet = r.of.Fleet()
	}
	if r.of.Share != nil {
		h.Share = r.of.Share()
	}
	h.Told = r.of.Told != nil && r.of.Told()
	return h
}

func (r remote) Await(ctx context.Context, shard int) error {
	if r.of.Probe != nil && shard == r.of.Sick {
		return r.of.Probe(ctx)
	}
	return nil
}

// open returns a store, which the test's end closes.
func open(tb testing.TB, o setup) *Store {
	tb.Helper()
	if o.Local == nil {
		local := must.Get(memstore.New(memstore.Options{SweepInterval: 10 * time.Minute}))(tb)
		tb.Cleanup(local.Close)
		o.Local = local
	}
	s, err := New(Options{
		Remote: remote{o.Remote, &o}, Local: o.Local, Denials: o.Denials, Unavailable: o.Unavailable,
		pace:   pace{failures: o.Failures, failingFor: o.FailingFor, minOpen: o.MinOpen, maxOpen: o.MaxOpen},
		Logger: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}
