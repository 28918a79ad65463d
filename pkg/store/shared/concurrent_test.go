package shared

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// TestRequestsGoOnWhileThePrimaryComesAndGoes is for the race detector first.
func TestRequestsGoOnWhileThePrimaryComesAndGoes(t *testing.T) {
	r := newRig(t, setup{Failures: 3, MinOpen: 200 * time.Microsecond, MaxOpen: time.Millisecond})
	charges := []store.Charge{charge("local", 1<<30), policy(charge("allow", 1), store.OnErrorAllow), policy(charge("deny", 1), store.OnErrorDeny)}
	charges[2].Mode = store.Shadow
	stop := make(chan struct{})
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			mine, decisions := slices.Clone(charges[:1+w%3]), make([]algorithms.Decision, 3)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if admitted, err := store.Take(t.Context(), r, mine, decisions); !admitted || err != nil {
					t.Errorf("Take = %v, %v; want admitted", admitted, err)
				}
				if err := r.Peek(t.Context(), mine, decisions); err != nil {
					t.Error(err)
				}
				if _, err := r.Reset(t.Context(), mine[:0]); err != nil && !errors.Is(err, errDown) && !errors.Is(err, errUnasked) {
					t.Error(err)
				}
				if got := r.Stats(); got.State > HalfOpen {
					t.Errorf("stats = %+v", got)
				}
				if err := r.Ready(); err != nil && !errors.Is(err, errDown) && !errors.Is(err, errUnasked) {
					t.Error(err)
				}
				runtime.Gosched() // the breaker and the turns need a processor too
			}
		})
	}
	// Each turn waits for the breaker to follow the primary, so that there are many changes of
	// state.
	for turn := range 31 {
		want := Closed
		if turn%2 == 0 {
			r.probeAnswers(nil)
			r.primary.fail(nil)
		} else {
			want = Open
			r.probeAnswers(errDown)
			r.primary.fail(errDown)
		}
		for deadline := time.Now().Add(time.Minute); r.State() != want; time.Sleep(100 * time.Microsecond) {
			if time.Now().After(deadline) {
				t.Fatalf("turn %d: the breaker is %v; want %v", turn, r.State(), want)
			}
		}
	}
	close(stop)
	all.Wait()
	if got := r.Stats(); got.Opened < 15 || got.Decided.Local < got.Decided.Allow || got.Decided.Allow < got.Decided.Deny {
		t.Errorf("stats = %+v; want 15 times open and local, allow, deny in that order", got)
	}
}

// steady returns a rig whose breaker is closed.
func steady(tb testing.TB, o setup) *rig {
	tb.Helper()
	r := newRig(tb, o)
	for r.State() != Closed {
		time.Sleep(time.Millisecond)
	}
	return r
}

func TestAHealthyStoreAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	c := charge("k", 500)
	told := steady(t, setup{Remote: storetest.Of(tellsLeft(c, 300)), Fleet: func() int { return 4 }})
	for name, test := range map[string]struct {
		r    *rig
		left *store.State
	}{"no state": {steady(t, setup{}), nil}, "own state": {told, nil}, "state of the caller": {told, &store.State{}}} {
		c.Left = test.left
		all := []store.Transaction{{Ctx: context.Background(), Charges: []store.Charge{c}, Decisions: make([]algorithms.Decision, 1)}}
		if n := testing.AllocsPerRun(1000, func() {
			if test.left != nil {
				*test.left = store.State{}
			}
			if test.r.TakeAll(all, func([]int) {}); all[0].Err != nil {
				t.Fatal(all[0].Err)
			}
		}); n != 0 {
			t.Errorf("%s: TakeAll allocates %v times; want none", name, n)
		}
	}
}

// benchmarkTake is the cost of a request.
func benchmarkTake(ctx context.Context, b *testing.B, name string, r *rig, charges ...store.Charge) {
	b.Helper()
	b.Run(name, func(b *testing.B) {
		decisions := make([]algorithms.Decision, len(charges))
		b.ReportAllocs()
		for b.Loop() {
			if charges[0].Left != nil {
				*charges[0].Left = store.State{}
			}
			must.Get(store.Take(ctx, r, charges, decisions))(b)
		}
	})
}

// BenchmarkHealthy is the cost of the store in front of a primary that serves. The last two
// primaries tell states, into memory of this package and of the caller.
func BenchmarkHealthy(b *testing.B) {
	c, left := charge("k", 5), charge("k", 5)
	left.Left = &store.State{}
	deadline, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	serves, tells := steady(b, setup{}), steady(b, setup{Remote: storetest.Of(newTells())})
	benchmarkTake(context.Background(), b, "background", serves, c)
	benchmarkTake(deadline, b, "deadline", serves, c)
	benchmarkTake(context.Background(), b, "own", tells, c)
	benchmarkTake(context.Background(), b, "callers", tells, left)
}

// BenchmarkAway is a decision without the primary, by policy: a charge by Local, by Allow, and
// both.
func BenchmarkAway(b *testing.B) {
	r := newRig(b, setup{Probe: func(context.Context) error { return errDown }})
	local, allow := charge("k", 1<<30), policy(charge("a", 5), store.OnErrorAllow)
	benchmarkTake(b.Context(), b, "local", r, local)
	benchmarkTake(b.Context(), b, "allow", r, allow)
	benchmarkTake(b.Context(), b, "both", r, local, allow)
}
