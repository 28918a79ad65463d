package shared

import (
	"cmp"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// setup is the options of a store in a test, and the parts of its remote store. Of a nil part
// nothing comes.
type setup struct {
	Remote           store.Store
	Probe            func(context.Context) error
	Answered         func() time.Time
	Silent, Late     func() time.Duration
	Fleet            func() int
	Later            func(c *store.Charge, at algorithms.Instant)
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

func (r remote) Later(c *store.Charge, at algorithms.Instant) {
	if r.of.Later != nil {
		r.of.Later(c, at)
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

func (r remote) Health([]store.Charge) (h store.Health) {
	if r.of.Answered != nil {
		h.Answered = r.of.Answered()
	}
	if r.of.Silent != nil {
		h.Silent = r.of.Silent()
	}
	if r.of.Late != nil {
		h.Late = r.of.Late()
	}
	if r.of.Fleet != nil {
		h.Fleet = r.of.Fleet()
	}
	return h
}

func (r remote) Await(ctx context.Context) error {
	if r.of.Probe != nil {
		return r.of.Probe(ctx)
	}
	return nil
}

// open returns a store, which the test's end closes.
func open(tb testing.TB, o setup) *Store {
	tb.Helper()
	if o.Local == nil {
		local, err := memstore.New(memstore.Options{SweepInterval: 10 * time.Minute})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(local.Close)
		o.Local = local
	}
	s, err := New(Options{
		Remote: remote{o.Remote, &o}, Local: o.Local, Denials: o.Denials, Unavailable: o.Unavailable,
		Failures: o.Failures, FailingFor: o.FailingFor, MinOpen: o.MinOpen, MaxOpen: o.MaxOpen,
		Logger: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}
