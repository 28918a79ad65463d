package memstore

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// heapBytes returns the bytes that objects take in the heap.
func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The bound of keys bounds their bytes, for each algorithm and for logs of any length.
func TestTheBoundHoldsForMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes memory of its own")
	}
	const maxKeys = 131_072 // 2048 of each shard
	for _, a := range algorithms.RateAlgorithms() {
		for _, instants := range []int{1, 2, 5, 16, 200} {
			if a.HasState() && instants > 1 {
				continue
			}
			t.Run(fmt.Sprint(a, " ", instants), func(t *testing.T) {
				inBubble(t, Options{MaxKeys: maxKeys, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
					before := heapBytes()
					l := algorithms.Limit{Algorithm: a, Requests: 1000, Period: time.Hour}
					for range instants {
						flood(t, s, 3*maxKeys/instants, 1, l)
						time.Sleep(time.Millisecond)
					}
					grown, most := heapBytes()-before, int64(maxKeys*placeBytes*11/10)
					st := s.Stats()
					t.Logf("%d keys in %d places: %.0f bytes a place, %.0f a key", st.Keys, st.Places, float64(grown)/float64(st.Places), float64(grown)/float64(st.Keys))
					if grown > most {
						t.Errorf("a store of %d places takes %d bytes; want at most %d", maxKeys, grown, most)
					}
				})
			})
		}
	}
}

// docs/algorithms-reference.md says 2.2 KB, and why.
func TestALogOfAHundredInstantsTakesAsManyBytesAsItsPage(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes memory of its own")
	}
	inBubble(t, Options{SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
		const keys = 5000
		before := heapBytes()
		for range 100 {
			flood(t, s, keys, 1, logLimit(100))
			time.Sleep(time.Millisecond)
		}
		if got := (heapBytes() - before) / keys; got < 2100 || got > 2300 {
			t.Errorf("a log takes %d bytes, want 2100 to 2300", got)
		}
	})
}

// logLimit is a limit under which few hits take several entries.
func logLimit(requests uint32) algorithms.Limit {
	return algorithms.Limit{Algorithm: algorithms.SlidingWindowLog, Requests: requests, Period: time.Hour}
}

func TestALogThatGrowsReplacesOtherKeysAndNeverItself(t *testing.T) {
	const maxKeys = 4096 // in 16 shards
	inBubble(t, Options{MaxKeys: maxKeys, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
		flood(t, s, 2*maxKeys, 50, algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 100, Period: 1000 * time.Hour})
		own := &s.shardOf(s.digest(&store.Charge{Key: []byte("log"), Limit: logLimit(1)})).table
		before := own.count
		const hits = 1000 // a small part of the limit, so that the log would be the first to go
		for i := range hits {
			d := take(t, s, "log", logLimit(100_000), 1)
			if want := uint64(100_000 - i - 1); d.Remaining != want {
				t.Fatalf("hit %d: %+v; want %d remaining", i, d, want)
			}
			if err := s.checkPlaces(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		want := maxKeys - placesOf(16*1024)
		if st := s.Stats(); st.Keys != want || st.FullJoined != 0 {
			t.Errorf("%+v; want %d other keys, and no hit that joined another", st, want)
		}
		if own.count < before/3 {
			t.Errorf("the shard of the log had %d keys, and has %d; want most places from other shards", before, own.count)
		}
	})
}

// Without room the newest hits of a log share an instant. So the log stays within its limit and the
// store within its bound.
func TestALogWithoutRoomNeverPassesItsLimit(t *testing.T) {
	for _, onFull := range []OnFull{Allow, Deny} {
		for _, together := range []bool{false, true} {
			inBubble(t, Options{MaxKeys: 100, OnFull: onFull, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
				l := logLimit(20)
				flood(t, s, 100-placesOfNew(l.Algorithm), 1, algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1, Period: 1000 * time.Hour})
				take(t, s, "log", l, 1)
				charges := []store.Charge{{Key: []byte("log"), Limit: l, Hits: 1, CountRejected: true}}
				if together {
					charges = append(charges, store.Charge{Key: []byte("other"), Limit: algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1 << 30, Period: time.Hour}, Rule: 1, Mode: store.Shadow})
				}
				decisions := make([]algorithms.Decision, len(charges))
				admitted := []time.Time{time.Now()}
				for range 4000 {
					time.Sleep(time.Minute)
					ok, err := store.Take(t.Context(), s, charges, decisions)
					if err != nil {
						t.Fatal(err)
					}
					if err := s.checkPlaces(); err != nil {
						t.Fatal(err)
					}
					if !ok {
						continue
					}
					admitted = append(admitted, time.Now())
					if n := len(admitted) - 1 - int(l.Requests); n >= 0 && time.Since(admitted[n]) < l.Period {
						t.Fatalf("%d hits passed in %v", l.Requests+1, time.Since(admitted[n]))
					}
				}
				if st := s.Stats(); st.FullJoined == 0 || st.Keys < 90 {
					t.Errorf("%+v; want a store of denied keys, and hits that joined others", st)
				}
				if len(admitted) < 100 {
					t.Errorf("%d hits passed in 4000 minutes; want at least 100", len(admitted))
				}
			})
		}
	}
}

