package main

import (
	"io"
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
	err := run(t.Context(), []string{"-rate=500", "-duration=1s", "-stops=2"}, &out, io.Discard)
	t.Log("\n" + out.String())
	if err != nil {
		t.Error(err)
	}
}

func TestPartsOfTheAnswers(t *testing.T) {
	var all []time.Duration
	for i := range 1000 {
		all = append(all, time.Duration(i+1))
	}
	for part, want := range map[float64]time.Duration{0.5: 501, 0.99: 991, 0.999: 1000, 1: 1000} {
		if got := at(all, part); got != want {
			t.Errorf("%v of 1 to 1000: got %d; want %d", part, got, want)
		}
	}
	if got := at(nil, 0.5); got != 0 {
		t.Errorf("of none: got %v; want 0", got)
	}
}

func TestArgumentsAreBounded(t *testing.T) {
	for _, args := range [][]string{{"-rate=0"}, {"-stops=0"}, {"-keys=0"}, {"-duration=10ms"}, {"more"}, {""}, {"-nonsense"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parse(%q): got no error", args)
		}
	}
}
