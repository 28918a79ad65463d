package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// back returns a charge with a holder whose hits come back.
func back(c store.Charge) store.Charge {
	c.Hold.GivesBack = true
	return c
}

func givesBack(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l := held(a, 10)
		e.wantAdmitted(t, true, back(begin("k", l, "r", 6)))
		e.wantAdmitted(t, true, back(begin("k", l, "s", 4)))
		e.Sleep(holdTime - time.Millisecond)
		e.wantAdmitted(t, true, back(begin("k", l, "r", 6))) // a repeat does not renew
		e.wantAdmitted(t, true, back(end("k", l, "s", 4)))
		left := uint64(0)
		if !rate {
			left = 4
		}
		e.wantRemaining(t, back(begin("k", l, "probe", 0)), left)
		e.Sleep(time.Millisecond)
		left += 6
		for range 2 {
			e.wantRemaining(t, back(begin("k", l, "probe", 0)), left)
		}
		e.wantAdmitted(t, false, back(begin("k", l, "t", int64(left)+1)))
		e.wantAdmitted(t, true, back(begin("k", l, "u", int64(left))))
		c := back(end("k", l, "r", 1)) // too late: the whole cost, on top
		e.wantAdmitted(t, true, c)
		if c.Hold.Was.Status != algorithms.HoldUnknown {
			t.Errorf("%v: the holder is %+v; want it unknown", a, c.Hold.Was)
		}
		e.Sleep(holdTime)
		if rate {
			left-- // u has given back, and r has not
		} else {
			left = 10
		}
		e.wantRemaining(t, back(begin("k", l, "probe", 0)), left)
	})
}

func givesBackInAnotherWindow(t *testing.T, e Env) {
	for _, tt := range []struct {
		a    algorithms.Algorithm
		left uint64
	}{{algorithms.FixedWindow, 8}, {algorithms.SlidingWindowCounter, 8}, {algorithms.SlidingWindowLog, 8}} {
		l := held(tt.a, 10)
		e.Sleep(l.Period - time.Duration(e.Now())%l.Period - 10*time.Second)
		e.wantAdmitted(t, true, back(begin("k", l, "r", 5)))
		e.Sleep(20 * time.Second)
		e.wantAdmitted(t, true, begin("k", l, "s", 2))
		e.Sleep(holdTime - 20*time.Second)
		e.wantRemaining(t, back(begin("k", l, "probe", 0)), tt.left)
		e.wantEnd(t, end("k", l, "s", 0), algorithms.HoldHeld, 10)
	}
}

func givesBackNothing(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		if !rate {
			return
		}
		for _, word := range []bool{true, false} { // the word of the other charges: a reload can have removed it
			key, l := fmt.Sprint("k", word), held(a, 20)
			take := func(c store.Charge) {
				t.Helper()
				c.Hold.GivesBack = word
				e.wantAdmitted(t, true, c)
			}
			e.wantAdmitted(t, true, back(begin(key, l, "ends", 5)))
			e.wantAdmitted(t, true, back(begin(key, l, "cancels", 5)))
			take(end(key, l, "ends", 5))
			take(phase(algorithms.HoldCancel, key, l, "cancels", 0))
			e.Sleep(holdTime)
			e.wantRemaining(t, back(begin(key, l, "probe", 0)), 15)

			forgotten := back(begin(key, l, "forgotten", 5))
			e.wantAdmitted(t, true, forgotten)
			if _, err := e.Store.Reset(t.Context(), []store.Charge{forgotten}); err != nil {
				t.Fatal(err)
			}
			take(begin(key, l, "after", 20))
			take(end(key, l, "after", 20))
			e.Sleep(holdTime)
			e.wantRemaining(t, back(begin(key, l, "probe", 0)), 0)
		}
	})
}

func givesBackAfterReload(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		if !rate {
			return
		}
		l := held(a, 10)
		e.wantAdmitted(t, true, begin("k", l, "keeps", 3))
		e.wantAdmitted(t, true, back(begin("k", l, "gives", 4)))
		e.wantAdmitted(t, true, begin("k", l, "keeps too", 3))
		e.Sleep(holdTime)
		e.wantRemaining(t, back(begin("k", l, "probe", 0)), 4)
	})
}

func givesBackMany(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 300)
		for i := range 300 {
			e.wantAdmitted(t, true, back(begin("k", l, fmt.Sprint(i), 1)))
		}
		e.Sleep(holdTime)
		for range 4 { // some at each touch
			e.take(t, back(begin("k", l, "probe", 0)))
		}
		e.wantRemaining(t, back(begin("k", l, "probe", 0)), 300)
	})
}

func givesBackManyThatComeAgain(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		if !rate {
			return
		}
		for n, again := range []func(string, algorithms.Limit, string, int64) store.Charge{begin, end} {
			key, l := fmt.Sprint("k", n), held(a, 1000)
			e.wantAdmitted(t, true, begin(key, l, "keeps", 100)) // so that no bucket gets full
			for i := range 300 {
				e.wantAdmitted(t, true, back(begin(key, l, fmt.Sprint(i), 2)))
			}
			e.Sleep(holdTime)
			for i := range 300 { // the hits of the last ones come back last
				e.wantAdmitted(t, true, back(again(key, l, fmt.Sprint(299-i), 1)))
			}
			left := uint64(600)
			if a == algorithms.TokenBucket || a == algorithms.TokenBucketInteger {
				left += uint64(holdTime * 1000 / l.Period)
			}
			e.wantRemaining(t, back(begin(key, l, "probe", 0)), left)
		}
	})
}
