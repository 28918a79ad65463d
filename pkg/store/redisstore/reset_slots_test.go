package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// A request reserves hits of one key, and waits for another node. A reset of the key in between
// would forget the hits, and the request would give back the hits of others.
func TestResetWaitsForARequestThatHasReservedTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := awayCluster(t, time.Millisecond, layouts()["thirds"])
		l := perAge(algorithms.FixedWindow, 10)
		one, two := onNode(s, 0, l), onNode(s, 1, l)
		two.Rule = 1
		taking(t, s, one)
		taking(t, s, two)
		const hangs = 100 * time.Millisecond
		c.fars[1].hang(hangs)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() {
			if _, err := store.Take(ctx, s, []store.Charge{one, two}, make([]algorithms.Decision, 2)); err != nil {
				t.Error(err)
			}
		}()
		begun := time.Now()
		time.Sleep(10 * time.Millisecond)
		if _, err := s.Reset(ctx, []store.Charge{one}); err != nil || time.Since(begun) < hangs {
			t.Errorf("the reset ended after %v, %v; want %v, when the request has its answers", time.Since(begun), err, hangs)
		}
	})
}

func TestResetsAndRequestsOverSlotsWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := new(gate)
		one, two := []store.Charge{hit("one", algorithms.Limit{})}, []store.Charge{hit("two", algorithms.Limit{})}
		both := append(slices.Clone(one), two...)
		begun := time.Now()
		in := func(d time.Duration) time.Time { return begun.Add(d) }
		if err := g.pass(t.Context(), in(time.Second), aRequest, both); err != nil {
			t.Fatal(err)
		}
		if err := g.pass(t.Context(), in(10*time.Millisecond), aReset, one); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a reset of a key with reserved hits: %v; want a missed deadline", err)
		}
		g.leave(aReset, one)
		time.AfterFunc(time.Until(in(20*time.Millisecond)), func() { g.leave(aRequest, both) })
		if err := g.pass(t.Context(), in(time.Second), aReset, two); err != nil || time.Now().Before(in(20*time.Millisecond)) {
			t.Errorf("a reset began after %v: %v; want 20ms, as the request ended", time.Since(begun), err)
		}
		if err := g.pass(t.Context(), in(time.Second), aRequest, one); err != nil || time.Now().After(in(20*time.Millisecond)) {
			t.Errorf("a request for another key began after %v: %v; want no wait", time.Since(begun), err)
		}
		g.leave(aRequest, one)
		if err := g.pass(t.Context(), in(30*time.Millisecond), aRequest, both); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request during a reset: %v; want a missed deadline", err)
		}
		time.AfterFunc(10*time.Millisecond, func() { g.leave(aReset, two) })
		if err := g.pass(t.Context(), in(time.Second), aRequest, both); err != nil || time.Now().Before(in(40*time.Millisecond)) {
			t.Errorf("a request began after %v: %v; want 40ms, as the reset ended", time.Since(begun), err)
		}
		g.leave(aRequest, both)
		if g.inside != [2][1024]int32{} {
			t.Error("requests or resets are left")
		}
	})
}

// A reset of many keys holds up requests for one key at a time. So other requests over several
// slots go on, also when a node hangs.
func TestResetOfManyKeysFailsNoRequestsOverSlots(t *testing.T) {
	for name, hangs := range map[string]time.Duration{"all nodes answer": 0, "the node of the reset hangs": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c := awayCluster(t, time.Millisecond, layouts()["thirds"])
				at := func(prefix string, n int) []store.Charge { // keys of two nodes that do not hang
					var charges []store.Charge
					for i := 0; len(charges) < n; i++ {
						x := hit(fmt.Sprint(prefix, i), perAge(algorithms.FixedWindow, 10))
						if x.Rule = len(charges); c.nodes[s.locate(&x, 0).slot] != 2 {
							charges = append(charges, x)
						}
					}
					return charges
				}
				reset := at("reset ", 400)
				if hangs > 0 {
					c.fars[2].hang(hangs)
					for c.nodes[s.locate(&reset[0], 0).slot] != 2 {
						reset[0].Key = append(reset[0].Key, 'x')
					}
				}
				var resetting sync.WaitGroup
				ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
				defer cancel()
				resetting.Go(func() {
					n, err := s.Reset(ctx, reset)
					if hangs == 0 && (n != len(reset) || err != nil) {
						t.Errorf("%d keys were reset, %v; want %d", n, err, len(reset))
					}
				})
				failed, asked := 0, 0
				for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); asked++ {
					charges := at(fmt.Sprint("other ", asked, " "), 3)
					if _, err := store.Take(t.Context(), s, charges, make([]algorithms.Decision, len(charges))); err != nil {
						failed++
					}
				}
				resetting.Wait()
				if failed > asked/50 { // keys may share a number with the key of the reset
					t.Errorf("%d of %d other requests failed during a reset; want hardly any", failed, asked)
				}
			})
		})
	}
}
