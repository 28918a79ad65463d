package main

import (
	"context"
	"errors"
	"os"
	"strings"
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

func TestADrainWithoutRequestsTakesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		awaitQuiet(t.Context(), func() time.Time { return start.Add(-time.Hour) })
		if got := time.Since(start); got != quiet {
			t.Errorf("took %v, want %v", got, quiet)
		}
	})
}

func TestADrainUnderTrafficEndsWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		start := time.Now()
		awaitQuiet(ctx, time.Now)
		if got := time.Since(start); got != 8*time.Second {
			t.Errorf("took %v, want 8s", got)
		}
	})
}

// heeded runs heed and returns where to send signals.
func heeded(t *testing.T) (signals chan<- os.Signal, stop, hurry stopper) {
	t.Helper()
	all := make(chan os.Signal)
	background, end := context.WithCancel(t.Context())
	stop, hurry = newStops(t.Context(), background)
	t.Cleanup(end)
	go new(instance).heed(background, all, stop, hurry)
	return all, stop, hurry
}

func TestASecondSignalHurries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals, stop, hurry := heeded(t)
		signals <- syscall.SIGTERM
		synctest.Wait()
		if got := context.Cause(stop); got == nil || got.Error() != "signal: terminated" || hurry.Err() != nil {
			t.Fatalf("after the first signal: got stop %v, hurry %v; want stop alone", got, hurry.Err())
		}
		time.Sleep(time.Second)
		signals <- syscall.SIGINT
		synctest.Wait()
		if got := context.Cause(hurry); got == nil || got.Error() != "second signal: interrupt" {
			t.Errorf("after the second signal: got hurry %v", got)
		}
	})
}

func TestASignalThatIsSentTwiceIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals, _, hurry := heeded(t)
		signals <- syscall.SIGTERM
		time.Sleep(echo / 2)
		signals <- syscall.SIGTERM
		synctest.Wait()
		if hurry.Err() != nil {
			t.Errorf("after the same signal again: got hurry %v, want none", context.Cause(hurry))
		}
	})
}

func TestAFailureStopsAtOnce(t *testing.T) {
	failed, fail := context.WithCancelCause(t.Context())
	stop, hurry := newStops(t.Context(), failed)
	fail(context.DeadlineExceeded)
	<-stop.Done()
	<-hurry.Done()
	if got := context.Cause(stop); !errors.Is(got, context.DeadlineExceeded) {
		t.Errorf("cause: got %v, want the failure", got)
	}
}

func TestReportWritesEveryReasonOnALine(t *testing.T) {
	tests := []struct {
		name string
		err  error
		code int
		want string
	}{
		{"none", nil, 0, ""},
		{"plain", context.Canceled, 1, "sidecar: context canceled\n"},
		{"usage", usage("a\nb"), 2, "sidecar: a\nsidecar: b\n"},
		{"rules", bad(usage("x.yaml:1: a\nx.yaml:2: b"), 1), 1, "x.yaml:1: a\nx.yaml:2: b\n"},
		{"reported", reported(), 1, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			if code := report(&out, test.err); code != test.code || out.String() != test.want {
				t.Errorf("report: got %d, %q; want %d, %q", code, out.String(), test.code, test.want)
			}
		})
	}
}
