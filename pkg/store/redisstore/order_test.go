package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

const trip = 6 * time.Millisecond

func TestRequestSharesTheRoundTripOfDeferredHitsBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := farBy(trip)
		s := away(t, f, Options{})
		c := hit("k", perAge(algorithms.FixedWindow, 10))
		for range 20 {
			s.Later(&c, s.Now(algorithms.Limit{}), store.Part{})
			if took := taking(t, s, c); took != trip {
				t.Fatalf("an answer after %v; want %v", took, trip)
			}
		}
		if got := s.Stats().DeferredHits; got != 20 {
			t.Errorf("%d of 20 deferred hits were sent", got)
		}
	})
}

func TestRequestWaitsForDeferredHitsUnderWayAndOthersDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := farBy(trip)
		s := away(t, f, Options{Timeout: time.Second})
		keys := []store.Charge{hit("k", perAge(algorithms.FixedWindow, 10)), hit("k+", perAge(algorithms.FixedWindow, 10))}
		taking(t, s, keys[0])
		s.Later(&keys[0], s.Now(algorithms.Limit{}), store.Part{})
		s.sendAll()
		sent := time.Now()
		synctest.Wait()
		done := make(chan struct{})
		go func() {
			defer close(done)
			taking(t, s, keys[0])
			if took := time.Since(sent); took < 2*trip {
				t.Errorf("a request behind deferred hits of its key was answered after %v; want %v", took, 2*trip)
			}
		}()
		synctest.Wait()
		taking(t, s, keys[1])
		if took := time.Since(sent); took >= 2*trip {
			t.Errorf("a request for another key was answered after %v; want less than %v", took, 2*trip)
		}
		<-done
	})
}

// A reset deletes a key behind the hits that the outbox owes.
func TestResetWaitsForDeferredHitsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := farBy(trip)
		s := away(t, f, Options{Timeout: time.Second})
		c := hit("k", perAge(algorithms.FixedWindow, 10))
		s.Later(&c, s.Now(algorithms.Limit{}), store.Part{})
		s.sendAll()
		synctest.Wait()
		begun := time.Now()
		if _, err := s.Reset(t.Context(), []store.Charge{c}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took != 3*trip || !s.idle() {
			t.Errorf("the reset was answered after %v, idle: %v; want %v, one trip each of the hits, of the question behind them, and of the reset", took, s.idle(), 3*trip)
		}
	})
}

func TestServerThatAnswersNothingGetsFewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := farBy(10 * time.Second)
		s := away(t, f, Options{})
		var silent atomic.Int64
		time.AfterFunc(950*time.Millisecond, func() { silent.Store(int64(s.Health(0).Silent)) })
		n, failed := arrivals(t, s, 4000, time.Second, 0)
		if len(failed) != n {
			t.Errorf("%d of %d requests failed", len(failed), n)
		}
		for _, err := range failed {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
		}
		if calls := f.calls.Load(); calls > 100+2*mostFlights { // one after another has a timeout of 10 ms
			t.Errorf("%d calls to a server that answers nothing", calls)
		}
		if silent := time.Duration(silent.Load()); silent < 900*time.Millisecond {
			t.Errorf("the store says that Redis was silent for %v, want nearly 950ms", silent)
		}
	})
}

func TestWaitIsThreeQuartersOfTheDeadlineAndTheTimeoutWithoutOne(t *testing.T) {
	charges := []store.Charge{hit("k", perAge(algorithms.FixedWindow, 1)), hit("j", perAge(algorithms.FixedWindow, 1))}
	decisions := make([]algorithms.Decision, 2)
	for method, do := range map[string]func(context.Context, *Store) error{
		"Take": func(ctx context.Context, s *Store) error {
			_, err := store.Take(ctx, s, charges, decisions)
			return err
		},
		"Peek":  func(ctx context.Context, s *Store) error { return s.Peek(ctx, charges, decisions) },
		"Reset": func(ctx context.Context, s *Store) error { _, err := s.Reset(ctx, charges); return err },
	} {
		for deadline, want := range map[time.Duration]time.Duration{
			0: DefaultTimeout, 4 * time.Millisecond: 3 * time.Millisecond, 20 * time.Millisecond: 15 * time.Millisecond, time.Second: 750 * time.Millisecond,
		} {
			synctest.Test(t, func(t *testing.T) {
				s := away(t, farBy(time.Hour), Options{})
				ctx := t.Context()
				if deadline > 0 {
					var cancel func()
					ctx, cancel = context.WithTimeout(ctx, deadline)
					defer cancel()
				}
				begun := time.Now()
				if err := do(ctx, s); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != want {
					t.Errorf("%s with a deadline of %v: %v after %v; want %v", method, deadline, err, time.Since(begun), want)
				}
			})
		}
	}
}

