package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/logtest"
)

func TestAReloadThatLastsHoldsUpNoStop(t *testing.T) {
	file := rulesFile(t, rulesOf("5"))
	r := start(t, "--rules", file, "--drain-timeout=0s")
	manyRules(t, file)
	// One at a time: for the system, pending signals are one.
	apart := time.NewTicker(time.Millisecond)
	defer apart.Stop()
	for range 40 {
		raise(t, syscall.SIGHUP)
		<-apart.C
	}
	loads := func() int { return strings.Count(r.log.String(), `"msg":"rules loaded"`) }
	before := loads()
	raise(t, syscall.SIGTERM)
	r.await(t, "stopped")
	r.awaitEnd(t)
	if got := loads() - before; got > 2 { // one that was under way, and one for all signals meanwhile
		t.Errorf("rules were loaded %d times before the stop; want signals that wait to be one, and the stop not to wait", got)
	}
}

func TestAStopDuringTheFirstLoadEndsAtOnce(t *testing.T) {
	// A signal that comes before the sidecar listens to it, or after, must not end the test. The last
	// one may come late, so this goes on for those that follow.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM)
	file := rulesFile(t, rulesOf("5"))
	manyRules(t, file)
	log := new(logtest.Log)
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
			if got := log.String(); err != nil || strings.Contains(got, `"msg":"ready"`) || !strings.Contains(got, `"msg":"stopped"`) {
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
		{"reported", reported(exitBad), 1, ""},
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
