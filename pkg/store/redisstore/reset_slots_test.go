package redisstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// A request reserves hits of one key, and waits for another node, which denies. Between the two a
// reset forgets the key. The hits that others take after the reset stay.
func TestResetBetweenReserveAndSettleGivesNothingBackTwice(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		s := clustered(t, Options{})
		node := sharedCluster(t).Nodes[1]
		one, banned := onNode(s, 0, perAge(a, 10)), onNode(s, 1, perAge(a, 0))
		one.Hits, banned.Rule = 5, 1
		settled(t, s, banned)
		settled(t, s, one)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := node.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		denied, reset := make(chan bool, 1), make(chan error, 1)
		go func() {
			admitted, err := store.Take(ctx, s, []store.Charge{one, banned}, make([]algorithms.Decision, 2))
			denied <- !admitted && err == nil
		}()
		eventually(t, "the first node has reserved", func() bool { return remains(t, s, one) == 5 })
		go func() {
			_, err := s.Reset(ctx, []store.Charge{one})
			reset <- err
		}()
		after := one
		after.Hits = 8
		hasReset := false
		select {
		case err := <-reset:
			if hasReset = true; err != nil {
				t.Errorf("%v: %v", a, err)
			}
			wants(t, true, s, after)
		case <-time.After(100 * time.Millisecond): // the reset waits for the request
		}
		if err := node.Continue(); err != nil {
			t.Fatal(err)
		}
		if !<-denied {
			t.Errorf("%v: the request was not denied", a)
		}
		if !hasReset {
			if err := <-reset; err != nil {
				t.Errorf("%v: %v", a, err)
			}
			wants(t, true, s, after)
		}
		if got := remains(t, s, one); got != 2 {
			t.Errorf("%v: %d of 10 remain after a reset and 8 hits; want 2", a, got)
		}
		if err := sharedCluster(t).AwaitWhole(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestResetsAndRequestsOverSlotsWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gate{seed: maphash.MakeSeed()}
		one, two := []store.Charge{hit("one", algorithms.Limit{})}, []store.Charge{hit("two", algorithms.Limit{})}
		both := append(slices.Clone(one), two...)
		begun := time.Now()
		in := func(d time.Duration) time.Time { return begun.Add(d) }
		if err := g.begin(t.Context(), in(time.Second), both); err != nil {
			t.Fatal(err)
		}
		if err := g.beginReset(t.Context(), in(10*time.Millisecond), one); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a reset of a key with reserved hits: %v; want a missed deadline", err)
		}
		g.endReset(one)
		time.AfterFunc(time.Until(in(20*time.Millisecond)), func() { g.end(both) })
		if err := g.beginReset(t.Context(), in(time.Second), two); err != nil || time.Now().Before(in(20*time.Millisecond)) {
			t.Errorf("a reset began after %v: %v; want 20ms, as the request ended", time.Since(begun), err)
		}
		if err := g.begin(t.Context(), in(time.Second), one); err != nil || time.Now().After(in(20*time.Millisecond)) {
			t.Errorf("a request for another key began after %v: %v; want no wait", time.Since(begun), err)
		}
		g.end(one)
		if err := g.begin(t.Context(), in(30*time.Millisecond), both); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request during a reset: %v; want a missed deadline", err)
		}
		time.AfterFunc(10*time.Millisecond, func() { g.endReset(two) })
		if err := g.begin(t.Context(), in(time.Second), both); err != nil || time.Now().Before(in(40*time.Millisecond)) {
			t.Errorf("a request began after %v: %v; want 40ms, as the reset ended", time.Since(begun), err)
		}
		g.end(both)
		if g.requests != [gateNumbers]int32{} || g.resets != [gateNumbers]int32{} {
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
