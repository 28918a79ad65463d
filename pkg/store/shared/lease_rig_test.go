package shared

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// minute returns a charge of one hit under a fixed window of a minute.
func minute(key string, requests uint32) store.Charge {
	return store.Charge{Key: []byte(key), Limit: window(requests, time.Minute), Hits: 1, CountRejected: true}
}

// take takes charges, and lets the goroutines of the bubble go on.
func take(t *testing.T, s store.Store, charges ...store.Charge) (bool, []algorithms.Decision) {
	t.Helper()
	decisions := make([]algorithms.Decision, len(charges))
	admitted, err := store.Take(t.Context(), s, charges, decisions)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return admitted, decisions
}

// spent returns the hits that were spent from leases. A lease that comes in the background leaves
// the number as it is.
func spent(s *Store) uint64 {
	l := s.Stats().Leases
	return l.Charged - l.Held - l.Back - l.Expired
}

// warm asks a key until it is leased.
func warm(t *testing.T, s *Store, k *link, c store.Charge) {
	t.Helper()
	for range 20 {
		take(t, s, c)
	}
	if s.Stats().Leases.Held == 0 {
		t.Fatalf("after 20 calls: got %+v, want hits held", s.Stats())
	}
	k.asked()
}
