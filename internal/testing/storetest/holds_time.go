package storetest

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func runsOut(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l := held(a, 10)
		e.wantAdmitted(t, true, begin("k", l, "r", 10))
		e.Sleep(holdTime - time.Millisecond)
		c := begin("k", l, "r", 10)
		e.wantAdmitted(t, true, c) // a repeat does not renew
		if c.Hold.Was.Status != algorithms.HoldHeld {
			t.Errorf("%v: a millisecond before at_most the holder is %+v; want it held", a, c.Hold.Was)
		}
		e.wantAdmitted(t, false, begin("k", l, "s", 1))
		e.Sleep(time.Millisecond)
		e.wantAdmitted(t, !rate, begin("k", l, "s", 1))
		if rate {
			e.wantEnd(t, end("k", l, "r", 1), algorithms.HoldUnknown, 0)
			e.wantAdmitted(t, false, begin("k", l, "t", 0)) // the hits of the end came on top of the begin
			return
		}
		e.wantEnd(t, end("k", l, "r", 1), algorithms.HoldUnknown, 9)
		e.wantEnd(t, end("k", l, "s", 1), algorithms.HoldHeld, 10)
	})
}

func deniedAndEndedRunOut(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		if !rate {
			return // remembers neither
		}
		l := held(a, 100)
		e.wantAdmitted(t, true, begin("k", l, "ended", 50))
		e.wantAdmitted(t, false, begin("k", l, "denied", 51))
		e.Sleep(10 * time.Second)
		e.wantAdmitted(t, true, end("k", l, "ended", 50))
		e.wantAdmitted(t, true, end("k", l, "unseen", 1))
		check := func(name string, want algorithms.HoldStatus) {
			t.Helper()
			c := end("k", l, name, -1) // a refund changes nothing here
			if e.wantAdmitted(t, true, c); c.Hold.Was.Status != want {
				t.Errorf("%v: %s after %v: status %d; want %d", a, name, holdTime, c.Hold.Was.Status, want)
			}
		}
		e.Sleep(holdTime - 10*time.Second - time.Millisecond)
		check("denied", algorithms.HoldDenied)
		check("ended", algorithms.HoldEnded)
		e.Sleep(time.Millisecond)
		check("denied", algorithms.HoldUnknown)
		check("ended", algorithms.HoldUnknown)
		check("unseen", algorithms.HoldEnded)
		e.Sleep(10 * time.Second)
		check("unseen", algorithms.HoldUnknown)
	})
}

func beginWithoutHits(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		for _, hits := range []int64{0, -4} {
			c := begin("k", l, "r", hits)
			for range 2 {
				if d := e.wantAdmitted(t, true, c)[0]; d.Remaining != 10 || c.Hold.Was.Status != algorithms.HoldUnknown {
					t.Errorf("%v: a begin with %d hits: %+v, was %+v; want 10 remaining, of a holder that is not known", a, hits, d, c.Hold.Was)
				}
			}
		}
		e.wantAdmitted(t, true, begin("k", l, "r", 7))
		e.wantEnd(t, end("k", l, "r", 0), algorithms.HoldHeld, 10)
	})
}

func beginOfTooMuch(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		for _, hits := range []int64{11, algorithms.MaxHits} {
			if d := e.wantAdmitted(t, false, begin("k", l, "r", hits))[0]; d.Remaining != 10 || d.RetryAfter <= 0 {
				t.Errorf("%v: %d hits of 10: %+v; want 10 remaining and a wait", a, hits, d)
			}
		}
		e.wantAdmitted(t, true, begin("k", l, "s", 1))
		if d := e.wantAdmitted(t, false, begin("k", l, "r", 11))[0]; d.Remaining != 9 || d.RetryAfter <= 0 {
			t.Errorf("%v: 11 hits of 10 beside 1: %+v; want 9 remaining and a wait", a, d)
		}
	})
}

func banDeniesBegin(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		ban := held(a, 0)
		if d := e.wantAdmitted(t, false, begin("k", ban, "r", 1))[0]; d.RetryAfter <= 0 || d.Remaining != 0 {
			t.Errorf("%v: %+v; want denied for a while", a, d)
		}
		if d := e.wantAdmitted(t, true, end("k", ban, "r", 3), end("k", ban, "s", 3)); !d[0].Allowed || !d[1].Allowed {
			t.Errorf("%v: ends under a ban: %+v; want allowed", a, d)
		}
	})
}

