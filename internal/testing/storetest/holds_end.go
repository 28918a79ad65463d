package storetest

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

func endUnknown(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l := held(a, 10)
		if !rate {
			e.wantEnd(t, end("k", l, "r", 4), algorithms.HoldUnknown, 10)
			return
		}
		e.wantEnd(t, end("k", l, "r", 4), algorithms.HoldUnknown, 6)
		e.wantEnd(t, end("k", l, "r", 4), algorithms.HoldEnded, 6) // a repeat
		e.wantEnd(t, end("k", l, "s", 8), algorithms.HoldUnknown, 0)
		e.wantAdmitted(t, false, begin("k", l, "t", 0)) // 2 past the limit, as a probe sees
		refund := charge("k", l)
		refund.Hits = -3
		e.wantAdmitted(t, true, refund)
		e.wantRemaining(t, refund, 1)
	})
}

func endWithMore(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l := held(a, 10)
		e.wantAdmitted(t, true, begin("k", l, "r", 4))
		e.wantAdmitted(t, true, begin("k", l, "s", 5))
		if !rate {
			e.wantEnd(t, end("k", l, "r", 9), algorithms.HoldHeld, 5)
			return
		}
		e.wantEnd(t, end("k", l, "r", 5), algorithms.HoldHeld, 0)
		e.wantEnd(t, end("k", l, "s", 8), algorithms.HoldHeld, 0)
		refund := charge("k", l)
		refund.Hits = -4
		e.wantAdmitted(t, true, refund)
		e.wantRemaining(t, refund, 1) // 13 of 10, less 4
	})
}

// A log remembers every hit, and so its debt has a bound.
func endOwes(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		if !rate || a == algorithms.SlidingWindowLog {
			return
		}
		l := held(a, 10)
		e.wantAdmitted(t, true, begin("k", l, "r", 10))
		e.wantEnd(t, end("k", l, "r", 75), algorithms.HoldHeld, 0)
		refund := charge("k", l)
		refund.Hits = -60
		e.wantAdmitted(t, true, refund)
		e.wantAdmitted(t, false, begin("k", l, "s", 1))
		refund.Hits = -10
		e.wantAdmitted(t, true, refund)
		e.wantRemaining(t, refund, 5) // 75 of 10, less 70
	})
}

// A key that owes more than its limit is beyond a limit of 0, too.
func owesUnderBan(t *testing.T, e Env) {
	l := held(algorithms.TokenBucketInteger, 2)
	e.wantAdmitted(t, true, begin("k", l, "r", 2))
	e.wantEnd(t, end("k", l, "r", 5), algorithms.HoldHeld, 0)
	l.Requests = 0
	e.wantAdmitted(t, false, begin("k", l, "s", 0))
}

func endWithLess(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l := held(a, 10)
		e.wantAdmitted(t, true, begin("k", l, "r", 4))
		e.Sleep(time.Second)
		e.wantAdmitted(t, true, begin("k", l, "s", 5))
		e.Sleep(time.Second)
		if !rate {
			e.wantEnd(t, end("k", l, "r", 1), algorithms.HoldHeld, 5)
			e.wantEnd(t, end("k", l, "s", 5), algorithms.HoldHeld, 10)
			return
		}
		e.wantEnd(t, end("k", l, "r", 1), algorithms.HoldHeld, 4)
		e.wantEnd(t, end("k", l, "s", 5), algorithms.HoldHeld, 4)
	})
}

// The window of the begin ends before the end comes. A fixed window then has nothing to give back
// to. A sliding counter has the count of the window before, and a log has the entry of the begin.
func endInAnotherWindow(t *testing.T, e Env) {
	for _, tt := range []struct {
		a    algorithms.Algorithm
		left uint64
	}{{algorithms.FixedWindow, 8}, {algorithms.SlidingWindowCounter, 8}, {algorithms.SlidingWindowLog, 8}} {
		l := held(tt.a, 10)
		e.Sleep(l.Period - time.Duration(e.Now())%l.Period - 10*time.Second)
		c := begin("k", l, "r", 5)
		e.wantAdmitted(t, true, c)
		e.Sleep(20 * time.Second)
		e.wantAdmitted(t, true, begin("k", l, "s", 2))
		e.wantEnd(t, end("k", l, "r", 0), algorithms.HoldHeld, tt.left)
		e.wantEnd(t, end("k", l, "s", 0), algorithms.HoldHeld, 10)
	}
}

func endFreesSlots(t *testing.T, e Env) {
	l := held(algorithms.Concurrency, 3)
	for i, hits := range []int64{1, 0, 3, 1000, algorithms.MaxHits} { // the hits of an end mean nothing
		e.wantAdmitted(t, true, begin("k", l, "r", 2))
		e.wantAdmitted(t, true, begin("k", l, "s", 1))
		e.wantAdmitted(t, false, begin("k", l, "t", 1))
		e.wantEnd(t, end("k", l, "r", hits), algorithms.HoldHeld, 2)
		e.wantAdmitted(t, true, begin("k", l, "t", 1))
		e.wantEnd(t, end("k", l, "t", hits), algorithms.HoldHeld, 2)
		e.wantEnd(t, end("k", l, "s", hits), algorithms.HoldHeld, 3)
		if t.Failed() {
			t.Fatalf("with %d hits, round %d", hits, i)
		}
	}
}

func endOfDenied(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l, was := held(a, 10), algorithms.HoldUnknown
		if rate {
			was = algorithms.HoldDenied
		}
		e.wantAdmitted(t, true, begin("k", l, "r", 8))
		e.wantAdmitted(t, false, begin("k", l, "s", 3))
		e.wantEnd(t, end("k", l, "s", 3), was, 2)
		e.wantEnd(t, end("k", l, "s", 5), was, 2)
		e.wantEnd(t, end("k", l, "s", 0), was, 2)
	})
}

func endOfEnded(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l, was, left := held(a, 10), algorithms.HoldUnknown, uint64(10)
		if rate {
			was, left = algorithms.HoldEnded, 7
		}
		e.wantAdmitted(t, true, begin("k", l, "r", 5))
		e.wantEnd(t, end("k", l, "r", 3), algorithms.HoldHeld, left)
		for _, hits := range []int64{3, 0, 9, -2} {
			e.wantEnd(t, end("k", l, "r", hits), was, left)
		}
	})
}

func endAsRefund(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l := held(a, 10)
		denied, ended := algorithms.HoldUnknown, algorithms.HoldUnknown
		if rate {
			denied, ended = algorithms.HoldDenied, algorithms.HoldEnded
		}
		e.wantAdmitted(t, true, begin("k", l, "other", 4))
		e.wantEnd(t, end("k", l, "r", -3), algorithms.HoldUnknown, 6)
		e.wantEnd(t, end("k", l, "r", -3), algorithms.HoldUnknown, 6) // which is not remembered
		e.wantAdmitted(t, true, begin("k", l, "r", 5))
		e.wantEnd(t, end("k", l, "r", -1), algorithms.HoldHeld, 6)
		e.wantEnd(t, end("k", l, "r", -1), ended, 6)
		e.wantAdmitted(t, false, begin("k", l, "s", 7))
		e.wantEnd(t, end("k", l, "s", -7), denied, 6)
	})
}
