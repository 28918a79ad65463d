package memstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// seen returns how many keys the shards have looked at to make room.
func (s *Store) seen() (n uint64) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += sh.candidates.seen
		sh.mu.Unlock()
	}
	return n
}

func TestAFloodLooksAtFewKeysForEachNewOne(t *testing.T) {
	race.Without(t)
	const maxKeys = 8192
	for _, a := range algorithms.RateAlgorithms() {
		for _, denied := range []int{0, maxKeys / 2, maxKeys * 63 / 64} {
			t.Run(fmt.Sprint(a, " ", denied, " denied"), func(t *testing.T) {
				inBubble(t, Options{MaxKeys: maxKeys * placesOfNew(a), SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
					l := algorithms.Limit{Algorithm: a, Requests: 100, Period: time.Hour}
					for i := range denied {
						take(t, s, fmt.Sprint("denied ", i), l, 100)
					}
					flood(t, s, maxKeys+race.Scale(20_000), 1, l)
					seen := s.seen()
					each := float64(seen) / float64(s.Stats().Evicted)
					t.Logf("%.1f for each of %d", each, s.Stats().Evicted)
					if limit := float64(2*sample + 4); each > limit && denied < maxKeys*9/10 || each > 4*limit {
						t.Errorf("looked at %.1f keys for each new one; want at most %.0f, and 4 times that among denied keys", each, limit)
					}
				})
			})
		}
	}
}

func TestAFloodIntoAStoreOfDeniedKeysLooksAtThemOnce(t *testing.T) {
	race.Without(t)
	const maxKeys = 4096
	for _, a := range algorithms.RateAlgorithms() {
		inBubble(t, Options{MaxKeys: maxKeys * placesOfNew(a), OnFull: Deny, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
			l := algorithms.Limit{Algorithm: a, Requests: 1, Period: time.Hour}
			flood(t, s, maxKeys, 1, l)
			flood(t, s, 10*maxKeys, 1, l)
			seen := s.seen()
			if got := s.Stats(); got.FullDenied != 9*maxKeys || seen > 2*maxKeys {
				t.Errorf("%v: looked at %d keys: %+v; want at most %d, and no room", a, seen, got, 2*maxKeys)
			}
		})
	}
}

// The first new key after the others were denied must not wait until the store has looked at a
// million keys.
func TestADecisionLooksAtAPartOfAStoreOfDeniedKeys(t *testing.T) {
	const maxKeys = 65_536
	inBubble(t, Options{MaxKeys: maxKeys, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
		l := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1, Period: time.Hour}
		flood(t, s, maxKeys-1, 1, l)
		take(t, s, "may go", algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 2, Period: time.Hour}, 1)
		shard := 2 * maxKeys / len(s.shards)
		requests := 0
		for s.Stats().Evicted == 0 && requests < maxKeys {
			before := s.seen()
			take(t, s, fmt.Sprint("new ", requests), l, 1)
			if looks := int(s.seen() - before); looks > maxSurveyed+2*shard+len(s.shards)*(listed+sample) {
				t.Errorf("request %d looked at %d keys; want about %d", requests, looks, maxSurveyed)
			}
			requests++
		}
		if most := maxKeys/maxSurveyed + 1; requests > most {
			t.Errorf("%d requests found the key that may go; want at most %d", requests, most)
		}
	})
}

// Keys of one request per period open one after the other, and each makes room for one new key,
// which is denied at once.
func TestAFloodOfKeysThatOpenInTurnLooksAtFewOfThem(t *testing.T) {
	const maxKeys = 4096
	inBubble(t, Options{MaxKeys: maxKeys, OnFull: Deny, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
		l := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1, Period: maxKeys * time.Millisecond}
		remembered := 0
		for i := range 4 * maxKeys {
			if take(t, s, fmt.Sprint("key ", i), l, 1).Allowed {
				remembered++
			}
			time.Sleep(time.Millisecond)
		}
		seen := s.seen()
		each := float64(seen) / float64(s.Stats().Evicted)
		t.Logf("%d of %d found room, %.1f looks for each", remembered, 4*maxKeys, each)
		if remembered < 4*maxKeys*9/10 || each > 40 {
			t.Errorf("%d of %d keys found room, and looked at %.1f keys each; want 9 in 10, and at most 40", remembered, 4*maxKeys, each)
		}
	})
}

// A shard numbers limits with 16 bits. So many keys in one shard do not come by chance.
func TestAFloodOfLimitsInOneShardNeverWrapsTheirNumbers(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine makes the keys, and the race detector makes that slow")
	}
	for _, denied := range []bool{true, false} {
		inBubble(t, Options{MaxKeys: 131_072, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
			const more = 3000
			limit := func(i int) algorithms.Limit {
				return algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: uint32(2 + i), Period: time.Hour}
			}
			hits := func(i int) int64 {
				if denied {
					return int64(2 + i)
				}
				return 1
			}
			var keys [][]byte
			for i := 0; len(keys) < maxShardKeys+more; i++ {
				key := fmt.Append(nil, "key ", i)
				if s.shardNumber(s.digest(&store.Charge{Key: key, Limit: limit(0)})) == 0 {
					keys = append(keys, key)
				}
			}
			for i, key := range keys[:maxShardKeys+more-2] {
				take(t, s, string(key), limit(i), hits(i))
			}
			charges := make([]store.Charge, 2)
			for i := range charges {
				n := len(keys) - 1 - i
				charges[i] = store.Charge{Key: keys[n], Limit: limit(n), Hits: hits(n), Rule: i}
			}
			if ok, err := store.Take(t.Context(), s, charges, make([]algorithms.Decision, 2)); !ok || err != nil {
				t.Errorf("a transaction of two new keys: %v, %v", ok, err)
			}
			want := Stats{Keys: maxShardKeys, Places: maxShardKeys, MaxKeys: 131_072, Evicted: more, MaxHolds: DefaultMaxHolds}
			if denied {
				want.Evicted, want.FullAllowed = 0, more
			}
			if got := s.Stats(); got != want {
				t.Errorf("denied %v: %+v; want %+v", denied, got, want)
			}
			for i := range maxShardKeys / 2 { // each changes its limit
				l := limit(i)
				l.Requests += 1 << 20
				take(t, s, string(keys[i]), l, 0)
			}
			free := 0
			for i := range maxShardKeys / 2 {
				l := limit(i)
				l.Requests += 1 << 20
				if d := take(t, s, string(keys[i]), l, 1); denied && d.Allowed {
					free++
				}
			}
			if free > 0 {
				t.Errorf("%d of %d denied keys are free", free, maxShardKeys/2)
			}
		})
	}
}
