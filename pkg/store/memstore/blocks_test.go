package memstore

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func escalationLimit(offenses uint32) algorithms.Limit {
	return algorithms.Escalate{Offenses: offenses, Within: 10 * time.Minute, Forget: 48 * time.Hour, Period: time.Minute, Windows: true}.Limit()
}

// offend tells an offense for a block of so many seconds, and returns the decision.
func offend(t *testing.T, s *Store, key []byte, l algorithms.Limit, seconds int64) algorithms.Decision {
	t.Helper()
	var d [1]algorithms.Decision
	s.TakeNow([]store.Charge{{Key: key, Limit: l, Hits: seconds, Mode: store.Shadow, CountRejected: true}}, d[:])
	return d[0]
}

// blockOf returns the wait until the end of the block of a key, 0 for none.
func blockOf(t *testing.T, s *Store, key []byte, l algorithms.Limit) time.Duration {
	t.Helper()
	var d [1]algorithms.Decision
	must.Do(t, s.Peek(t.Context(), []store.Charge{{Key: key, Limit: l}}, d[:]))
	return d[0].RetryAfter
}

func TestAMillionOffendersTakeNoPlaceAndFreeNobody(t *testing.T) {
	for name, seconds := range map[string]int64{"that are not blocked": 0, "that are blocked for less time": 3600} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := must.Get(New(Options{MaxKeys: 1000, SweepInterval: never}))(t)
				defer s.Close()
				take(t, s, "count", algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 10, Period: 24 * time.Hour}, 3)
				block, offenses := escalationLimit(1), uint32(1)
				if seconds == 0 {
					offenses, seconds = 3, 60
				}
				for i := range 1000 {
					offend(t, s, fmt.Append(nil, "blocked", i), block, 24*3600)
				}
				l, key := escalationLimit(offenses), []byte("abuser..")
				n, most := 1_000_000, uint64(250<<20)
				if race.Enabled {
					n = 200_000
				}
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				for i := range n {
					if i%1000 == 0 {
						time.Sleep(time.Second)
					}
					binary.LittleEndian.PutUint64(key, uint64(i))
					offend(t, s, key, l, seconds)
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > int64(most) {
					t.Errorf("%d offenders take %d MiB", n, grown>>20)
				}
				st := s.Stats()
				if st.Keys != 1 || st.Evicted != 0 || st.Offenders > MaxBlocks || st.Offenders < MaxBlocks*9/10 || st.OffendersForced == 0 {
					t.Errorf("got %+v", st)
				}
				for i := range 1000 {
					if blockOf(t, s, fmt.Append(nil, "blocked", i), block) < 20*time.Hour {
						t.Fatalf("blocked key %d is free", i)
					}
				}
			})
		})
	}
}

func TestABlockEndsAtItsInstantWhateverTheWallClockDoes(t *testing.T) {
	for _, by := range []time.Duration{37 * time.Second, -37 * time.Second, 50 * time.Hour, -50 * time.Hour} {
		t.Run(fmt.Sprint(by), func(t *testing.T) {
			inSteppingBubble(t, Options{}, func(t *testing.T, s *Store, w *stepping) {
				l, key := escalationLimit(1), []byte("a")
				offend(t, s, key, l, 3600)
				time.Sleep(10 * time.Minute)
				w.step(s, by)
				if got := blockOf(t, s, key, l); got != 50*time.Minute {
					t.Errorf("after the step the block lasts %v, want 50m", got)
				}
				w.step(s, -2*by)
				time.Sleep(50*time.Minute - 1)
				if got := blockOf(t, s, key, l); got != 1 {
					t.Errorf("1 ns before its end the block lasts %v", got)
				}
				time.Sleep(time.Nanosecond)
				if got := blockOf(t, s, key, l); got != 0 {
					t.Errorf("at its end the block lasts %v", got)
				}
			})
		})
	}
}

func TestBlocksAndOffensesOutliveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := escalationLimit(3)
		s := savable(t, Options{SweepInterval: never})
		defer func() { s.Close() }()
		restart := func(away time.Duration) {
			snapshot := save(t, s)
			s.Close()
			time.Sleep(away)
			s, _ = restored(t, Options{SweepInterval: never}, snapshot)
		}
		key := []byte("a")
		for n, block := range []time.Duration{time.Minute, 10 * time.Minute, time.Hour, 24 * time.Hour, 24 * time.Hour} {
			for i := range 3 {
				time.Sleep(time.Minute)
				if d := offend(t, s, key, l, int64(block/time.Second)); d.Allowed != (i < 2) || i == 2 && d.RetryAfter != block {
					t.Fatalf("block %d, offense %d: got %+v", n, i, d)
				}
				restart(time.Second)
			}
			restart(block - 5*time.Second)
			if got := blockOf(t, s, key, l); got != 4*time.Second {
				t.Fatalf("block %d: %v are left, want 4s", n, got)
			}
			time.Sleep(4 * time.Second)
			if got := blockOf(t, s, key, l); got != 0 {
				t.Fatalf("block %d: %v are left, want none", n, got)
			}
		}
		restart(48 * time.Hour)
		if got := s.Stats(); got.Offenders != 0 {
			t.Errorf("forgotten offenders were read: %+v", got)
		}
	})
}

func TestASnapshotWithBlocksIsReadByTheClockThatWentBack(t *testing.T) {
	inSteppingBubble(t, Options{SweepInterval: never, Savable: true}, func(t *testing.T, s *Store, w *stepping) {
		l, key := escalationLimit(1), []byte("a")
		w.step(s, 5*time.Hour)
		offend(t, s, key, l, 3600)
		snapshot := save(t, s)
		r, loaded := restored(t, Options{SweepInterval: never}, snapshot) // by a clock 5 hours before
		defer r.Close()
		if got := blockOf(t, r, key, l); loaded.Keys != 1 || got != time.Hour {
			t.Errorf("got %+v, and a block of %v; want 1h", loaded, got)
		}
	})
}

func BenchmarkABlockedKey(b *testing.B) {
	s := must.Get(New(Options{}))(b)
	defer s.Close()
	l := escalationLimit(1)
	var d [2]algorithms.Decision
	key := []byte("a")
	s.TakeNow([]store.Charge{{Key: key, Hash: store.HashOf(key), Limit: l, Hits: 1000000, Mode: store.Shadow, CountRejected: true}}, d[:1])
	charges := []store.Charge{
		{Key: []byte("main"), Hash: store.HashOf([]byte("main")), Hits: 1, Limit: algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 10, Period: time.Minute}},
		{Key: key, Hash: store.HashOf(key), Limit: l, Exact: true},
	}
	b.ReportAllocs()
	for b.Loop() {
		s.TakeNow(charges, d[:])
	}
}
