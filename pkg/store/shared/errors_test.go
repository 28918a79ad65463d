package shared

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func TestErrorsOfThePrimary(t *testing.T) {
	errGone := errors.New("no connection")
	for _, tt := range []struct {
		name   string
		err    error
		counts Failures
		opens  bool
	}{
		{"timeout", fmt.Errorf("take: %w", context.DeadlineExceeded), Failures{Timeout: 5}, true},
		{"timeout_of_a_connection", timeout{}, Failures{Timeout: 5}, true},
		{"unavailable", fmt.Errorf("%w: %w", errGone, context.DeadlineExceeded), Failures{Unavailable: 5}, true},
		{"server_error", errors.New("READONLY"), Failures{Other: 5}, true},
		{"canceled_by_itself", context.Canceled, Failures{Other: 5}, true},
		{"a_limit_it_cannot_keep", fmt.Errorf("period 1ns: %w", store.ErrLimit), Failures{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, setup{Unavailable: errGone}, func(r *rig) {
				t := r.t
				r.primary.fail(tt.err)
				for range defaultFailures {
					r.hit()
				}
				r.want(map[bool]State{true: Open, false: Closed}[tt.opens])
				got := r.Stats()
				if got.Failures != tt.counts || got.Decided != (Decided{Allow: 5}) {
					t.Errorf("stats = %+v; want failures %+v and 5 charges allowed", got, tt.counts)
				}
				if err := r.Ready(); (err != nil) != tt.opens || tt.opens && !errors.Is(err, tt.err) {
					t.Errorf("Ready = %v; want the reason %v: %v", err, tt.err, tt.opens)
				}
			})
		})
	}
}

// timeout is an error as net makes them.
type timeout struct{}

func (timeout) Error() string { return "i/o timeout" }
func (timeout) Timeout() bool { return true }

func TestACallerThatGivesUpIsNotAFailure(t *testing.T) {
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	calls := map[string]func(r *rig, ctx context.Context) error{
		"take": func(r *rig, ctx context.Context) error {
			_, err := store.Take(ctx, r, []store.Charge{charge("k", 3)}, make([]algorithms.Decision, 1))
			return err
		},
		"peek": func(r *rig, ctx context.Context) error {
			return r.Peek(ctx, []store.Charge{charge("k", 3)}, make([]algorithms.Decision, 1))
		},
		"reset": func(r *rig, ctx context.Context) error {
			_, err := r.Reset(ctx, []store.Charge{charge("k", 3)})
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			inBubble(t, setup{Failures: 1}, func(r *rig) {
				t := r.t
				r.primary.follow(hang)
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, cancel)
				if err := call(r, ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("canceled while waiting: %v; want context.Canceled", err)
				}
				asked := r.primary.asked.Load()
				if err := call(r, ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("canceled before: %v; want context.Canceled", err)
				}
				ctx, cancel = context.WithDeadline(t.Context(), time.Now())
				defer cancel()
				if name != "take" { // the request is decided: see TestARequestWithoutTimeForTheStoreIsDecidedAtOnce
					if err := call(r, ctx); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("with a deadline that has passed: %v; want context.DeadlineExceeded", err)
					}
				}
				if got := r.primary.asked.Load(); got != asked {
					t.Errorf("the primary was asked for a request that had ended")
				}
				r.want(Closed)
				if got := r.Stats(); got.Failures != (Failures{}) || got.Decided != (Decided{}) || r.local.Stats().Keys != 0 {
					t.Errorf("stats = %+v with %d local keys; want nothing failed or decided", got, r.local.Stats().Keys)
				}

				// One that fails for a reason of its own is a failure also when its caller has
				// gone.
				ctx, cancel = context.WithCancel(t.Context())
				r.primary.follow(func(ctx context.Context) error { cancel(); <-ctx.Done(); return errDown })
				if err := call(r, ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("canceled as the primary failed: %v; want context.Canceled", err)
				}
				r.want(Open)
				if got := r.local.Stats().Keys; got != 0 {
					t.Errorf("the local store has %d keys of a caller that has gone", got)
				}
			})
		})
	}
}

