package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
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
	go heed(background, all, stop, hurry)
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

func TestAReloadThatLastsHoldsUpNoStop(t *testing.T) {
	file := rulesFile(t, rulesOf("5"))
	r := start(t, "--rules", file, "--drain-timeout=0s", "--reload-debounce=1m")
	manyRules(t, file)
	// One at a time, as those that are pending are one for the system.
	apart := time.NewTicker(time.Millisecond)
	defer apart.Stop()
	for range 40 {
		raise(t, syscall.SIGHUP)
		<-apart.C
	}
	raise(t, syscall.SIGTERM)
	r.await(t, "stopped")
	r.awaitEnd(t)
	all, _ := r.log.lines()
	if got := strings.Count(strings.Join(all, ""), `"msg":"rules loaded"`); got > 8 {
		t.Errorf("rules were loaded %d times before the stop; want signals that wait to be one, and the stop not to wait", got)
	}
}

func TestReloadsThatWaitAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		background, end := context.WithCancel(t.Context())
		defer end()
		signals := make(chan os.Signal, 1)
		got := 0
		go heedReloads(background, signals, func(context.Context) error { got++; time.Sleep(time.Minute); return nil })
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

func TestAStopDuringTheFirstLoadEndsAtOnce(t *testing.T) {
	ours := make(chan os.Signal, 1) // a signal that comes before the sidecar listens to it must not end the test
	signal.Notify(ours, syscall.SIGTERM)
	defer signal.Stop(ours)
	file := rulesFile(t, rulesOf("5"))
	manyRules(t, file)
	log := newLineLog()
	ended := make(chan error, 1)
	go func() {
		ended <- run(context.Background(), []string{
			"--rules", file, "--log-format=json", "--drain-timeout=0s",
			"--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=127.0.0.1:0",
		}, strings.NewReader(""), io.Discard, log)
	}()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for {
		select {
		case err := <-ended:
			all, _ := log.lines()
			if got := strings.Join(all, ""); err != nil || strings.Contains(got, `"msg":"ready"`) || !strings.Contains(got, `"msg":"stopped"`) {
				t.Errorf("serve: got %v and the log\n%s\nwant it stopped before it was ready", err, got)
			}
			return
		case <-again.C:
			raise(t, syscall.SIGTERM)
		}
	}
}

// manyRules writes rules that take long to load.
func manyRules(t *testing.T, file string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("domain: test\ndescriptors:\n")
	for n := range 10_000 {
		fmt.Fprintf(&b, "- {key: user, value: u%d, rate_limit: {unit: hour, requests_per_unit: 7}}\n", n)
	}
	writeRules(t, file, b.String())
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
