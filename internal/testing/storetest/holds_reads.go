package storetest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func holdReadCases() []Case {
	return []Case{
		{"concurrency_tells_free_slots_and_when_holders_run_out", slotsAreTold},
		{"concurrency_without_a_holder_asks_and_holds_nothing", concurrencyWithoutHolder},
		{"a_lowered_limit_frees_nobody_and_a_raised_one_makes_room", limitOfHoldersChanges},
		{"a_changed_at_most_is_that_of_new_holders", atMostChanges},
		{"peek_of_a_holder_says_what_take_would_and_remembers_nothing", peekHolders},
		{"reset_forgets_holders", resetForgetsHolders},
		{"holders_are_listed_the_next_one_to_run_out_first", holdersAreListed},
		{"a_store_keeps_no_hold_of_its_caller", holdIsTheCallers},
		{"a_begin_whose_context_has_ended_holds_nothing", endedContextHoldsNothing},
	}
}

func slotsAreTold(t *testing.T, e Env) {
	l := held(algorithms.Concurrency, 3)
	within := func(d time.Duration, holder string, hits int64) store.Charge {
		c := begin("k", l, holder, hits)
		c.Hold.AtMost = d
		return c
	}
	want := func(step string, c store.Charge, want algorithms.Decision) {
		t.Helper()
		if _, d := e.take(t, c); d[0] != want {
			t.Errorf("%s: %+v; want %+v", step, d[0], want)
		}
	}
	const second = time.Second
	want("a probe of a key never used", within(5*second, "r", 0), algorithms.Decision{Allowed: true, Remaining: 3})
	want("too many of none", within(5*second, "r", 4), algorithms.Decision{Remaining: 3, RetryAfter: 5 * second})
	want("the first", within(20*second, "r", 1), algorithms.Decision{Allowed: true, Remaining: 2, ResetAfter: 20 * second})
	want("the second", within(5*second, "s", 1), algorithms.Decision{Allowed: true, Remaining: 1, ResetAfter: 20 * second})
	want("two of one", within(5*second, "t", 2), algorithms.Decision{Remaining: 1, RetryAfter: 5 * second, ResetAfter: 20 * second})
	want("too many of all", within(5*second, "t", 4), algorithms.Decision{Remaining: 1, RetryAfter: 20 * second, ResetAfter: 20 * second})
	want("the third", within(60*second, "t", 1), algorithms.Decision{Allowed: true, ResetAfter: 60 * second})
	e.Sleep(2 * second)
	want("a fourth", within(60*second, "u", 1), algorithms.Decision{RetryAfter: 3 * second, ResetAfter: 58 * second})
	want("a repeat", within(60*second, "r", 1), algorithms.Decision{Allowed: true, ResetAfter: 58 * second})
	want("a probe of a full key", within(5*second, "u", 0), algorithms.Decision{Allowed: true, ResetAfter: 58 * second})
	e.Sleep(3 * second) // the second runs out
	want("one more", within(time.Millisecond, "u", 1), algorithms.Decision{Allowed: true, ResetAfter: 55 * second})
	want("before the next", within(5*second, "v", 1), algorithms.Decision{RetryAfter: time.Millisecond, ResetAfter: 55 * second})
	want("the end of the last to run out", end("k", l, "t", 0), algorithms.Decision{Allowed: true, Remaining: 1, ResetAfter: 15 * second})
	e.Sleep(time.Millisecond)
	want("an end that comes late", end("k", l, "u", 0), algorithms.Decision{Allowed: true, Remaining: 2, ResetAfter: 15*second - time.Millisecond})
	want("the end of the first", end("k", l, "r", 0), algorithms.Decision{Allowed: true, Remaining: 3})
}

func concurrencyWithoutHolder(t *testing.T, e Env) {
	c := charge("k", held(algorithms.Concurrency, 2))
	for _, hits := range []int64{1, 5, 0, -3} {
		c.Hits = hits
		for range 3 {
			if d := e.wantAdmitted(t, true, c)[0]; d != (algorithms.Decision{Allowed: true, Remaining: 2}) {
				t.Errorf("%d hits without a holder: %+v; want allowed, with 2 remaining", hits, d)
			}
		}
	}
	e.wantAdmitted(t, true, begin("k", c.Limit, "r", 2))
	if d := e.wantAdmitted(t, true, c)[0]; d != (algorithms.Decision{Allowed: true, ResetAfter: holdTime}) {
		t.Errorf("without a holder, of a full key: %+v; want allowed, with 0 remaining", d)
	}
	e.wantEnd(t, end("k", c.Limit, "r", 0), algorithms.HoldHeld, 2)
}

