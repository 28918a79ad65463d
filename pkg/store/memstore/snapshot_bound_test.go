package memstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// A smaller store takes the keys that its order keeps: all denied ones here.
func TestASmallerStoreKeepsDeniedKeys(t *testing.T) {
	inBubble(t, Options{Savable: true, MaxKeys: 10_000}, func(t *testing.T, s *Store) {
		limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 10, Period: 365 * 24 * time.Hour}
		for i := range 5000 {
			take(t, s, fmt.Sprint("some", i), limit, 1)
		}
		for i := range 300 {
			take(t, s, fmt.Sprint("denied", i), limit, 10)
			take(t, s, fmt.Sprint("denied", i), limit, 1)
		}
		r, loaded := restored(t, Options{MaxKeys: 1000}, save(t, s))
		defer r.Close()
		if got := r.Stats().Keys; got != 1000 {
			t.Errorf("the store has %d keys of %+v, want 1000", got, loaded)
		}
		for i := range 300 {
			if d := take(t, r, fmt.Sprint("denied", i), limit, 1); d.Allowed {
				t.Fatalf("key %d is free again: %+v", i, d)
			}
		}
	})
}

// A store with fewer places than the logs of a snapshot need keeps the logs that are denied, and
// its bound.
func TestASmallerStoreKeepsDeniedLogs(t *testing.T) {
	inBubble(t, Options{Savable: true, MaxKeys: 10_000}, func(t *testing.T, s *Store) {
		limit := logLimit(10)
		for i := range 1000 {
			take(t, s, fmt.Sprint("some", i), limit, 1)
		}
		for i := range 1100 {
			take(t, s, fmt.Sprint("denied", i%100), limit, 1)
			time.Sleep(time.Millisecond)
		}
		if got, most := s.Stats().Places, 1000; got <= most {
			t.Fatalf("the saved store has %d places; want more than %d", got, most)
		}
		r, loaded := restored(t, Options{MaxKeys: 1000}, save(t, s))
		defer r.Close()
		if err := r.checkPlaces(); err != nil {
			t.Errorf("%v: %+v", err, loaded)
		}
		if got := r.Stats(); got.Places < 990 || loaded.Keys != got.Keys || loaded.Keys+loaded.NoRoom != 1100 {
			t.Errorf("%+v of %+v; want a full store, and each key read or without room", got, loaded)
		}
		for i := range 100 {
			if d := take(t, r, fmt.Sprint("denied", i), limit, 1); d.Allowed {
				t.Fatalf("log %d is free again: %+v", i, d)
			}
		}
	})
}

// A log of a snapshot that is larger than the whole store makes no other key go.
func TestALogLargerThanASmallerStoreForgetsNoOtherKey(t *testing.T) {
	inBubble(t, Options{Savable: true, MaxKeys: 10_000}, func(t *testing.T, s *Store) {
		for i := range 200 {
			hit(t, s, fmt.Sprint("other ", i), time.Hour, 1)
		}
		for range 1000 {
			take(t, s, "log", logLimit(10_000), 1)
			time.Sleep(time.Millisecond)
		}
		r, loaded := restored(t, Options{MaxKeys: 300}, save(t, s))
		defer r.Close()
		if got := r.Stats(); got.Keys != 200 || got.Evicted != 0 || loaded.Keys != 200 || loaded.NoRoom != 1 {
			t.Errorf("%+v of %+v; want all 200 other keys", got, loaded)
		}
	})
}
