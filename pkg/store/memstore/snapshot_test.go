package memstore

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// savable returns a store that can be saved.
func savable(t failer, o Options) *Store {
	t.Helper()
	o.Savable = true
	s, err := New(o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return s
}

// failer is the part of a test that both testing and rapid have.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func save(t failer, s *Store, beside ...[]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := s.Save(&b, beside...); err != nil {
		t.Fatalf("Save: %v", err)
	}
	return b.Bytes()
}

// restored returns a store with the states of a snapshot.
func restored(t failer, o Options, snapshot []byte) (*Store, Loaded) {
	t.Helper()
	s := savable(t, o)
	loaded, err := s.Load(bytes.NewReader(snapshot))
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return s, loaded
}

// drawCharges draws a transaction over few keys, so that they are charged again and again.
func drawCharges(rt *rapid.T) []store.Charge {
	charges := make([]store.Charge, rapid.IntRange(1, 4).Draw(rt, "charges"))
	for i := range charges {
		a := rapid.SampledFrom(append(algorithms.Algorithms(), algorithms.CalendarAlgorithms()...)).Draw(rt, "algorithm")
		l := algorithms.Limit{
			Algorithm: a,
			Requests:  rapid.SampledFrom([]uint32{1, 3, 10, 100, 0, 1 << 31}).Draw(rt, "requests"),
			Period:    rapid.SampledFrom([]time.Duration{time.Second, 7 * time.Second, time.Minute, 24 * time.Hour}).Draw(rt, "period"),
		}
		if a.HasWindows() && l.Requests == 1<<31 {
			l.SetPerPeriod(rapid.SampledFrom([]uint64{1 << 31, 1 << 32, 250_000_000_000, algorithms.MaxCount}).Draw(rt, "large"))
		}
		if a == algorithms.TokenBucket && l.Requests > 0 {
			l.Burst = rapid.SampledFrom([]uint32{0, 1, 50}).Draw(rt, "burst")
		}
		if a.HasCalendar() {
			l.Calendar, _ = algorithms.NewCalendar(rapid.SampledFrom([]algorithms.CalendarSpec{
				{},
				{Unit: algorithms.CalendarDay, Count: 1},
				{Unit: algorithms.CalendarMonth, Count: 1, Day: 31},
				{Unit: algorithms.CalendarDay, Count: 1, FirstHit: true},
			}).Draw(rt, "calendar")) // an empty description makes none
		}
		if a == algorithms.TokenBucketInteger {
			l.Requests = min(l.Requests, uint32(min(int64(l.Period), 1<<31)))
		}
		charges[i] = store.Charge{
			Key:           fmt.Append(nil, "key", rapid.IntRange(0, 5).Draw(rt, "key")),
			Limit:         l,
			Hits:          rapid.SampledFrom([]int64{1, 1, 2, 7, 0, -1, -100, 1 << 31}).Draw(rt, "hits"),
			Rule:          i,
			CountRejected: rapid.Bool().Draw(rt, "count rejected"),
		}
		if a == algorithms.Concurrency {
			charges[i].Limit.Period = 0
		}
		if a == algorithms.Concurrency || rapid.Bool().Draw(rt, "held") {
			charges[i].Hold = &store.Hold{
				Phase:  rapid.SampledFrom([]algorithms.HoldPhase{1, 1, 1, 2, 2, 3, 4, 6, 6, 6}).Draw(rt, "phase"),
				Holder: holderOf(rapid.IntRange(0, 3).Draw(rt, "holder")),
				AtMost: rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 24 * time.Hour}).Draw(rt, "at most"),

				Estimate:  rapid.Uint32Range(0, 3).Draw(rt, "estimate"),
				GivesBack: rapid.Bool().Draw(rt, "gives back"),
			}
		}
	}
	return charges
}

