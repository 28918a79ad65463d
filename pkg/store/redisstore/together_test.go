package redisstore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// takeTogether takes one hit of a key of its own for each timeout, together, and returns the errors
// and when each was decided.
func takeTogether(t *testing.T, s *Store, timeouts ...time.Duration) (errs []error, after []time.Duration) {
	t.Helper()
	begun := time.Now()
	all := make([]store.Transaction, len(timeouts))
	after = make([]time.Duration, len(timeouts))
	for i, timeout := range timeouts {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		all[i] = store.Transaction{
			Ctx: ctx, Charges: []store.Charge{hit(strconv.Itoa(i), perAge(algorithms.FixedWindow, 10))}, Decisions: make([]algorithms.Decision, 1),
		}
	}
	s.TakeAll(all, func(indexes []int) {
		for _, i := range indexes {
			if after[i] != 0 {
				t.Errorf("transaction %d was decided twice", i)
			}
			after[i] = time.Since(begun)
		}
	})
	for i := range all {
		errs = append(errs, all[i].Err)
	}
	return errs, after
}

func TestTransactionsTakenTogetherShareACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{trip: func() time.Duration { return time.Millisecond }}
		s := away(t, f, Options{})
		takeTogether(t, s, time.Second) // connects, and teaches the clock
		before := f.calls.Load()
		errs, after := takeTogether(t, s, slices.Repeat([]time.Duration{time.Second}, 200)...)
		if err := errors.Join(errs...); err != nil || slices.Max(after) > time.Millisecond {
			t.Errorf("got %v, the last after %v; want no error after one round trip of 1ms", err, slices.Max(after))
		}
		if calls := f.calls.Load() - before; calls != 1 {
			t.Errorf("got %d calls, want 1", calls)
		}
	})
}

// The answers come after the time of some, and these must not be decided again.
func TestEachOfTheTransactionsTakenTogetherWaitsForItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{trip: func() time.Duration { return 30 * time.Millisecond }}
		s := away(t, f, Options{})
		const patient, hasty = 100 * time.Millisecond, 20 * time.Millisecond
		errs, after := takeTogether(t, s, patient, hasty, patient, hasty, patient)
		for i, hurried := range []bool{false, true, false, true, false} {
			want, over := 30*time.Millisecond, errs[i] != nil
			if hurried {
				want = hasty / 4 * 3
			}
			if after[i] != want || over != hurried || over && !errors.Is(errs[i], context.DeadlineExceeded) {
				t.Errorf("transaction %d: got %v after %v, want an answer after %v, in time: %t", i, errs[i], after[i], want, !hurried)
			}
		}
		for range 10 { // the memory of the calls that were left behind
			if errs, _ := takeTogether(t, s, time.Second, time.Second); errors.Join(errs...) != nil {
				t.Errorf("later: got %v", errs)
			}
		}
	})
}

func TestTransactionsTakenTogetherFailWithoutAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{trip: func() time.Duration { return time.Hour }}
		s := away(t, f, Options{})
		errs, after := takeTogether(t, s, 20*time.Millisecond, 20*time.Millisecond)
		for i := range errs {
			if !errors.Is(errs[i], context.DeadlineExceeded) || after[i] != 15*time.Millisecond {
				t.Errorf("got %v after %v, want a timeout after 15ms", errs[i], after[i])
			}
		}
		s.Close()
		if errs, _ := takeTogether(t, s, time.Second, time.Second); !errors.Is(errs[0], ErrUnavailable) || !errors.Is(errs[1], ErrUnavailable) {
			t.Errorf("closed: got %v, want %v", errs, ErrUnavailable)
		}
	})
}

func TestCloseWaitsForTransactionsTakenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{trip: func() time.Duration { return 5 * time.Millisecond }}
		s := away(t, f, Options{})
		var all sync.WaitGroup
		for range 2 * atOnce {
			all.Go(func() {
				if errs, _ := takeTogether(t, s, time.Second, time.Second); errors.Join(errs...) != nil {
					t.Errorf("got %v", errs)
				}
			})
		}
		time.Sleep(time.Millisecond)
		s.Close()
		all.Wait()
	})
}

