package storetest

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// holdCases has a case for each cell of the table of holders, under every algorithm. A begin, an
// end and a refund meet a holder that is not known, holds, was denied or has ended.
func holdCases() []Case {
	return []Case{
		{"a_begin_of_an_unknown_holder_charges_and_holds", beginUnknown},
		{"a_begin_that_is_denied_is_remembered_as_denied", beginDenied},
		{"a_begin_of_a_holder_that_holds_is_admitted_and_charges_nothing", beginHeld},
		{"a_begin_of_a_denied_holder_is_decided_afresh", beginOfDenied},
		{"a_begin_of_an_ended_holder_is_decided_afresh", beginOfEnded},
		{"an_end_of_an_unknown_holder_charges_a_rate_limit_beyond_its_limit", endUnknown},
		{"an_end_with_more_charges_the_rest_beyond_the_limit", endWithMore},
		{"an_end_owes_all_that_it_cost", endOwes},
		{"a_probe_under_a_ban_is_denied_while_a_key_owes", owesUnderBan},
		{"an_end_with_less_gives_back", endWithLess},
		{"an_end_gives_back_in_the_window_of_its_begin_or_not_at_all", endInAnotherWindow},
		{"an_end_frees_the_slots_of_concurrency", endFreesSlots},
		{"an_end_of_a_denied_holder_does_nothing", endOfDenied},
		{"an_end_of_an_ended_holder_does_nothing", endOfEnded},
		{"an_end_that_is_a_refund_counts_as_an_end_without_cost", endAsRefund},
		{"after_at_most_a_rate_limit_keeps_the_hits_and_concurrency_frees_them", runsOut},
		{"after_at_most_the_hits_of_a_holder_that_gives_back_come_back_once", givesBack},
		{"hits_come_back_in_the_window_of_their_begin_or_not_at_all", givesBackInAnotherWindow},
		{"hits_of_an_ended_a_canceled_or_a_forgotten_holder_do_not_come_back", givesBackNothing},
		{"hits_come_back_only_if_their_begin_says_so", givesBackAfterReload},
		{"hits_of_many_holders_come_back", givesBackMany},
		{"hits_of_many_holders_come_back_although_the_holders_come_again", givesBackManyThatComeAgain},
		{"after_at_most_denied_and_ended_holders_are_not_known", deniedAndEndedRunOut},
		{"a_begin_without_hits_asks_and_holds_nothing", beginWithoutHits},
		{"a_begin_of_more_hits_than_the_limit_is_denied", beginOfTooMuch},
		{"a_ban_denies_a_begin", banDeniesBegin},
		{"hits_that_began_elsewhere_are_held_beyond_the_limit", begunElsewhere},
		{"a_canceled_holder_costs_nothing", canceled},
		{"a_charge_of_a_holder_that_takes_nothing_is_a_probe", nothingIsAProbe},
	}
}

// holdTime is the at_most of the cases: far less than the period, so that a bucket gains less than
// a hit of ten.
const holdTime = 30 * time.Second

// held returns a limit whose hits can be held: of an hour, so that a case ends before its first hit
// comes back.
func held(a algorithms.Algorithm, requests uint32) algorithms.Limit {
	if a == algorithms.Concurrency {
		return algorithms.Limit{Algorithm: a, Requests: requests}
	}
	return algorithms.Limit{Algorithm: a, Requests: requests, Period: time.Hour}
}

// phase returns a charge of a holder.
func phase(p algorithms.HoldPhase, key string, l algorithms.Limit, holder string, hits int64) store.Charge {
	c := charge(key, l)
	c.Hits, c.Hold = hits, &store.Hold{Phase: p, Holder: store.HolderOf([]byte(holder)), AtMost: holdTime}
	return c
}

func begin(key string, l algorithms.Limit, holder string, hits int64) store.Charge {
	return phase(algorithms.HoldBegin, key, l, holder, hits)
}

func end(key string, l algorithms.Limit, holder string, hits int64) store.Charge {
	return phase(algorithms.HoldEnd, key, l, holder, hits)
}

// wantEnd fails the test unless a charge that settles is allowed, finds the holder in that status,
// and leaves that many hits.
func (e Env) wantEnd(t *testing.T, c store.Charge, was algorithms.HoldStatus, left uint64) {
	t.Helper()
	admitted, d := e.take(t, c)
	if !admitted || !d[0].Allowed || d[0].RetryAfter != 0 || d[0].Remaining != left || c.Hold.Was.Status != was {
		t.Errorf("%v: the end with %d hits: %v, %+v, was %+v; want it allowed, with %d remaining, was status %d",
			c.Limit.Algorithm, c.Hits, admitted, d[0], c.Hold.Was, left, was)
	}
	e.wantRemaining(t, charge(string(c.Key), c.Limit), left)
}

