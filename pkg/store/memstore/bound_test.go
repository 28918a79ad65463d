package memstore

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// hit takes hits of a key under a fixed window of 10 requests that ends after the period, and
// returns the decision.
func hit(t *testing.T, s *Store, key string, period time.Duration, hits int64) algorithms.Decision {
	t.Helper()
	return take(t, s, key, algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 10, Period: period}, hits)
}

func take(t *testing.T, s *Store, key string, l algorithms.Limit, hits int64) algorithms.Decision {
	t.Helper()
	decisions := make([]algorithms.Decision, 1)
	if _, err := store.Take(t.Context(), s, []store.Charge{{Key: []byte(key), Limit: l, Hits: hits}}, decisions); err != nil {
		t.Fatal(err)
	}
	return decisions[0]
}

// placesOfNew returns the places that a key takes after its first hit.
func placesOfNew(a algorithms.Algorithm) int {
	if a == algorithms.SlidingWindowLog {
		return 1 + placesOf(16)
	}
	return 1
}

func TestTheBoundIsExact(t *testing.T) {
	for _, maxKeys := range []int{1, 2, 100, 5000} {
		inBubble(t, Options{MaxKeys: maxKeys}, func(t *testing.T, s *Store) {
			for i := range maxKeys {
				hit(t, s, fmt.Sprint("key ", i), time.Hour, 1)
			}
			if got := s.Stats(); got.Keys != maxKeys || got.Evicted != 0 {
				t.Errorf("after %d keys: %+v; want all of them", maxKeys, got)
			}
			for i := range maxKeys {
				hit(t, s, fmt.Sprint("another ", i), time.Hour, 1)
				if got := s.Stats().Keys; got != maxKeys {
					t.Fatalf("max_keys %d: the store has %d keys", maxKeys, got)
				}
			}
			if got := s.Stats().Evicted; got != uint64(maxKeys) {
				t.Errorf("max_keys %d: %d evicted; want one for each new key", maxKeys, got)
			}
		})
	}
}

// A shard chooses among samples, so the order is not exact. In the best order forgotten keys have
// used an eighth on average.
func TestKeysThatHaveUsedLittleAreForgottenFirst(t *testing.T) {
	const keys = 3000
	for _, a := range algorithms.RateAlgorithms() {
		inBubble(t, Options{MaxKeys: keys * placesOfNew(a), SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
			limit := func(i int) algorithms.Limit { // a key that has used a larger part is idle sooner
				return algorithms.Limit{Algorithm: a, Requests: 10_000, Period: 200*time.Hour - time.Duration(i)*time.Minute}
			}
			for i := range keys {
				take(t, s, fmt.Sprint("key ", i), limit(i), int64(i+1))
			}
			for n := range keys / 4 {
				take(t, s, fmt.Sprint("new ", n), limit(keys), keys+1)
			}
			if got := s.Stats(); got.Evicted != keys/4 {
				t.Fatalf("%v: %d evicted; want %d", a, got.Evicted, keys/4)
			}
			gone, used, late := 0, 0, 0
			for i := range keys {
				if take(t, s, fmt.Sprint("key ", i), limit(i), 0).Remaining < 10_000 {
					continue
				}
				gone, used = gone+1, used+i+1
				if i >= keys*3/4 {
					late++
				}
			}
			if mean := used / gone; mean > keys/4 || late > keys/4/50 {
				t.Errorf("%v: forgotten keys have used %d on average, and %d are of the quarter that has used most; want at most %d, and %d",
					a, mean, late, keys/4, keys/4/50)
			}
		})
	}
}

func TestADeniedKeyIsNeverForgottenForANewOne(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		for _, onFull := range []OnFull{Allow, Deny} {
			t.Run(fmt.Sprint(a, " on_full ", onFull), func(t *testing.T) {
				inBubble(t, Options{MaxKeys: 50 * placesOfNew(a), OnFull: onFull, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
					l := algorithms.Limit{Algorithm: a, Requests: 2, Period: time.Hour}
					for i := range 50 {
						take(t, s, fmt.Sprint("spent ", i), l, 2)
					}
					for i := range 200 {
						d := take(t, s, fmt.Sprint("new ", i), l, 1)
						if d.Allowed != (onFull == Allow) {
							t.Fatalf("a new key in a store full of denied ones: %+v", d)
						}
						if onFull == Deny && (d.RetryAfter <= 0 || d.RetryAfter > 2*time.Hour) {
							t.Fatalf("retry after %v; want until a key can be forgotten", d.RetryAfter)
						}
					}
					for i := range 50 {
						if d := take(t, s, fmt.Sprint("spent ", i), l, 1); d.Allowed {
							t.Fatalf("spent key %d passes again: it was forgotten", i)
						}
					}
					st := s.Stats()
					if got := st.FullAllowed + st.FullDenied; got != 200 || (st.FullAllowed > 0) != (onFull == Allow) {
						t.Errorf("stats %+v; want 200 decisions without room", st)
					}
					time.Sleep(2 * time.Hour) // every key can go now
					if d := take(t, s, "later", l, 2); !d.Allowed {
						t.Errorf("a new key after the denied ones' time: %+v", d)
					}
					if d := take(t, s, "later", l, 1); d.Allowed {
						t.Error("the new key was not remembered")
					}
				})
			})
		}
	}
}

