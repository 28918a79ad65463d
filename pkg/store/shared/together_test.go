package shared

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// together takes hits that are allowed without the primary, together, and returns how many the
// primary decided.
func (r *rig) together(n int) (primary int) {
	r.t.Helper()
	all := make([]store.Transaction, n)
	for i := range all {
		c := charge("hit", 5)
		c.OnError = store.OnErrorAllow
		all[i] = store.Transaction{Ctx: r.t.Context(), Charges: []store.Charge{c}, Decisions: make([]algorithms.Decision, 1)}
	}
	decided := 0
	r.TakeAll(all, func(indexes []int) { decided += len(indexes) })
	for i := range all {
		if !all[i].Admitted || all[i].Err != nil {
			r.t.Fatalf("transaction %d: got %t, %v; want admitted", i, all[i].Admitted, all[i].Err)
		}
		if all[i].Decisions[0].Remaining == 77 {
			primary++
		}
	}
	if decided != n {
		r.t.Errorf("%d decisions were reported; want %d", decided, n)
	}
	return primary
}

func TestTransactionsTakenTogetherGoThroughTheBreakerOneByOne(t *testing.T) {
	inBubble(t, setup{Failures: 5, MinOpen: time.Second}, func(r *rig) {
		if got := r.together(20); got != 20 {
			t.Errorf("closed: the primary decided %d of 20", got)
		}
		r.primary.fail(errDown)
		r.probeAnswers(errDown)
		if got := r.together(4); got != 0 {
			t.Errorf("failing: the primary decided %d of 4", got)
		}
		r.want(Closed)
		r.together(1)
		r.want(Open)
		asked := r.primary.asked.Load()
		if got := r.together(20); got != 0 || r.primary.asked.Load() != asked {
			t.Errorf("open: the primary decided %d and was asked %d times", got, r.primary.asked.Load()-asked)
		}
		synctest.Wait()
		r.halfOpen()
		for range successesToClose {
			r.want(HalfOpen)
			if got := r.together(20); got != 1 {
				t.Errorf("half-open: the primary decided %d of 20; want 1", got)
			}
		}
		r.want(Closed)
	})
}

// A caller whose time is over before its transaction begins is no failure of the primary.
func TestTransactionsTakenTogetherAfterTheirTimeAreDecidedAndNoFailures(t *testing.T) {
	inBubble(t, setup{Failures: 1}, func(r *rig) {
		late := due{t.Context()}
		all := []store.Transaction{{Ctx: late, Charges: []store.Charge{charge("k", 5)}, Decisions: make([]algorithms.Decision, 1)}}
		r.TakeAll(all, func([]int) {})
		if all[0].Err != nil || !all[0].Admitted {
			t.Errorf("admitted %v, %v", all[0].Admitted, all[0].Err)
		}
		r.want(Closed)
	})
}

// due is a context whose deadline has passed, and that no timer has ended.
type due struct{ context.Context } //nolint:containedctx // due is a context

func (due) Deadline() (time.Time, bool) { return time.Now(), true }

func TestTakeNowDecidesWhileTheBreakerIsOpen(t *testing.T) {
	inBubble(t, setup{Failures: 1, FailingFor: time.Nanosecond, MinOpen: time.Second}, func(r *rig) {
		now := func() bool {
			asked, decisions := r.primary.asked.Load(), make([]algorithms.Decision, 1)
			admitted, decided := r.TakeNow([]store.Charge{charge("k", 5)}, decisions)
			if decided && (!admitted || decisions[0].Remaining == 77) || r.primary.asked.Load() != asked {
				t.Errorf("got %t, %+v, and the primary was asked %d times", admitted, decisions[0], r.primary.asked.Load()-asked)
			}
			return decided
		}
		if now() {
			t.Error("closed: the request was decided without the primary")
		}
		r.primary.fail(errDown)
		r.probeAnswers(errDown)
		r.together(1)
		time.Sleep(time.Millisecond)
		r.together(1)
		r.want(Open)
		if !now() {
			t.Error("open: the request was not decided")
		}
		synctest.Wait()
		r.halfOpen()
		for range 2 {
			if now() {
				t.Error("half-open: a request that may ask the primary was decided without")
			}
		}
	})
}

// bug is a remote store with one.
type bug struct{}

func (bug) Take(context.Context, []store.Charge, []algorithms.Decision) (bool, error) {
	panic("a bug") //nolint:forbidigo // the test is about this
}

func TestEachTransactionThatTheRemoteStoreIsAskedAboutHasASpan(t *testing.T) {
	type key struct{}
	for name, test := range map[string]struct {
		remote storetest.Double
		want   []string
	}{
		"answered": {new(nowhere), []string{"begin 1", "end <nil>"}},
		"panic":    {bug{}, []string{"begin 1", "end <nil>"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := open(t, setup{Remote: storetest.Of(test.remote)})
				var spans []string
				s.span = func(ctx context.Context, charges int) (context.Context, func(error)) {
					spans = append(spans, fmt.Sprint("begin ", charges))
					return context.WithValue(ctx, key{}, "inner"), func(err error) { spans = append(spans, fmt.Sprint("end ", err)) }
				}
				synctest.Wait()
				func() {
					defer func() { _ = recover() }()
					_, _ = store.Take(t.Context(), s, []store.Charge{charge("k", 5)}, make([]algorithms.Decision, 1))
				}()
				if !slices.Equal(spans, test.want) {
					t.Errorf("got %q, want %q", spans, test.want)
				}
				if n, ok := test.remote.(*nowhere); ok && n.ctx.Value(key{}) != "inner" {
					t.Error("the remote store is not asked within the span")
				}
			})
		})
	}
}

// nowhere is a remote store that notes its context.
type nowhere struct {
	ctx context.Context //nolint:containedctx // the test is about this
}

func (n *nowhere) Take(ctx context.Context, _ []store.Charge, _ []algorithms.Decision) (bool, error) {
	n.ctx = ctx
	return true, nil
}