// An answer that no caller waits for any more is still a sign of life.
func TestAnswersThatCameTooLateAreHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := away(t, farBy(trip), Options{})
		ctx, cancel := context.WithTimeout(t.Context(), trip/2)
		defer cancel()
		if _, err := store.Take(ctx, s, []store.Charge{hit("k", perAge(algorithms.FixedWindow, 1))}, make([]algorithms.Decision, 1)); err == nil {
			t.Fatal("an answer in half a round trip")
		}
		if !s.Health(0).Answered.IsZero() {
			t.Error("heard before the answer")
		}
		begun := time.Now()
		time.Sleep(trip)
		if heard := s.Health(0).Answered; heard.Before(begun) {
			t.Errorf("heard at %v; want the end of the round trip, after %v", heard, begun)
		}
	})
}

// The callers of a batch may stop to wait at different times. A call that came too late for the
// first is made again for the others.
func TestCallThatCameTooLateForOneIsMadeAgainForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var way atomic.Int64
		f := &far{trip: func() time.Duration { return time.Duration(way.Load()) }}
		s := away(t, f, Options{Timeout: time.Second})
		taking(t, s, hit("k", perAge(algorithms.FixedWindow, 1))) // teaches the server's clock
		way.Store(int64(100 * time.Millisecond))
		b := newBatch(s.main)
		var calls []*transaction
		for _, wait := range []time.Duration{45 * time.Millisecond, time.Second, 0} {
			c := callOf(take, hit("k", perAge(algorithms.FixedWindow, 1)))
			if c.put = time.Now(); wait > 0 {
				c.until = c.put.Add(wait)
			}
			calls = append(calls, c)
			b.add(&c.call)
		}
		begun := time.Now()
		s.main.execute(&flight{node: s.main.queue.node(0)}, []*batch{b}, false)
		for i, want := range []error{errLate, nil, errLate} { // the last one is as of the outbox, which sends it again by itself
			c := calls[i]
			if <-c.wait.signal; !errors.Is(c.err, want) || c.refused != (want != nil) {
				t.Errorf("call %d: %v, refused: %v; want %v", i, c.err, c.refused, want)
			}
		}
		if took := time.Since(begun); took != 200*time.Millisecond || f.calls.Load() != 3 {
			t.Errorf("%d calls in %v; want 3, of which the last two in 200ms", f.calls.Load(), took)
		}
		if text := calls[0].err.Error(); !strings.Contains(text, "100ms after it was sent") || strings.Contains(text, "clock") {
			t.Errorf("the error is %q", text)
		}
	})
}

func TestLateAnswerIsNoStepOfAClock(t *testing.T) {
	at := time.Now()
	after := func(d time.Duration) time.Time { return at.Add(d) }
	const hour = int64(time.Hour / time.Microsecond)
	c := newClocks(1)
	c.started = at
	us := func(d time.Duration) int64 { return hour + d.Microseconds() } // by the server's clock
	for _, step := range []struct {
		name       string
		begun, now time.Duration
		ran        time.Duration // by a server whose clock was never set
		set        time.Duration
		want       time.Duration
	}{
		{"first", 0, time.Millisecond, 0, 0, 0},
		{"after a stop of this process", time.Second, 4 * time.Second, 3999 * time.Millisecond, 0, 0},
		{"after a stop before it ran", 5 * time.Second, 9 * time.Second, 5 * time.Second, 0, 0},
		{"as usual", 10 * time.Second, 10*time.Second + time.Millisecond, 10 * time.Second, 0, 0},
		{"ahead", 11 * time.Second, 11*time.Second + time.Millisecond, 11 * time.Second, time.Minute, time.Minute - time.Millisecond},
		{"and on", 12 * time.Second, 12*time.Second + time.Millisecond, 12 * time.Second, time.Minute, 0},
		{"back", 13 * time.Second, 13*time.Second + time.Millisecond, 13 * time.Second, 0, -time.Minute},
		{"and on again", 14 * time.Second, 14*time.Second + time.Millisecond, 14 * time.Second, 0, 0},
	} {
		if got := c.learn(0, us(step.ran+step.set), after(step.begun), after(step.now)); got != step.want {
			t.Errorf("%s: a step of %v; want %v", step.name, got, step.want)
		}
	}
	c.learn(0, us(16*time.Second), after(16*time.Second), after(16*time.Second+time.Millisecond))
	c.learn(0, us(16*time.Second), after(15700*time.Millisecond), after(16*time.Second+2*time.Millisecond))
	if got, want := c.at(0, after(17*time.Second)), us(17*time.Second); got != want {
		t.Errorf("after an answer that came late to an older call, the server's time is %d µs off", got-want)
	}
}

