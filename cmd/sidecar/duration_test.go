package main

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestFlagsTakeDaysAndWeeks(t *testing.T) {
	for text, want := range map[string]time.Duration{"2w": 14 * 24 * time.Hour, "1d12h": 36 * time.Hour, "90s": 90 * time.Second, "0": 0} {
		var got time.Duration
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		addDuration(flags, &got, "for", time.Second, "")
		if err := flags.Parse([]string{"--for=" + text}); err != nil || got != want {
			t.Errorf("%s: got %v and %v, want %v", text, got, err, want)
		}
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	addDuration(flags, new(time.Duration), "for", 0, "")
	err := flags.Parse([]string{"--for=60"})
	const want = `invalid argument "60" for "--for" flag: must be numbers with a unit each (ms, s, m, h, d, w), such as 250ms, 1h30m, 7d or 2w, ` +
		`of at most 292 years, probably 60s is meant`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
