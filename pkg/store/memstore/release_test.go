package memstore

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// The file was written by 0.1.0 in the first instant of a bubble, after the hits of this test.
// Never write the file anew: later versions read the snapshots of 0.1.0.
func TestASnapshotOfRelease010IsRead(t *testing.T) {
	snapshot, err := os.ReadFile("testdata/states-0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	day, err := algorithms.NewCalendar(algorithms.CalendarSpec{Unit: algorithms.CalendarDay, Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	inBubble(t, Options{Savable: true}, func(t *testing.T, s *Store) {
		var charges []store.Charge
		for _, a := range append(algorithms.RateAlgorithms(), algorithms.CalendarAlgorithms()...) {
			l := algorithms.Limit{Algorithm: a, Requests: 10, Period: 24 * time.Hour}
			if a.HasCalendar() {
				l.Calendar = day
			}
			charges = append(charges, store.Charge{Key: []byte("key"), Limit: l, Hits: 3, Rule: int(a)})
		}
		takeAll := func(s *Store) []algorithms.Decision {
			decisions := make([]algorithms.Decision, len(charges))
			if _, err := store.Take(t.Context(), s, charges, decisions); err != nil {
				t.Fatal(err)
			}
			return decisions
		}
		takeAll(s)
		holdSome(s)

		r, loaded := restored(t, Options{}, snapshot)
		defer r.Close()
		if loaded.Keys == 0 || loaded.Holders == 0 {
			t.Errorf("got %+v, want keys and holders", loaded)
		}
		for range 3 { // the last ones reach the limits
			time.Sleep(time.Second)
			if diff := cmp.Diff(takeAll(s), takeAll(r)); diff != "" {
				t.Errorf("decisions (-history +snapshot):\n%s", diff)
			}
			for _, a := range algorithms.Algorithms() {
				next := held(algorithms.HoldBegin, "held", a, 3, 1, 1)
				if diff := cmp.Diff(takeHeld(t, s, next), takeHeld(t, r, next)); diff != "" {
					t.Errorf("%v: a holder again (-history +snapshot):\n%s", a, diff)
				}
			}
		}
	})
}