// Weirs without Redis go on by the time that they have learned. If a slow answer moved it, their
// windows would begin at different times, and a window would get hits of two.
func TestASlowAnswerDoesNotMoveTheKnownTime(t *testing.T) {
	const fast, drift = time.Millisecond, 50e-6
	random := rand.New(rand.NewPCG(1, 2))
	started := time.Now()
	c := newClocks(1)
	c.started = started
	server := func(at time.Duration) int64 {
		return (time.Hour + at + time.Duration(float64(at)*drift)).Microseconds()
	}
	at, lately := time.Duration(0), time.Duration(0)
	for n := range 10_000 {
		trip := fast
		if n%10 > 0 {
			trip += time.Duration(random.Int64N(int64(clockTeaches - fast)))
		}
		begun := at
		ran := begun + time.Duration(random.Int64N(int64(trip)))
		if at += trip; trip == fast {
			lately = at
		}
		c.learn(0, server(ran), started.Add(begun), started.Add(at))
		known := time.Duration(c.at(0, started.Add(at))-server(at)) * time.Microsecond
		bound := fast + time.Duration(float64(at-lately)*drift) + 2*time.Microsecond
		if known.Abs() > bound {
			t.Fatalf("after an answer in %v the known time is %v off; want %v at most, as a fast answer came %v before", trip, known, bound, at-lately)
		}
		at += time.Duration(random.Int64N(int64(time.Second)))
	}
}

func TestStepOfTheClockIsLoggedOnce(t *testing.T) {
	var log logtest.Log
	s, _ := given(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	s.given = nil
	at := time.Now()
	for n, us := range []int64{0, -7_000_000, -14_000_000, 60_000_000} {
		now := at.Add(time.Duration(n) * time.Second)
		s.main.learn(0, at.UnixMicro()+int64(n)*1_000_000+us, now, now)
	}
	if n := strings.Count(log.String(), "went back"); n != 1 || !strings.Contains(log.String(), "by=7s") || strings.Contains(log.String(), "ahead") {
		t.Errorf("logged: %s", log.String())
	}
}

// A patient caller's call does not lie in a stopped server until the caller's deadline: its
// connection is given up before.
func TestCallOfAPatientCallerIsMadeAgainRatherThanLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var way atomic.Int64
		tries, ran := 0, 0
		f := &far{trip: func() time.Duration { return time.Duration(way.Load()) }}
		s := away(t, f, Options{})
		c := hit("k", perAge(algorithms.FixedWindow, 10))
		taking(t, s, c)
		f.ran = func(request []byte) {
			deadline := time.UnixMicro(int64(binary.LittleEndian.Uint64(request[8:])))
			tries++
			if lives := time.Until(deadline); tries == 1 && lives > longestLife {
				t.Errorf("Redis may run the call %v after it received it", lives)
			}
			if time.Now().Before(deadline) {
				ran++
			}
		}
		way.Store(int64(2 * time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := store.Take(ctx, s, []store.Charge{c}, make([]algorithms.Decision, 1)); err != nil || tries != 2 || ran != 1 {
			t.Errorf("%v; a call was made %d times and applied %d times; want 2 and 1", err, tries, ran)
		}
	})
}