func limitOfHoldersChanges(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l, small, large := held(a, 10), held(a, 3), held(a, 12)
		e.wantAdmitted(t, true, begin("k", l, "r", 5))
		e.wantAdmitted(t, true, begin("k", l, "s", 2))
		if a == algorithms.TokenBucket || a == algorithms.TokenBucketInteger {
			return // changes its tokens as ever, see a_bucket_keeps_its_tokens_clamped_to_the_new_burst
		}
		e.wantAdmitted(t, false, begin("k", small, "t", 1))
		e.wantAdmitted(t, true, begin("k", small, "r", 5)) // holds on
		e.wantEnd(t, end("k", small, "r", 0), algorithms.HoldHeld, 1)
		e.wantAdmitted(t, true, begin("k", small, "t", 1))
		e.wantAdmitted(t, false, begin("k", small, "u", 1))
		e.wantAdmitted(t, true, begin("k", large, "u", 9))
		e.wantAdmitted(t, false, begin("k", large, "v", 1))
		e.wantRemaining(t, charge("k", large), 0)
	})
}

func atMostChanges(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l := held(a, 10)
		within := func(d time.Duration, c store.Charge) store.Charge {
			c.Hold.AtMost = d
			return c
		}
		e.wantAdmitted(t, true, within(20*time.Second, begin("k", l, "long", 2)))
		e.wantAdmitted(t, true, within(5*time.Second, begin("k", l, "short", 3)))
		e.wantAdmitted(t, true, within(time.Hour, begin("k", l, "short", 3))) // a repeat changes nothing
		e.wantAdmitted(t, true, within(time.Millisecond, begin("k", l, "long", 2)))
		e.Sleep(5 * time.Second)
		e.wantStatus(t, begin("k", l, "short", 3), algorithms.HoldUnknown)
		e.wantStatus(t, begin("k", l, "long", 2), algorithms.HoldHeld)
		left := uint64(8)
		if rate {
			left = 5
		}
		e.wantRemaining(t, charge("k", l), left)
		e.Sleep(15 * time.Second)
		e.wantStatus(t, begin("k", l, "long", 2), algorithms.HoldUnknown)
		if !rate {
			left = 10
		}
		e.wantRemaining(t, charge("k", l), left)
	})
}

func peekHolders(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		peek := func(c store.Charge) algorithms.Decision {
			t.Helper()
			peeked := make([]algorithms.Decision, 2)
			again := c
			again.Hold = &store.Hold{Phase: c.Hold.Phase, Holder: c.Hold.Holder, AtMost: c.Hold.AtMost}
			if err := e.Store.Peek(t.Context(), []store.Charge{c, again}, peeked); err != nil {
				t.Fatal(err)
			}
			if peeked[0] != peeked[1] || c.Hold.Was != again.Hold.Was {
				t.Errorf("%v: Peek saw its own charge: %+v, was %+v, then %+v, was %+v", a, peeked[0], c.Hold.Was, peeked[1], again.Hold.Was)
			}
			return peeked[0]
		}
		for i, c := range []store.Charge{
			begin("k", l, "r", 4), begin("k", l, "r", 4), begin("k", l, "s", 7), begin("k", l, "t", 6), end("k", l, "unknown", 3), end("k", l, "s", 3),
			end("k", l, "r", 1), end("k", l, "r", 1), end("k", l, "t", 9), phase(algorithms.HoldBegun, "k", l, "u", 20),
			phase(algorithms.HoldCancel, "k", l, "u", 0),
		} {
			peeked := peek(c)
			was := c.Hold.Was
			if _, taken := e.take(t, c); taken[0] != peeked || c.Hold.Was != was {
				t.Errorf("%v: charge %d: Peek = %+v, was %+v; Take then = %+v, was %+v", a, i, peeked, was, taken[0], c.Hold.Was)
			}
			e.Sleep(time.Second)
		}
	})
}