func begunElsewhere(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l := held(a, 10)
		begun := func(holder string, hits int64, was algorithms.HoldStatus, left uint64) {
			t.Helper()
			e.wantEnd(t, phase(algorithms.HoldBegun, "k", l, holder, hits), was, left)
		}
		begun("r", 4, algorithms.HoldUnknown, 6)
		begun("r", 4, algorithms.HoldHeld, 6) // a repeat
		begun("nothing", 0, algorithms.HoldUnknown, 6)
		e.wantAdmitted(t, false, begin("k", l, "denied", 7))
		if rate {
			begun("denied", 3, algorithms.HoldDenied, 3)
		} else {
			begun("denied", 3, algorithms.HoldUnknown, 3)
		}
		begun("s", 8, algorithms.HoldUnknown, 0)
		e.wantAdmitted(t, false, begin("k", l, "t", 0)) // 5 past the limit
		if rate {
			e.wantEnd(t, end("k", l, "s", 0), algorithms.HoldHeld, 3)
			begun("s", 2, algorithms.HoldEnded, 3) // comes too late
			return
		}
		e.wantEnd(t, end("k", l, "r", 0), algorithms.HoldHeld, 0)
		e.wantEnd(t, end("k", l, "s", 0), algorithms.HoldHeld, 7)
		e.Sleep(holdTime)
		e.wantRemaining(t, charge("k", l), 10)
	})
}

func canceled(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l := held(a, 10)
		denied, ended := algorithms.HoldUnknown, algorithms.HoldUnknown
		if rate {
			denied, ended = algorithms.HoldDenied, algorithms.HoldEnded
		}
		cancel := func(holder string, was algorithms.HoldStatus, left uint64) {
			t.Helper()
			e.wantEnd(t, phase(algorithms.HoldCancel, "k", l, holder, 5), was, left)
		}
		cancel("unknown", algorithms.HoldUnknown, 10)
		e.wantAdmitted(t, true, begin("k", l, "r", 4))
		e.wantAdmitted(t, true, begin("k", l, "s", 3))
		cancel("r", algorithms.HoldHeld, 7)
		cancel("r", denied, 7)
		e.wantEnd(t, end("k", l, "r", 9), denied, 7) // a denied holder costs nothing
		left := uint64(10)
		if rate {
			left = 8
		}
		e.wantEnd(t, end("k", l, "s", 2), algorithms.HoldHeld, left)
		cancel("s", ended, left)
	})
}

// A probe under another limit carries a bucket over to that limit. So does a charge of a holder
// that takes and gives back nothing.
func nothingIsAProbe(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		if !rate {
			return // has no state but its holders
		}
		slow, fast := limit(a, 3), limit(a, 5)
		for i, nothing := range []store.Charge{
			phase(algorithms.HoldCancel, "unknown", fast, "r", 1), end("ended", fast, "s", 5), phase(algorithms.HoldBegun, "ended", fast, "s", 5),
		} {
			probed := charge("probed", fast)
			probed.Hits = 0
			if _, err := e.Store.Reset(t.Context(), []store.Charge{probed, nothing}); err != nil {
				t.Fatalf("Reset failed: %v", err)
			}
			e.wantAdmitted(t, true, end("probed", slow, "s", 5), end(string(nothing.Key), slow, "s", 5)) // 2 beyond the limit
			_, want := e.take(t, probed)
			_, got := e.take(t, nothing)
			if want[0].Allowed, want[0].RetryAfter = true, 0; got[0] != want[0] {
				t.Errorf("%v: charge %d: %+v; want %+v, of an allowed probe", a, i, got[0], want[0])
			}
			e.Sleep(17 * time.Second)
			_, want = e.take(t, charge("probed", fast))
			if _, got = e.take(t, charge(string(nothing.Key), fast)); got[0] != want[0] {
				t.Errorf("%v: a hit after charge %d: %+v; want %+v, as after a probe", a, i, got[0], want[0])
			}
		}
	})
}
