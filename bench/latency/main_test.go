package main

import (
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// How long answers take says nothing on a machine that runs tests, so only errors count.
func TestNoRequestFailsThoughRedisStops(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	parts.NeedRedis(t, "../..")
	var out strings.Builder
	err := run(t.Context(), []string{"-rate=500", "-duration=1s", "-stops=2", "-distance=2ms"}, &out, io.Discard)
	t.Log("\n" + out.String())
	if err != nil {
		t.Error(err)
	}
}

func TestEachServerInMemoryIsAskedAtHalfOfAPeak(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	var out strings.Builder
	err := run(t.Context(), []string{"-store=memory", "-rate=0", "-duration=500ms", "-stops=1", "-rounds=2"}, &out, io.Discard)
	if err != nil && !strings.Contains(err.Error(), "REFUSED_STREAM") { // the client asks at its rate also a server that cannot follow
		t.Fatal(err)
	}
	t.Log("\n" + out.String())
	if !regexp.MustCompile(`^[1-9]\d{2,} requests per second(.*\n){3,}.*bare grpc-go.*\n.*floor.*\n.*in memory, grpc.*\n.*in memory, lane.*\n$`).MatchString(out.String()) {
		t.Error("want a rate, and a row for each server")
	}
}

func TestLeasesAreAskedBesideMemoryAndWhileRedisIsStopped(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	parts.NeedRedis(t, "../..")
	var out strings.Builder
	if err := run(t.Context(), []string{"-store=leased", "-keys=1", "-rate=500", "-duration=1s", "-stops=2"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + out.String())
	if !regexp.MustCompile(`(?s)in memory .*\n *Redis, exact .*\n *Redis, leased .*\n *leased, Redis stopped +[1-9]`).MatchString(out.String()) {
		t.Error("want a row for each server, and one with answers while Redis was stopped")
	}
}

func TestReportHasTheMedianOfRounds(t *testing.T) {
	var rounds []round
	for _, p50 := range []time.Duration{9, 1, 2} {
		rounds = append(rounds, round{answers: []answer{{took: p50 * time.Millisecond}}, without: 1, cpu: cpu{server: p50 * time.Microsecond}})
	}
	var out strings.Builder
	report(&out, []row{{"x", rounds}})
	if got, want := strings.Fields(strings.Split(out.String(), "\n")[1]), []string{"x", "3", "0", "3", "2.000", "2.000", "2.000", "2.000", "0.000", "2.0", "-"}; !slices.Equal(got, want) {
		t.Errorf("got %q; want %q", got, want)
	}
}

func TestArgumentsAreBounded(t *testing.T) {
	for _, args := range [][]string{{"-rate=-1"}, {"-distance=-1s"}, {"-rounds=0"}, {"-store=disk"}, {"-stops=0"}, {"-keys=0"}, {"-duration=10ms"}, {"more"}, {""}, {"-nonsense"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parse(%q): got no error", args)
		}
	}
}