func resetForgetsHolders(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		e.wantAdmitted(t, true, begin("k", l, "held", 5), begin("k", l, "ended", 2))
		e.wantAdmitted(t, true, end("k", l, "ended", 2))
		e.wantAdmitted(t, false, begin("k", l, "denied", 9))
		e.wantAdmitted(t, true, begin("other", l, "held", 5))
		forgotten, err := e.Store.Reset(t.Context(), []store.Charge{charge("k", l), charge("never", l)})
		if err != nil || forgotten != 1 {
			t.Errorf("%v: Reset = %d, %v; want 1 key forgotten", a, forgotten, err)
		}
		e.wantRemaining(t, charge("k", l), 10)
		for _, holder := range []string{"held", "ended", "denied"} {
			e.wantStatus(t, end("k", l, holder, 0), algorithms.HoldUnknown)
		}
		e.wantEnd(t, end("k", l, "held", -1), algorithms.HoldUnknown, 10)
		e.wantAdmitted(t, true, begin("k", l, "held", 10)) // the same holder may begin again
		e.wantEnd(t, end("k", l, "held", 0), algorithms.HoldHeld, 10)
		e.wantStatus(t, end("other", l, "held", 0), algorithms.HoldHeld)
	})
}

func holdersAreListed(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l := held(a, 100)
		c := charge("k", l)
		list := func(most int) ([]store.Held, int) {
			t.Helper()
			got, all, err := e.Store.Holders(t.Context(), &c, most)
			if err != nil {
				t.Fatalf("%v: Holders failed: %v", a, err)
			}
			return got, all
		}
		if _, _, err := e.Store.Holders(t.Context(), &c, 10); rate && errors.Is(err, store.ErrNotListed) {
			return
		}
		if got, all := list(10); len(got) != 0 || all != 0 {
			t.Errorf("%v: %d holders of a key never used: %+v", a, all, got)
		}
		var want []store.Held
		for i, seconds := range []time.Duration{9, 3, 6, 12} {
			b := begin("k", l, string(rune('a'+i)), int64(i+1))
			b.Hold.AtMost = seconds * time.Second
			want = append(want, store.Held{Holder: b.Hold.Holder, Hits: uint32(i + 1), At: e.Now(), Until: e.Now().Add(b.Hold.AtMost)})
			e.wantAdmitted(t, true, b)
			e.Sleep(100 * time.Millisecond)
		}
		e.wantAdmitted(t, false, begin("k", l, "denied", 101))
		e.wantAdmitted(t, true, begin("other", l, "a", 1))
		slices.SortFunc(want, func(x, y store.Held) int { return int(x.Until - y.Until) })
		for _, most := range []int{10, 4, 2, 0} {
			got, all := list(most)
			if diff := cmp.Diff(want[:min(most, 4)], got); all != 4 || diff != "" && most > 0 || len(got) > most {
				t.Errorf("%v: at most %d of %d holders (-want +got):\n%s", a, most, all, diff)
			}
		}
		e.wantAdmitted(t, true, end("k", l, "c", 0))
		e.Sleep(3 * time.Second) // the first runs out
		if got, all := list(10); all != 2 || len(got) != 2 || got[0] != want[2] || got[1] != want[3] {
			t.Errorf("%v: %d holders are left: %+v; want %+v", a, all, got, want[2:])
		}
		e.Sleep(10 * time.Second)
		if got, all := list(10); len(got) != 0 || all != 0 {
			t.Errorf("%v: %d holders after all have run out: %+v", a, all, got)
		}
	})
}

func holdIsTheCallers(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		c := begin("k", l, "r", 4)
		key := c.Key
		e.wantAdmitted(t, true, c)
		*c.Hold = store.Hold{Phase: algorithms.HoldCancel, Holder: store.HolderOf([]byte("other")), AtMost: time.Millisecond}
		key[0] = 'x'
		e.Sleep(time.Second)
		e.wantStatus(t, begin("k", l, "r", 4), algorithms.HoldHeld)
		e.wantEnd(t, end("k", l, "r", 0), algorithms.HoldHeld, 10)
	})
}

func endedContextHoldsNothing(t *testing.T, e Env) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		for _, charges := range [][]store.Charge{{begin("k", l, "r", 4)}, {begin("k", l, "r", 4), begin("other", l, "r", 4)}} {
			if _, err := store.Take(ctx, e.Store, charges, make([]algorithms.Decision, 2)); !errors.Is(err, context.Canceled) {
				t.Errorf("%v: Take of %d begins with an ended context = %v; want context.Canceled", a, len(charges), err)
			}
		}
		e.wantStatus(t, begin("k", l, "r", 4), algorithms.HoldUnknown)
		e.wantRemaining(t, charge("k", l), 10)
	})
}