func TestAKeyThatOpensCanBeForgottenAtOnce(t *testing.T) {
	inBubble(t, Options{MaxKeys: 2, OnFull: Deny, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
		l := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1, Period: time.Second, Extra: algorithms.Extra{Burst: 10}}
		take(t, s, "a", l, 10)
		take(t, s, "b", l, 10)
		d := take(t, s, "c", l, 1)
		if d.Allowed || d.RetryAfter != time.Second {
			t.Fatalf("with both denied: %+v; want a wait of a second, until one hit passes", d)
		}
		time.Sleep(d.RetryAfter - time.Nanosecond)
		if take(t, s, "c", l, 1).Allowed {
			t.Error("a nanosecond before a key opens there is room")
		}
		time.Sleep(time.Nanosecond)
		if !take(t, s, "c", l, 1).Allowed {
			t.Error("once a key opens there is no room")
		}
	})
}

func TestATransactionOfNewKeysFindsRoomForAll(t *testing.T) {
	inBubble(t, Options{MaxKeys: 100, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
		l := algorithms.Limit{Algorithm: algorithms.SlidingWindowLog, Requests: 5, Period: time.Hour}
		for n := range 30 {
			var charges []store.Charge
			for i := range 10 {
				l.Algorithm = algorithms.RateAlgorithms()[i%5]
				charges = append(charges, store.Charge{Key: fmt.Append(nil, n, i), Limit: l, Hits: 1, Rule: i})
			}
			if ok, err := store.Take(t.Context(), s, charges, make([]algorithms.Decision, 10)); !ok || err != nil {
				t.Fatalf("transaction %d: %v, %v", n, ok, err)
			}
			if got := s.Stats(); got.Places < min(97, 14*(n+1)) {
				t.Fatalf("after transaction %d there are %+v", n, got)
			}
			if err := s.checkPlaces(); err != nil {
				t.Fatalf("after transaction %d: %v", n, err)
			}
		}
	})
}

func TestTheSweepFreesWhatIsAsIfNeverUsed(t *testing.T) {
	keys := race.Scale(20_000)
	for _, a := range algorithms.RateAlgorithms() {
		inBubble(t, Options{SweepInterval: 10 * time.Second}, func(t *testing.T, s *Store) {
			l := algorithms.Limit{Algorithm: a, Requests: 5, Period: time.Minute}
			for i := range keys {
				take(t, s, fmt.Sprint("key ", i), l, 5)
			}
			if got := s.Stats().Keys; got != keys {
				t.Fatalf("%v: %d keys; want %d", a, got, keys)
			}
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			if got := s.Stats(); got.Keys != 0 || got.Places != 0 || got.Swept != uint64(keys) {
				t.Errorf("%v: after three minutes %+v; want none left", a, got)
			}
			for i := range s.shards {
				if n := len(s.shards[i].table.slots); n > 4*minHomes+tail {
					t.Fatalf("%v: an empty shard still has %d slots", a, n)
				}
			}
		})
	}
}

func TestAFloodOfNewKeysKeepsTheBoundUnderConcurrency(t *testing.T) {
	s, err := New(Options{MaxKeys: 500})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	spent := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1, Period: 1000 * time.Hour}
	for i := range 100 {
		take(t, s, fmt.Sprint("spent ", i), spent, 1)
	}
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			decisions := make([]algorithms.Decision, 2)
			for i := range race.Scale(3000) {
				l := algorithms.Limit{Algorithm: algorithms.RateAlgorithms()[i%5], Requests: 5, Period: time.Hour}
				charges := []store.Charge{
					{Key: fmt.Append(nil, "flood ", w, i), Limit: l, Hits: 1},
					{Key: fmt.Append(nil, "spent ", i%100), Limit: spent, Hits: 0, Rule: 1, Mode: store.Shadow},
				}
				if _, err := store.Take(t.Context(), s, charges[:1+i%2], decisions); err != nil {
					t.Error(err)
				}
				if places := s.Stats().Places; places > 500 {
					t.Errorf("%d places; want at most 500", places)
				}
			}
		})
	}
	all.Wait()
	for i := range 100 {
		if take(t, s, fmt.Sprint("spent ", i), spent, 1).Allowed {
			t.Errorf("spent key %d was forgotten in the flood", i)
		}
	}
	if err := s.checkPlaces(); err != nil {
		t.Error(err)
	}
}

// checkPlaces returns an error unless the places of all slots are the places that the store counts,
// and within its bound. No transaction may be under way.
func (s *Store) checkPlaces() error {
	keys, places := 0, 0
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for slot := range sh.table.each {
			keys++
			places += sh.placesLocked(slot)
		}
		sh.mu.Unlock()
	}
	if got := s.Stats(); got.Keys != keys || got.Places != places || places > got.MaxKeys {
		return fmt.Errorf("the store has %d keys in %d places; it counts %d in %d, and may have %d places", keys, places, got.Keys, got.Places, got.MaxKeys)
	}
	return nil
}

func TestOptionsOutOfBoundsAreAllReported(t *testing.T) {
	_, err := New(Options{MaxKeys: -1, OnFull: 7, SweepInterval: -time.Second})
	want := "max_keys: -1: must be between 1 and 2147483647\non_full: 7: must be allow or deny\nsweep interval: -1s: must be more than 0"
	if err == nil || err.Error() != want {
		t.Errorf("New = %v; want %s", err, want)
	}
}
