package shared

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func TestHoldersAreListedByThePrimary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, end := newFleet(t, nil, 2, 0)
		defer end()
		synctest.Wait()
		slots := algorithms.Limit{Algorithm: algorithms.Concurrency, Requests: 10}
		number, s := 1, f.procs[0]
		c := beginOf(&number, store.Charge{Key: []byte("key"), Limit: slots, Hits: 3}, time.Minute)
		f.take(t, s, []store.Charge{c}, false)
		held, all, err := s.Holders(t.Context(), &c, 10)
		if err != nil || all != 1 || len(held) != 1 || held[0].Holder != c.Hold.Holder || held[0].Hits != 3 {
			t.Errorf("Holders = %+v, %d, %v; want one of 3 hits", held, all, err)
		}
		rate := charge("key", 5)
		if _, _, err := s.Holders(t.Context(), &rate, 10); !errors.Is(err, store.ErrNotListed) {
			t.Errorf("Holders of a rate limit: %v, want %v", err, store.ErrNotListed)
		}
		if got := s.Stats().Failures; got != (Failures{}) {
			t.Errorf("%+v after an answer that a rate limit is not listed, want no failure", got)
		}

		f.are(down)
		number++
		c = beginOf(&number, store.Charge{Key: []byte("key"), Limit: slots, Hits: 2}, time.Minute)
		f.take(t, s, []store.Charge{c}, false)
		held, all, err = s.Holders(t.Context(), &c, 10)
		now := f.hub.now()
		want := []store.Held{{Hits: 3, At: now, Until: now.Add(time.Minute)}, {Holder: c.Hold.Holder, Hits: 2, At: now, Until: now.Add(time.Minute)}}
		if diff := cmp.Diff(want, held); diff != "" || all != 2 || err != nil {
			t.Errorf("without the primary: %d holders, %v (-want +got):\n%s", all, err, diff)
		}
	})
	inBubble(t, setup{}, func(r *rig) {
		c := charge("key", 5)
		if _, _, err := r.Holders(r.t.Context(), &c, 10); !errors.Is(err, store.ErrNotListed) {
			r.t.Errorf("of a primary that lists no holders: %v, want %v", err, store.ErrNotListed)
		}
	})
}

func TestAPeekAtAHolderRemembersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, end := newFleet(t, nil, 1, 0)
		defer end()
		synctest.Wait()
		f.are(down)
		number, s := 1, f.procs[0]
		s.breaker.FleetSize = 2
		c := beginOf(&number, charge("key", 10), time.Minute)
		decisions := make([]algorithms.Decision, 1)
		for range 3 {
			if err := s.Peek(t.Context(), []store.Charge{c}, decisions); err != nil || decisions[0].Remaining != 4 || c.Hold.Was != (algorithms.Hold{}) {
				t.Errorf("Peek: %+v, %v, was %+v; want 4 left and no holder", decisions[0], err, c.Hold.Was)
			}
		}
		c.Hits = 3
		f.take(t, s, []store.Charge{c}, false)
		if err := s.Peek(t.Context(), []store.Charge{c}, decisions); err != nil || decisions[0].Remaining != 2 || c.Hold.Was.Hits != 3 {
			t.Errorf("Peek at a holder: %+v, %v, was %+v; want 2 left and 3 hits", decisions[0], err, c.Hold.Was)
		}
		for _, other := range []store.OnError{store.OnErrorAllow, store.OnErrorDeny} {
			c.OnError = other
			if err := s.Peek(t.Context(), []store.Charge{c}, decisions); err != nil || c.Hold.Was != (algorithms.Hold{}) {
				t.Errorf("policy %d: %v, was %+v; want no holder", other, err, c.Hold.Was)
			}
		}
		if got := len(f.links[0].told); got != 1 {
			t.Errorf("the primary is told of %d holders, want the one that has begun", got)
		}
		if got := s.Stats(); got.Holders != 1 || got.Carried != 3 {
			t.Errorf("%+v; want one holder and 3 hits carried back", got)
		}
	})
}

func TestHoldersWithoutThePrimaryAllocateNoMoreThanOtherCharges(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	inBubbleAway(t, setup{Fleet: func() int { return 2 }}, func(r *rig) {
		decisions := make([]algorithms.Decision, 1)
		allocates := func(charges ...store.Charge) float64 {
			return testing.AllocsPerRun(100, func() {
				for i := range charges {
					if _, err := store.Take(r.t.Context(), r, charges[i:i+1], decisions); err != nil {
						r.t.Fatal(err)
					}
				}
			})
		}
		number := 1
		begin := beginOf(&number, charge("key", 1000), time.Minute)
		end := owned(&begin)
		end.Hold.Phase = algorithms.HoldEnd
		want := allocates(charge("key", 1000), charge("key", 1000))
		if got := allocates(begin, end); got > want {
			r.t.Errorf("a begin and an end allocate %v times, want %v times as two other charges", got, want)
		}
	})
}
