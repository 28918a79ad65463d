package memstore

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// stepping is a wall clock that a test sets forward and back.
type stepping struct{ by atomic.Int64 }

func (w *stepping) nanoseconds(t time.Time) int64 { return t.UnixNano() + w.by.Load() }

// step sets the clock, and waits until the store looks at the clock.
func (w *stepping) step(s *Store, by time.Duration) {
	w.by.Add(int64(by))
	s.followWallClock()
}

// inSteppingBubble runs a test on a fresh store whose wall clock the test sets.
func inSteppingBubble(t *testing.T, o Options, test func(t *testing.T, s *Store, w *stepping)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := new(stepping)
		s, err := open(o, w.nanoseconds)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		test(t, s, w)
	})
}

// The sweep notices a step by itself, within 100 ms with the default interval.
func TestWindowsAreAlignedAgainAfterAStepOfTheClock(t *testing.T) {
	for _, by := range []time.Duration{37 * time.Second, -37 * time.Second, 90 * time.Minute, -48 * time.Hour, 200 * time.Millisecond} {
		for _, a := range []algorithms.Algorithm{algorithms.FixedWindow, algorithms.SlidingWindowCounter} {
			t.Run(fmt.Sprint(by, "/", a), func(t *testing.T) {
				inSteppingBubble(t, Options{}, func(t *testing.T, s *Store, w *stepping) {
					limit := algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Minute}
					time.Sleep(10 * time.Second) // 10 s into a window
					take(t, s, "key", limit, 11)
					for range 10 {
						take(t, s, "key", limit, 1)
					}
					w.by.Add(int64(by))
					time.Sleep(time.Second)
					if d := take(t, s, "key", limit, 1); d.Allowed {
						t.Errorf("a second after the step: got %+v, want denied", d)
					}
					time.Sleep(4 * time.Minute)
					d := take(t, s, "key", limit, 1)
					wall := time.Now().Add(by)
					end := wall.Truncate(time.Minute).Add(time.Minute)
					if a == algorithms.SlidingWindowCounter {
						end = end.Add(time.Minute) // the count matters for one window more
					}
					if want := end.Sub(wall); !d.Allowed || d.ResetAfter != want {
						t.Errorf("at %v by the wall clock: got %+v, want allowed and a reset in %v", wall, d, want)
					}
				})
			})
		}
	}
}

func TestAClientThatWaitsAsLongAsItIsToldPassesAlsoAfterTheClockWentBack(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		for _, by := range []time.Duration{-150 * time.Millisecond, -7 * time.Second, -37 * time.Second, -90 * time.Minute, -48 * time.Hour} {
			t.Run(fmt.Sprint(by, "/", a), func(t *testing.T) {
				inSteppingBubble(t, Options{}, func(t *testing.T, s *Store, w *stepping) {
					limit := algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Minute}
					time.Sleep(61 * time.Second) // a step goes back over the start of the window
					take(t, s, "key", limit, 10)
					w.step(s, by)
					d := take(t, s, "key", limit, 3)
					if d.Allowed || d.RetryAfter <= 0 {
						t.Fatalf("after the step: got %+v, want denied", d)
					}
					time.Sleep(d.RetryAfter - 1)
					if early := take(t, s, "key", limit, 3); early.Allowed || early.RetryAfter != 1 {
						t.Errorf("a nanosecond before the end of the wait of %v: got %+v, want denied for a nanosecond", d.RetryAfter, early)
					}
					time.Sleep(time.Nanosecond)
					if late := take(t, s, "key", limit, 3); !late.Allowed {
						t.Errorf("after the wait of %v: got %+v, want allowed", d.RetryAfter, late)
					}
				})
			})
		}
	}
}

func TestAStepOfTheClockIsLoggedOnceWithItsSize(t *testing.T) {
	var log bytes.Buffer
	inSteppingBubble(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, s *Store, w *stepping) {
		take(t, s, "key", benchLimitsOne(), 1)
		w.by.Add(int64(minStep - 1))
		time.Sleep(time.Minute)
		if log.Len() > 0 || s.Stats().ClockSteps != 0 {
			t.Errorf("less than %v: got the log %q", minStep, &log)
		}
		w.by.Add(int64(90*time.Second - minStep + 1))
		time.Sleep(time.Minute)
	})
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, "step=1m30s") {
		t.Errorf("got the log %q, want one line with step=1m30s at WARN", got)
	}
}

