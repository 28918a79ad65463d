package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// A request over several slots reserves the hits of a holder, and is then denied. Meanwhile the
// holder may end, as its client has left. The hits come back once.
func TestHitsOfAReservedHolderComeBackOnce(t *testing.T) {
	again := begin("k", algorithms.Limit{}, "r", 2)
	for _, test := range []struct {
		name      string
		meanwhile []store.Charge
		left      uint32 // of 10, beside another holder of 4
	}{
		{"nothing happens", nil, 6},
		{"the holder begins again", []store.Charge{begin("k", algorithms.Limit{}, "r", 5)}, 6},
		{"the holder ends", []store.Charge{end("k", algorithms.Limit{}, "r", 0)}, 6},
		{"the holder ends with a cost", []store.Charge{end("k", algorithms.Limit{}, "r", 3)}, 6},
		{"the holder ends twice", []store.Charge{end("k", algorithms.Limit{}, "r", 2), end("k", algorithms.Limit{}, "r", 2)}, 6},
		{"the holder is canceled", []store.Charge{withHolder(algorithms.HoldCancel, "k", algorithms.Limit{}, "r", 0)}, 6},
		{"the holder ends and begins again", []store.Charge{end("k", algorithms.Limit{}, "r", 0), again}, 4},
	} {
		for _, counters := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, counters %v", test.name, counters), func(t *testing.T) {
				for _, a := range storetest.EveryAlgorithm() {
					{
						o := Options{}
						if counters {
							o.Counters = counted(fresh(t))
						}
						s, c := given(t, o)
						l := limitOfTen(a)
						wants(t, true, s, begin("k", l, "other", 4))
						c.sleep(time.Millisecond)
						reserved := callOf(reserve, begin("k", l, "r", 5))
						reserved.at = s.here()
						run(t, s, reserved)
						for _, charge := range test.meanwhile {
							c.sleep(time.Millisecond)
							charge.Limit = l
							wants(t, true, s, charge)
						}
						if change := s.settle(reserved, isDenied); change == nil {
							t.Fatalf("%v: the reservation needs no change", a)
						} else {
							run(t, s, change)
						}
						if got := remains(t, s, begin("k", l, "", 0)); got != test.left {
							t.Errorf("%v: %d of 10 remain; want %d", a, got, test.left)
						}
						e := end("k", l, "r", 0)
						if wants(t, true, s, e); test.left == 6 && e.Hold.Was.Status == algorithms.HoldHeld {
							t.Errorf("%v: the holder still holds %+v", a, e.Hold.Was)
						}
					}
				}
			})
		}
	}
}

// A request over several slots fails after the begin of a holder. Somebody else decides the
// request, and tells how.
func TestHoldersOfARequestThatFailedAreRepaired(t *testing.T) {
	for _, test := range []struct {
		name        string
		told        []store.Charge
		rate, slots uint32 // of 10, beside another holder of 4
	}{
		{"nothing is told", nil, 1, 1},
		{"it was admitted", []store.Charge{begun(5)}, 1, 1},
		{"it was admitted and has ended", []store.Charge{begun(5), ended(3)}, 3, 6},
		{"it was denied", []store.Charge{canceled()}, 6, 6},
	} {
		for _, first := range []bool{false, true} { // the store is told before it settles the reservation
			t.Run(fmt.Sprintf("%s, first %v", test.name, first), func(t *testing.T) {
				for _, a := range storetest.EveryAlgorithm() {
					s, c := given(t, Options{})
					l := limitOfTen(a)
					wants(t, true, s, begin("k", l, "other", 4))
					c.sleep(time.Millisecond)
					reserved := callOf(reserve, begin("k", l, "r", 5))
					run(t, s, reserved)
					if first {
						tellLater(s, "k", l, s.Now(algorithms.Limit{}), test.told...)
						toldHolds(t, s)
					}
					s.giveBack([]*transaction{reserved})
					told(t, s)
					if !first {
						tellLater(s, "k", l, s.Now(algorithms.Limit{}), test.told...)
						toldHolds(t, s)
					}
					want := test.rate
					if a == algorithms.Concurrency {
						want = test.slots
					}
					if got := remains(t, s, begin("k", l, "", 0)); got != want {
						t.Errorf("%v: %d of 10 remain; want %d", a, got, want)
					}
				}
			})
		}
	}
}

// While a slot moves, Redis refuses a call without one of its keys. Such a key is the set of
// holders whose hits come back.
func TestRedisRefusesACallWhoseSetOfHoldersHasMoved(t *testing.T) {
	addresses := sharedCluster(t).Addresses()
	s := open(t, urlOf("redis-cluster", addresses...), Options{})
	l := perAge(algorithms.FixedWindow, 10)
	wants(t, true, s, begin("k", l, "r", 5))
	c := end("k", l, "r", 3)
	slot := fmt.Sprint(slotOf(string(s.of(&c).appendBook(nil, &c))))
	nodes, ids, moves := make([]rueidis.Client, len(addresses)), make([]string, len(addresses)), 0
	do := func(i int, args ...string) rueidis.RedisResult {
		return nodes[i].Do(context.Background(), nodes[i].B().Arbitrary("CLUSTER").Args(args...).Build())
	}
	for i, address := range addresses {
		n, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}, ForceSingleClient: true, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		nodes[i] = n
		ids[i], _ = do(i, "MYID").ToString()
	}
	for i := range nodes { // the owner lets the slot go, to a primary
		if slices.ContainsFunc(ids, func(id string) bool { return do(i, "SETSLOT", slot, "MIGRATING", id).Error() == nil }) {
			moves++
			defer do(i, "SETSLOT", slot, "STABLE")
		}
	}
	c.Hold.GivesBack = true
	_, err := store.Take(t.Context(), s, []store.Charge{c}, make([]algorithms.Decision, 1))
	if moves != 1 || !errors.Is(err, store.ErrLimit) || !strings.Contains(err.Error(), "TRYAGAIN") {
		t.Errorf("got %v, %d nodes let the slot go; want TRYAGAIN", err, moves)
	}
}