func TestADeadlineThatPassesWhileWaitingIsStillAnswered(t *testing.T) {
	inBubble(t, setup{}, func(r *rig) {
		t := r.t
		r.primary.follow(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		charges, decisions := []store.Charge{charge("k", 3), policy(charge("a", 3), store.OnErrorAllow)}, make([]algorithms.Decision, 2)
		admitted, err := store.Take(ctx, r, charges, decisions)
		if !admitted || err != nil || decisions[0].Remaining != 2 || decisions[1].Remaining != 3 {
			t.Errorf("Take = %v, %v, %+v; want the policies' answer", admitted, err, decisions)
		}
		if got := r.Stats(); got.Failures != (Failures{Timeout: 1}) || got.Decided != (Decided{Local: 1, Allow: 1}) {
			t.Errorf("stats = %+v; want one timeout and a charge by each policy", got)
		}
	})
}

func TestHalfOpenGoesOnAfterARequestThatSaysNothing(t *testing.T) {
	inBubbleAway(t, setup{MinOpen: time.Second}, func(r *rig) {
		t := r.t
		r.halfOpen()
		r.primary.fail(store.ErrLimit)
		for range 2 * successesToClose {
			r.hit()
		}
		r.want(HalfOpen)
		r.primary.fail(nil)
		for range successesToClose {
			if !r.hit() {
				t.Error("the next request did not get through")
			}
		}
		r.want(Closed)
	})
}

func TestResetSaysWhenItResetThisProcessOnly(t *testing.T) {
	inBubble(t, setup{}, func(r *rig) {
		t := r.t
		charges, decisions := []store.Charge{charge("a", 3), charge("b", 3), charge("c", 3)}, make([]algorithms.Decision, 3)
		fill := func() {
			must.Get(store.Take(t.Context(), r.local, charges[:2], decisions))(t)
		}
		check := func(when string, want int, wantErr string) {
			got, err := r.Reset(t.Context(), charges)
			if got != want || fmt.Sprint(err) != wantErr || err != nil && !errors.Is(err, errDown) {
				t.Errorf("%s: Reset = %d, %v; want %d, %s", when, got, err, want, wantErr)
			}
			if keys := r.local.Stats().Keys; keys != 0 {
				t.Errorf("%s: the local store has %d keys; want none", when, keys)
			}
			fill()
		}
		fill()
		check("healthy", 3, "<nil>")
		r.primary.fail(errDown)
		r.probeAnswers(errDown)
		const only = "only this process's own memory was reset: connection refused"
		check("failing", 2, only)
		for range defaultFailures - 1 {
			r.hit()
		}
		r.want(Open)
		asked := r.primary.asked.Load()
		check("away", 2, only)
		if r.primary.asked.Load() != asked {
			t.Error("Reset asked a primary that is away")
		}
		r.halfOpen()
		check("half-open", 3, "<nil>")
	})
}

func TestLocalCountsRuleUntilThePrimaryIsBackAndStay(t *testing.T) {
	inBubbleAway(t, setup{}, func(r *rig) {
		t := r.t
		take := func() algorithms.Decision {
			decisions := make([]algorithms.Decision, 1)
			must.Get(store.Take(t.Context(), r, []store.Charge{charge("k", 2)}, decisions))(t)
			return decisions[0]
		}
		for i, want := range []bool{true, true, false} {
			if got := take(); got.Allowed != want {
				t.Errorf("hit %d by the local store: %+v; want allowed %v", i, got, want)
			}
		}
		r.halfOpen()
		for range successesToClose {
			if got := take(); got.Remaining != 77 {
				t.Errorf("once the primary is back: %+v; want its decision", got)
			}
		}
		r.want(Closed)
		r.primary.fail(errDown)
		if got := take(); got.Allowed {
			t.Errorf("away again within the hour: %+v; want the local store to remember", got)
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if got := r.local.Stats().Keys; got != 0 {
			t.Errorf("the local store has %d keys after the window; want them expired", got)
		}
	})
}

func TestARequestWithoutTimeForTheStoreIsDecidedAtOnce(t *testing.T) {
	inBubble(t, setup{}, func(r *rig) {
		t := r.t
		for _, left := range []time.Duration{-time.Second, 0, leastTime - 1, leastTime, time.Second} {
			ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(left))
			asked, begun := r.primary.asked.Load(), time.Now()
			c := charge("k", 5)
			c.OnError = store.OnErrorAllow
			all := []store.Transaction{{Ctx: ctx, Charges: []store.Charge{c}, Decisions: make([]algorithms.Decision, 1)}}
			r.TakeAll(all, func([]int) {})
			cancel()
			if one := all[0]; one.Err != nil || !one.Admitted || time.Since(begun) != 0 {
				t.Errorf("%v before the deadline: admitted %v, %v after %v", left, one.Admitted, one.Err, time.Since(begun))
			}
			if was := r.primary.asked.Load() > asked; was != (left >= leastTime) {
				t.Errorf("%v before the deadline: the store was asked: %v", left, was)
			}
		}
		if stats := r.Stats(); stats.State != Closed || stats.Failures != (Failures{}) {
			t.Errorf("%+v; want no failures of the store", stats)
		}
	})
}