// A restarted store decides as one that was not restarted, after any history and any time between.
func TestARestoredStoreDecidesAsTheSavedOne(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			s := savable(rt, Options{SweepInterval: never}) // time flies here
			defer s.Close()
			wait := func(what string) {
				time.Sleep(rapid.SampledFrom([]time.Duration{
					0, 1, time.Millisecond, 300 * time.Millisecond, time.Second, 11 * time.Second, time.Minute, 25 * time.Hour,
				}).Draw(rt, what))
			}
			take := func(s *Store, charges []store.Charge) []algorithms.Decision {
				decisions := make([]algorithms.Decision, len(charges))
				if _, err := store.Take(t.Context(), s, charges, decisions); err != nil {
					rt.Fatalf("Take: %v", err)
				}
				return decisions
			}
			for range rapid.IntRange(0, 40).Draw(rt, "history") {
				wait("wait")
				take(s, drawCharges(rt))
			}
			snapshot := save(rt, s)
			wait("between")
			r, loaded := restored(rt, Options{
				MaxKeys: rapid.SampledFrom([]int{1000, 5_000_000}).Draw(rt, "max keys"), SweepInterval: never,
			}, snapshot)
			defer r.Close()
			if loaded.NoRoom != 0 {
				rt.Fatalf("Load forgot keys: %+v", loaded)
			}
			for _, of := range []*Store{s, r} {
				if err := errors.Join(of.checkPlaces(), of.checkHolders()); err != nil {
					rt.Fatalf("%v", err)
				}
			}
			for range rapid.IntRange(1, 20).Draw(rt, "after") {
				charges := drawCharges(rt)
				again := model.Copy(charges)
				want := take(s, charges)
				got := take(r, again)
				if diff := cmp.Diff(want, got) + cmp.Diff(holdsOf(charges), holdsOf(again)) +
					cmp.Diff(model.PhasesOf(charges), model.PhasesOf(again)); diff != "" {
					rt.Fatalf("%+v: (-not restarted +restarted)\n%s", charges, diff)
				}
				wait("wait after")
			}
		})
	})
}

// holdsOf returns the holds that the charges have found.
func holdsOf(charges []store.Charge) (was []algorithms.Hold) {
	for i := range charges {
		if charges[i].Hold != nil {
			was = append(was, charges[i].Hold.Was)
		}
	}
	return was
}

// A restart frees no denied key: the hits that were last denied come along.
func TestASnapshotKeepsTheDeniedHits(t *testing.T) {
	inBubble(t, Options{Savable: true}, func(t *testing.T, s *Store) {
		for _, a := range algorithms.RateAlgorithms() {
			limit := algorithms.Limit{Algorithm: a, Requests: 100, Period: time.Hour}
			for range 15 {
				take(t, s, "spent", limit, 7)
			}
		}
		r, _ := restored(t, Options{}, save(t, s))
		defer r.Close()
		want, got := deniedOf(s), deniedOf(r)
		if len(got) != len(algorithms.RateAlgorithms()) || !cmp.Equal(want, got) {
			t.Errorf("denied hits after the restart: got %v, want %v", got, want)
		}
	})
}

// deniedOf returns the denied hits of all keys.
func deniedOf(s *Store) map[digest]deniedHits {
	all := make(map[digest]deniedHits)
	for i := range s.shards {
		for _, slot := range s.shards[i].table.slots {
			if !slot.empty() {
				all[slot.key()] = slot.denied()
			}
		}
	}
	return all
}

// The clock of the machine was ahead at the stop, by any time. Then no time counts as passed, and
// nobody waits longer than before.
func TestAClockThatWentBackBeforeTheStartStarvesNobody(t *testing.T) {
	for _, back := range []time.Duration{time.Second, time.Hour, 400 * 24 * time.Hour} {
		for _, a := range algorithms.RateAlgorithms() {
			t.Run(fmt.Sprint(back, "/", a), func(t *testing.T) {
				limit := algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Minute}
				var snapshot []byte
				synctest.Test(t, func(t *testing.T) {
					time.Sleep(back + 7*time.Second)
					s := savable(t, Options{})
					defer s.Close()
					for range 11 {
						take(t, s, "key", limit, 1)
					}
					snapshot = save(t, s)
				})
				synctest.Test(t, func(t *testing.T) { // starts at midnight 2000-01-01 again
					time.Sleep(7 * time.Second)
					r, loaded := restored(t, Options{}, snapshot)
					defer r.Close()
					if loaded.Keys != 1 {
						t.Fatalf("Load: got %+v, want 1 key", loaded)
					}
					d := take(t, r, "key", limit, 1)
					if d.Allowed {
						t.Fatalf("at once after the start: got %+v, want denied", d)
					}
					if d.ResetAfter > 2*limit.Period {
						t.Errorf("at once after the start: reset in %v, want at most two periods", d.ResetAfter)
					}
					time.Sleep(2 * limit.Period)
					if d := take(t, r, "key", limit, 10); !d.Allowed {
						t.Errorf("two periods later: got %+v, want allowed", d)
					}
				})
			})
		}
	}
}

