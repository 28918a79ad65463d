package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func readCases() []Case {
	return []Case{
		{"peek_says_what_take_would_and_charges_nothing", peekCharges},
		{"reset_makes_a_key_as_if_never_used", resetForgets},
		{"a_request_whose_context_has_ended_is_not_charged", endedContext},
	}
}

func peekCharges(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		c := charge("k", limit(a, 5))
		for range 7 {
			peeked := make([]algorithms.Decision, 2)
			for range 2 {
				if err := e.Store.Peek(t.Context(), []store.Charge{c, c}, peeked); err != nil {
					t.Fatal(err)
				}
			}
			if peeked[0] != peeked[1] {
				t.Errorf("%v: Peek saw its own charge: %+v, then %+v", a, peeked[0], peeked[1])
			}
			if _, taken := e.take(t, c); taken[0] != peeked[0] {
				t.Errorf("%v: Peek = %+v; Take then = %+v", a, peeked[0], taken[0])
			}
		}
	}
}

func resetForgets(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		c, other := charge("k", limit(a, 1)), charge("other", limit(a, 1))
		e.wantAdmitted(t, true, c)
		e.wantAdmitted(t, true, other)
		forgotten, err := e.Store.Reset(t.Context(), []store.Charge{c, charge("never", limit(a, 1))})
		if err != nil || forgotten != 1 {
			t.Errorf("%v: Reset = %d, %v; want 1 key forgotten", a, forgotten, err)
		}
		e.wantAdmitted(t, true, c)
		e.wantAdmitted(t, false, other)
	}
}

func endedContext(t *testing.T, e Env) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := charge("k", limit(algorithms.FixedWindow, 5))
	charges, decisions := []store.Charge{c, c}, make([]algorithms.Decision, 2)
	for n := 1; n <= 2; n++ {
		if _, err := store.Take(ctx, e.Store, charges[:n], decisions); !errors.Is(err, context.Canceled) {
			t.Errorf("Take of %d charges with an ended context = %v; want context.Canceled", n, err)
		}
	}
	if err := e.Store.Peek(ctx, charges, decisions); !errors.Is(err, context.Canceled) {
		t.Errorf("Peek with an ended context = %v; want context.Canceled", err)
	}
	if _, err := e.Store.Reset(ctx, charges); !errors.Is(err, context.Canceled) {
		t.Errorf("Reset with an ended context = %v; want context.Canceled", err)
	}
	e.wantRemaining(t, c, 5)
}