// Buckets and logs decide under a stepping clock as under a steady one.
func TestStepsOfTheClockChangeNoDecisionWithoutWindows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		inSteppingBubble(t, Options{SweepInterval: never}, func(t *testing.T, stepped *Store, w *stepping) {
			steady, err := New(Options{SweepInterval: never})
			if err != nil {
				t.Fatal(err)
			}
			defer steady.Close()
			for range rapid.IntRange(1, 30).Draw(rt, "charges") {
				if rapid.IntRange(0, 3).Draw(rt, "steps") == 0 {
					w.step(stepped, time.Duration(rapid.Int64Range(-int64(100*time.Hour), int64(100*time.Hour)).Draw(rt, "step")))
				}
				time.Sleep(rapid.SampledFrom([]time.Duration{0, 1, time.Second, time.Minute, time.Hour}).Draw(rt, "wait"))
				charges := drawCharges(rt)
				for i := range charges {
					a := &charges[i].Limit
					if p := a.Algorithm.Plain(); p == algorithms.FixedWindow || p == algorithms.SlidingWindowCounter {
						a.Algorithm, a.Calendar = algorithms.TokenBucket, nil
					}
				}
				want, got := make([]algorithms.Decision, len(charges)), make([]algorithms.Decision, len(charges))
				_, _ = store.Take(t.Context(), steady, charges, want)
				_, _ = store.Take(t.Context(), stepped, charges, got)
				for i := range want {
					if got[i] != want[i] {
						rt.Fatalf("%+v: got %+v, without steps %+v", charges[i], got[i], want[i])
					}
				}
			}
		})
	})
}

// Between the step and a shard's turn, a charge finds the shard as it was before the step.
func TestAShardFollowsTheClockBeforeItsNextCharge(t *testing.T) {
	for _, charges := range []int{1, 20} {
		inSteppingBubble(t, Options{SweepInterval: never}, func(t *testing.T, s *Store, w *stepping) {
			limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 10, Period: time.Minute}
			all := make([]store.Charge, charges)
			for i := range all {
				all[i] = store.Charge{Key: fmt.Append(nil, i), Limit: limit, Hits: 10, Rule: i}
			}
			decisions := make([]algorithms.Decision, charges)
			if admitted, _ := store.Take(t.Context(), s, all, decisions); !admitted {
				t.Fatalf("%d empty keys: got %+v, want admitted", charges, decisions)
			}
			next := *s.clock.Load()
			next.epoch += int64(90 * time.Second)
			s.clock.Store(&next)
			_, _ = store.Take(t.Context(), s, all, decisions)
			for i, d := range decisions {
				if d.Allowed || d.ResetAfter != 30*time.Second {
					t.Errorf("key %d of %d: got %+v, want denied for 30s", i, charges, d)
				}
			}
		})
	}
}

// Transactions over several shards go on while the clock steps. Both keys of each transaction have
// one limit, so both counts stay alike: a transaction that saw two clocks would count in two
// windows.
func TestTransactionsSeeOneClock(t *testing.T) {
	w := new(stepping)
	s, err := open(Options{SweepInterval: time.Hour}, w.nanoseconds)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const pairs, rounds = 8, 300
	limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1 << 30, Period: 10 * time.Second}
	charges := func(pair int, hits int64) []store.Charge {
		return []store.Charge{
			{Key: fmt.Append(nil, "a", pair), Limit: limit, Hits: hits, Rule: 0},
			{Key: fmt.Append(nil, "b", pair), Limit: limit, Hits: hits, Rule: 1},
		}
	}
	done := make(chan struct{})
	var stepper, takers sync.WaitGroup
	stepper.Go(func() {
		for by := 3 * time.Second; ; by = -by - by/7 {
			select {
			case <-done:
				return
			default:
				w.step(s, by%time.Hour)
			}
		}
	})
	for worker := range 2 {
		takers.Go(func() {
			decisions := make([]algorithms.Decision, 2)
			for i := 0; i < rounds || s.Stats().ClockSteps == 0; i++ {
				pair := (i + worker) % pairs
				_, _ = store.Take(t.Context(), s, charges(pair, 1), decisions)
				if decisions[0].Remaining != decisions[1].Remaining || decisions[0].ResetAfter != decisions[1].ResetAfter {
					t.Errorf("pair %d: got %+v and %+v, want the same", pair, decisions[0], decisions[1])
					return
				}
			}
		})
	}
	takers.Wait()
	close(done)
	stepper.Wait()
	if s.Stats().ClockSteps == 0 {
		t.Error("the clock has not stepped")
	}
}

// A store beside Redis ends its windows with the windows of Redis.
func TestWindowsEndByTheGivenClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		ahead.Store(int64(20 * time.Second))
		clock := func() algorithms.Instant { return algorithms.Instant(time.Now().UnixNano() + ahead.Load()) }
		s, err := New(Options{Now: clock})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 10, Period: time.Minute}
		if got, want := take(t, s, "key", limit, 1).ResetAfter, 40*time.Second; got != want {
			t.Errorf("got a window that ends after %v, want %v", got, want)
		}
		ahead.Store(int64(30 * time.Second))
		time.Sleep(10 * time.Second)
		if got, want := take(t, s, "key", limit, 1).ResetAfter, 20*time.Second; got != want {
			t.Errorf("after a step: got a window that ends after %v, want %v", got, want)
		}
	})
}