func TestIdleKeysAreNotRead(t *testing.T) {
	inBubble(t, Options{Savable: true}, func(t *testing.T, s *Store) {
		for _, a := range algorithms.RateAlgorithms() {
			take(t, s, "short", algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Second}, 1)
			take(t, s, "long", algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Hour}, 10)
		}
		snapshot := save(t, s)
		time.Sleep(3 * time.Second)
		r, loaded := restored(t, Options{}, snapshot)
		defer r.Close()
		if n := len(algorithms.RateAlgorithms()); loaded.Keys != n || loaded.Idle != n || r.Stats().Keys != n {
			t.Errorf("got %+v and %d keys, want %d keys and as many idle ones", loaded, r.Stats().Keys, n)
		}
	})
}

// A log of more entries than a record has goes through several records.
func TestALongLogIsSaved(t *testing.T) {
	inBubble(t, Options{Savable: true}, func(t *testing.T, s *Store) {
		limit := algorithms.Limit{Algorithm: algorithms.SlidingWindowLog, Requests: 3*maxRecord + 5, Period: time.Hour}
		for range limit.Requests {
			take(t, s, "long", limit, 1)
			time.Sleep(time.Microsecond)
		}
		r, _ := restored(t, Options{}, save(t, s))
		defer r.Close()
		want, got := take(t, s, "long", limit, 1000), take(t, r, "long", limit, 1000)
		if want.Allowed || got != want {
			t.Errorf("after the restart: got %+v, want %+v", got, want)
		}
	})
}

// Decisions go on while a snapshot is written, and each of its keys has a state between the one
// before and the one after.
func TestASnapshotWhileDecisionsGoOn(t *testing.T) {
	s := savable(t, Options{})
	defer s.Close()
	const keys = 2000
	limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1 << 20, Period: 3000 * 24 * time.Hour}
	log := algorithms.Limit{Algorithm: algorithms.SlidingWindowLog, Requests: 100_000, Period: 3000 * 24 * time.Hour}
	hit := func(s *Store, key int, hits int64) [2]uint64 {
		var left [2]uint64
		for i, l := range []algorithms.Limit{limit, log} {
			var d algorithms.Decision
			s.takeOne(&store.Charge{Key: fmt.Append(nil, key), Limit: l, Hits: hits}, &d)
			left[i] = d.Remaining
		}
		return left
	}
	var before [keys][2]uint64
	for i := range before {
		before[i] = hit(s, i, 1)
	}
	done := make(chan struct{})
	var hitting sync.WaitGroup
	for worker := range 2 {
		hitting.Go(func() {
			for i := worker; ; i = (i + 7) % keys {
				select {
				case <-done:
					return
				default:
					hit(s, i, 1)
				}
			}
		})
	}
	var last []byte
	for range 5 {
		last = save(t, s)
	}
	close(done)
	hitting.Wait()
	r, loaded := restored(t, Options{}, last)
	defer r.Close()
	if loaded.Keys != 2*keys {
		t.Fatalf("Load: got %+v, want %d keys", loaded, 2*keys)
	}
	for i := range before {
		after, got := hit(s, i, 0), hit(r, i, 0)
		for j := range got {
			if got[j] > before[i][j] || got[j] < after[j] {
				t.Fatalf("key %d has %d left after the restart, want %d to %d", i, got[j], after[j], before[i][j])
			}
		}
	}
}
