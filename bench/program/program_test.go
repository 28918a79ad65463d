package program

import (
	"errors"
	"flag"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestWhatFollowsTheFlagsGoesToTheSidecar(t *testing.T) {
	for _, test := range []struct {
		args  []string
		n     int
		serve []string
		err   string // part of it, "" for none
	}{
		{nil, 5, nil, ""},
		{[]string{"-n=7"}, 7, nil, ""},
		{[]string{"-n=7", "--", "--redis-hash-tag=domain", "more"}, 7, []string{"--redis-hash-tag=domain", "more"}, ""},
		{[]string{"more"}, 5, nil, `unexpected argument "more"`},
		{[]string{""}, 5, nil, `unexpected argument ""`},
		{[]string{"-nonsense"}, 5, nil, "not defined: -nonsense"},
	} {
		n := 0
		serve, err := Parse("x", test.args, io.Discard, func(f *flag.FlagSet) { f.IntVar(&n, "n", 5, "number") })
		if !slices.Equal(serve, test.serve) || n != test.n {
			t.Errorf("%q: n is %d, want %d; for the sidecar %q, want %q", test.args, n, test.n, serve, test.serve)
		}
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%q: got %v, want %q", test.args, err, test.err)
		}
	}
}

func TestUsageNamesTheFlagsAndWhatFollowsThem(t *testing.T) {
	var out strings.Builder
	_, err := Parse("x", []string{"-h"}, &out, func(f *flag.FlagSet) { f.Int("n", 5, "number") })
	want := "x [flags] [-- further arguments of sidecar serve]\n  -n int\n    \tnumber (default 5)\n"
	if !errors.Is(err, flag.ErrHelp) || out.String() != want {
		t.Errorf("got %v and %q, want %q", err, out.String(), want)
	}
}