func TestALogThatShrinksGivesPlacesBack(t *testing.T) {
	for _, l := range []algorithms.Limit{logLimit(1000), logLimit(3)} {
		inBubble(t, Options{SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
			for range 200 {
				take(t, s, "log", logLimit(1000), 1)
				time.Sleep(time.Millisecond)
			}
			if got, want := s.Stats().Places, 1+placesOf(16*256); got != want {
				t.Errorf("a log of 200 instants takes %d places; want %d", got, want)
			}
			time.Sleep(2 * time.Hour)
			take(t, s, "log", l, 1) // under another limit the hit takes the way of transactions
			if got, want := s.Stats().Places, 1+placesOf(16*2); got != want {
				t.Errorf("a log of one instant takes %d places; want %d", got, want)
			}
			if err := s.checkPlaces(); err != nil {
				t.Error(err)
			}
			if _, err := s.Reset(t.Context(), []store.Charge{{Key: []byte("log"), Limit: l}}); err != nil || s.Stats().Places != 0 {
				t.Errorf("after a reset: %d places, %v; want 0", s.Stats().Places, err)
			}
		})
	}
}

// A key that is larger than the whole store forgets no other key in vain.
func TestALogLargerThanTheStoreForgetsNoOtherKey(t *testing.T) {
	inBubble(t, Options{MaxKeys: 20, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
		for range 500 {
			take(t, s, "log", logLimit(1000), 1)
			time.Sleep(time.Millisecond)
		}
		if st := s.Stats(); st.FullJoined == 0 || st.Places > 20 {
			t.Errorf("the log alone: %+v", st)
		}
		evicted := s.Stats().Evicted
		for i := range 20 - s.Stats().Places {
			hit(t, s, fmt.Sprint("other ", i), time.Hour, 1)
		}
		for range 20 {
			take(t, s, "log", logLimit(1000), 1)
			time.Sleep(time.Millisecond)
		}
		if st := s.Stats(); st.Evicted != evicted || st.Places != 20 {
			t.Errorf("with other keys: %+v; want no further eviction", st)
		}
	})
	inBubble(t, Options{MaxKeys: 2}, func(t *testing.T, s *Store) {
		hit(t, s, "other", time.Hour, 1)
		take(t, s, "log", logLimit(1000), 1)
		if st := s.Stats(); st.Keys != 1 || st.Evicted != 0 || st.FullAllowed != 1 {
			t.Errorf("a new log that is larger than the store: %+v", st)
		}
	})
}

// A client that may send limits of its own must not free its key by a limit of 0.
func TestABanFreesNoDeniedKey(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		for _, countRejected := range []bool{false, true} {
			t.Run(fmt.Sprint(a, " count_rejected ", countRejected), func(t *testing.T) {
				inBubble(t, Options{MaxKeys: 100 * placesOfNew(a), SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
					l := algorithms.Limit{Algorithm: a, Requests: 10, Period: 1000 * time.Hour}
					ban := l
					ban.Requests = 0
					take(t, s, "denied", l, 10)
					charge := []store.Charge{{Key: []byte("denied"), Limit: ban, Hits: 1, CountRejected: countRejected}}
					decisions := make([]algorithms.Decision, 1)
					if _, err := store.Take(t.Context(), s, charge, decisions); err != nil || decisions[0].Allowed {
						t.Fatalf("under a limit of 0: %+v, %v", decisions[0], err)
					}
					flood(t, s, 1000, 1, l)
					if d := take(t, s, "denied", l, 1); d.Allowed {
						t.Errorf("the denied key is free again: %+v", d)
					}
				})
			})
		}
	}
}

// One request may grow many logs of the same shards at once, which must not forget each other.
func TestAThousandLogsThatGrowTogetherReplaceOtherKeys(t *testing.T) {
	race.Without(t)
	const logs, maxKeys = 1000, 131_072
	inBubble(t, Options{MaxKeys: maxKeys, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
		flood(t, s, maxKeys, 50, algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 100, Period: 1000 * time.Hour})
		charges, decisions := make([]store.Charge, logs), make([]algorithms.Decision, logs)
		for i := range charges {
			charges[i] = store.Charge{Key: fmt.Append(nil, "log ", i), Limit: logLimit(1000), Hits: 1, Rule: i}
		}
		for n := range 65 {
			ok, err := store.Take(t.Context(), s, charges, decisions)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			for i := range decisions {
				if want := uint64(1000 - n - 1); decisions[i].Remaining != want {
					t.Fatalf("hit %d of log %d: %+v; want %d remaining", n+1, i, decisions[i], want)
				}
			}
			time.Sleep(time.Millisecond)
		}
		st := s.Stats()
		if want := maxKeys - logs*placesOf(16*128); st.Keys != want || st.Evicted != uint64(maxKeys+logs-want) || st.FullJoined != 0 {
			t.Errorf("%+v; want %d keys", st, want)
		}
		if each := float64(s.seen()) / float64(st.Evicted); each > 12 {
			t.Errorf("looked at %.1f keys to forget one; want at most 12", each)
		}
		if err := s.checkPlaces(); err != nil {
			t.Error(err)
		}
	})
}
