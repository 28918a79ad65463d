package app

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestADrainEndsASecondAfterTheLastRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		requests := start.Add(-time.Hour)
		last := func() time.Time {
			// Requests come every 300 ms, for 5 seconds.
			if passed := time.Since(start); passed < 5*time.Second {
				requests = start.Add(passed.Truncate(300 * time.Millisecond))
			}
			return requests
		}
		awaitQuiet(t.Context(), last)
		if got := time.Since(requests); got < quiet || got > quiet+time.Millisecond || requests.Before(start.Add(4*time.Second)) {
			t.Errorf("ended %v after the last request, at %v; want %v after one near 5s", got, requests.Sub(start), quiet)
		}
	})
}

func TestADrainTakesASecondWithoutRequestsAndItsTimeUnderTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		start := time.Now()
		awaitQuiet(ctx, func() time.Time { return start.Add(-time.Hour) })
		if got := time.Since(start); got != quiet {
			t.Errorf("without requests: took %v, want %v", got, quiet)
		}
		awaitQuiet(ctx, time.Now)
		if got := time.Since(start); got != 8*time.Second {
			t.Errorf("under traffic: ended at %v, want 8s", got)
		}
	})
}

// notified runs notifyStops, and returns a channel for signals.
func notified(t *testing.T) (signals chan<- os.Signal, stop, forceStop stopper) {
	t.Helper()
	all := make(chan os.Signal)
	background, end := context.WithCancel(t.Context())
	stop, forceStop = newStops(t.Context(), background)
	t.Cleanup(end)
	go notifyStops(background, all, stop, forceStop)
	return all, stop, forceStop
}

func TestASecondSignalForcesTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals, stop, forceStop := notified(t)
		signals <- syscall.SIGTERM
		synctest.Wait()
		if got := context.Cause(stop); got == nil || got.Error() != "signal: terminated" || forceStop.Err() != nil {
			t.Fatalf("after the first signal: got stop %v, forceStop %v; want stop alone", got, forceStop.Err())
		}
		time.Sleep(time.Second)
		signals <- syscall.SIGINT
		synctest.Wait()
		if got := context.Cause(forceStop); got == nil || got.Error() != "second signal: interrupt" {
			t.Errorf("after the second signal: got forceStop %v", got)
		}
	})
}

func TestASignalThatIsSentTwiceIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals, _, forceStop := notified(t)
		signals <- syscall.SIGTERM
		time.Sleep(echo / 2)
		signals <- syscall.SIGTERM
		synctest.Wait()
		if forceStop.Err() != nil {
			t.Errorf("after the same signal again: got forceStop %v, want none", context.Cause(forceStop))
		}
	})
}

func TestReloadsThatWaitAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		background, end := context.WithCancel(t.Context())
		defer end()
		signals := make(chan os.Signal, 1)
		got := 0
		go notifyReloads(background, signals, func(context.Context) error { got++; time.Sleep(time.Minute); return nil })
		for range 100 {
			select {
			case signals <- syscall.SIGHUP: // as signal.Notify does
			default:
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got != 2 {
			t.Errorf("reloads: got %d, want the one that lasted and one for all signals meanwhile", got)
		}
	})
}

func TestAFailureStopsAtOnce(t *testing.T) {
	failed, fail := context.WithCancelCause(t.Context())
	stop, forceStop := newStops(t.Context(), failed)
	fail(context.DeadlineExceeded)
	<-stop.Done()
	<-forceStop.Done()
	if got := context.Cause(stop); !errors.Is(got, context.DeadlineExceeded) {
		t.Errorf("cause: got %v, want the failure", got)
	}
}
