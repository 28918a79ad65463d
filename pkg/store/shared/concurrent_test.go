package shared

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

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

func TestAHealthyStoreAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	r := newRig(t, setup{})
	for r.State() != Closed {
		time.Sleep(time.Millisecond)
	}
	ctx, charges, decisions := context.Background(), []store.Charge{charge("k", 5)}, make([]algorithms.Decision, 1)
	all := []store.Transaction{{Ctx: ctx, Charges: charges, Decisions: decisions}}
	if n := testing.AllocsPerRun(1000, func() {
		if r.TakeAll(all, func([]int) {}); all[0].Err != nil {
			t.Fatal(all[0].Err)
		}
	}); n != 0 {
		t.Errorf("TakeAll allocates %v times; want none", n)
	}
}

// costless is a primary that costs nothing.
type costless struct{}

func (costless) Take(context.Context, []store.Charge, []algorithms.Decision) (bool, error) {
	return true, nil
}

// BenchmarkHealthy is the cost of the store in front of a primary that serves.
func BenchmarkHealthy(b *testing.B) {
	r := newRig(b, setup{Remote: storetest.Of(costless{})})
	for r.State() != Closed {
		time.Sleep(time.Millisecond)
	}
	charges, decisions := []store.Charge{charge("k", 5)}, make([]algorithms.Decision, 1)
	deadline, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	for _, bench := range []struct {
		name string
		ctx  context.Context
	}{{"background", context.Background()}, {"deadline", deadline}} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := store.Take(bench.ctx, r, charges, decisions); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAway is a decision without the primary, by policy: a charge by Local, by Allow, and
// both.
func BenchmarkAway(b *testing.B) {
	r := newRig(b, setup{Probe: func(context.Context) error { return errDown }})
	local, allow := charge("k", 1<<30), policy(charge("a", 5), store.OnErrorAllow)
	for _, bench := range []struct {
		name    string
		charges []store.Charge
	}{{"local", []store.Charge{local}}, {"allow", []store.Charge{allow}}, {"both", []store.Charge{local, allow}}} {
		b.Run(bench.name, func(b *testing.B) {
			decisions := make([]algorithms.Decision, 2)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := store.Take(b.Context(), r, bench.charges, decisions); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