// Whether a caller sends a flight itself or a worker does, all calls are answered, and no flight is
// left.
func TestTransactionsTakenTogetherByManyCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{trip: between(newRand(1), 100*time.Microsecond, 4*time.Millisecond)}
		s := away(t, f, Options{})
		n := atRandom(5000, time.Second, func(n int) {
			timeouts := slices.Repeat([]time.Duration{20 * time.Millisecond}, 1+n%7)
			timeouts[0] += time.Duration(n%3) * 4 * time.Millisecond
			if errs, _ := takeTogether(t, s, timeouts...); errors.Join(errs...) != nil {
				t.Errorf("got %v", errs)
			}
		})
		synctest.Wait() // a flight ends after its calls
		if calls := int(f.calls.Load()); calls > n || f.most.Load() > mostFlights {
			t.Errorf("%d callers: got %d calls, %d at once", n, calls, f.most.Load())
		}
		q := s.main.queue
		q.mu.Lock()
		defer q.mu.Unlock()
		if l := q.nodeQueueLocked(0); len(l.flying) != 0 || len(l.waiting) != 0 || len(q.spare) > mostFlights {
			t.Errorf("after: %d flights, %d calls that wait, spare memory for %d flights", len(l.flying), len(l.waiting), len(q.spare))
		}
	})
}

// The caller that sends a flight itself waits for the answer all the same.
func TestTransactionWhoseContextIsCanceledHasItsError(t *testing.T) {
	for name, flies := range map[string]bool{"a caller that flies": true, "a caller of a worker": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := farBy(time.Millisecond)
				s := away(t, f, Options{})
				c := hit("k", perAge(algorithms.FixedWindow, 10))
				taking(t, s, c)
				f.hang(time.Hour)
				if !flies {
					s.miss()
				}
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Millisecond, cancel)
				begun, want := time.Now(), map[bool]time.Duration{true: DefaultTimeout, false: time.Millisecond}[flies]
				_, err := store.Take(ctx, s, []store.Charge{c}, make([]algorithms.Decision, 1))
				if took := time.Since(begun); !errors.Is(err, context.Canceled) || took != want {
					t.Errorf("got %v after %v, want context.Canceled after %v", err, took, want)
				}
			})
		})
	}
}

// A command may wait for a dial that another one has begun, for longer than its own context lasts.
func TestTransactionsTakenTogetherDoNotWaitForADial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{trip: func() time.Duration { return time.Millisecond }}
		s := away(t, f, Options{})
		takeTogether(t, s, time.Second)
		f.dials.Store(int64(100 * time.Millisecond))
		_ = f.conn.Close()
		synctest.Wait()
		errs, after := takeTogether(t, s, 20*time.Millisecond, 20*time.Millisecond)
		for i := range errs {
			if !errors.Is(errs[i], context.DeadlineExceeded) || after[i] != 15*time.Millisecond {
				t.Errorf("got %v after %v, want a timeout after 15ms", errs[i], after[i])
			}
		}
		time.Sleep(time.Second)
	})
}

// A node that hangs delays the transactions on its keys only.
func TestTransactionsTakenTogetherOnOtherNodesDoNotWaitForANodeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := awayCluster(t, time.Millisecond, func(slot int) int { return slot % 3 })
		timeouts := slices.Repeat([]time.Duration{20 * time.Millisecond}, 60)
		takeTogether(t, s, timeouts...)
		c.fars[1].hang(time.Hour)
		errs, after := takeTogether(t, s, timeouts...)
		hung := 0
		for i, err := range errs {
			switch {
			case err != nil:
				hung++
			case after[i] > 5*time.Millisecond:
				t.Errorf("transaction %d on a node that answers: decided after %v, want after a round trip of 1ms", i, after[i])
			}
		}
		if hung == 0 || hung > 40 {
			t.Errorf("%d of 60 transactions failed, want about a third", hung)
		}
	})
}

func BenchmarkTogether(b *testing.B) {
	s := open(b, urlOf("redis", shared(b).Address()), Options{Timeout: time.Second})
	all := make([]store.Transaction, 20)
	for i := range all {
		all[i] = store.Transaction{
			Ctx: b.Context(), Charges: []store.Charge{hit(strconv.Itoa(i), perAge(algorithms.FixedWindow, 1<<30))}, Decisions: make([]algorithms.Decision, 1),
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		s.TakeAll(all, func([]int) {})
	}
}