// everyHold runs a case for each algorithm.
func everyHold(t *testing.T, test func(a algorithms.Algorithm, rate bool)) {
	t.Helper()
	for _, a := range EveryAlgorithm() {
		test(a, a != algorithms.Concurrency)
	}
}

// wantBegunNow wants that the begins in charges have told their instant.
func (e Env) wantBegunNow(t *testing.T, charges ...store.Charge) {
	t.Helper()
	for _, c := range charges {
		if c.Hold.Now != e.Now() {
			t.Errorf("%v: the begin was at %v; want %v", c.Limit.Algorithm, c.Hold.Now, e.Now())
		}
	}
}

func beginUnknown(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		c := begin("k", l, "r", 4)
		if d := e.wantAdmitted(t, true, c)[0]; d.Remaining != 6 || d.RetryAfter != 0 || c.Hold.Was != (algorithms.Hold{}) {
			t.Errorf("%v: %+v, was %+v; want 6 remaining, of a holder that is not known", a, d, c.Hold.Was)
		}
		e.wantBegunNow(t, c)
		e.wantRemaining(t, c, 6)
		e.wantAdmitted(t, false, begin("k", l, "s", 7))
		e.wantAdmitted(t, true, begin("k", l, "t", 6))
		want := algorithms.Hold{Status: algorithms.HoldHeld, Hits: 4, At: e.Now(), Until: e.Now().Add(holdTime)}
		e.Sleep(time.Second)
		again := begin("k", l, "r", 4)
		e.wantAdmitted(t, true, again)
		if again.Hold.Was != want {
			t.Errorf("%v: the holder is %+v; want %+v", a, again.Hold.Was, want)
		}
	})
}

func beginDenied(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l := held(a, 10)
		e.wantAdmitted(t, true, begin("k", l, "r", 8))
		if d := e.wantAdmitted(t, false, begin("k", l, "s", 3))[0]; d.Allowed || d.RetryAfter <= 0 || d.Remaining != 2 {
			t.Errorf("%v: %+v; want it denied for a while, with 2 remaining", a, d)
		}
		c := begin("k", l, "s", 3)
		e.wantAdmitted(t, false, c)
		want := algorithms.Hold{}
		if rate {
			want = algorithms.Hold{Status: algorithms.HoldDenied, Until: e.Now().Add(holdTime)}
		}
		if c.Hold.Was != want {
			t.Errorf("%v: the denied holder is %+v; want %+v", a, c.Hold.Was, want)
		}
		e.wantRemaining(t, c, 2)
	})
}

func beginHeld(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		e.wantAdmitted(t, true, begin("k", l, "r", 10))
		e.Sleep(time.Second)
		for _, hits := range []int64{10, 1, 0, 11, -5} {
			if d := e.wantAdmitted(t, true, begin("k", l, "r", hits))[0]; !d.Allowed || d.Remaining != 0 || d.RetryAfter != 0 {
				t.Errorf("%v: a repeat with %d hits: %+v; want allowed, 0 remaining", a, hits, d)
			}
		}
		e.wantEnd(t, end("k", l, "r", 0), algorithms.HoldHeld, 10)
	})
}

func beginOfDenied(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		e.wantAdmitted(t, true, begin("k", l, "r", 10))
		e.wantAdmitted(t, false, begin("k", l, "s", 4))
		e.wantAdmitted(t, false, begin("k", l, "s", 4))
		e.wantEnd(t, end("k", l, "r", 0), algorithms.HoldHeld, 10)
		if d := e.wantAdmitted(t, true, begin("k", l, "s", 4))[0]; d.Remaining != 6 {
			t.Errorf("%v: %+v; want 6 remaining", a, d)
		}
		e.wantEnd(t, end("k", l, "s", 0), algorithms.HoldHeld, 10)
	})
}

func beginOfEnded(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		for range 3 {
			e.wantAdmitted(t, true, begin("k", l, "r", 10))
			e.wantAdmitted(t, false, begin("k", l, "s", 1))
			e.wantEnd(t, end("k", l, "r", 0), algorithms.HoldHeld, 10)
		}
	})
}
