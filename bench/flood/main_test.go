package main

import (
	"io"
	"strings"
	"testing"
)

// Times say nothing on a machine that runs tests. The error says whether a denied key was free
// again.
func TestAFloodFreesNoDeniedKey(t *testing.T) {
	var out strings.Builder
	err := run(t.Context(), []string{"-keys=60000", "-max-keys=10000", "-denied=200", "-parts=2"}, &out, io.Discard)
	t.Log("\n" + out.String())
	if err != nil {
		t.Error(err)
	}
	if rows := strings.Count(out.String(), " MiB"); rows != 10 {
		t.Errorf("%d rows; want five algorithms with two weights each", rows)
	}
}

// Each log of 100 instants takes 42 places.
func TestAStoreThatIsTooSmallForTheDeniedLogsIsAnError(t *testing.T) {
	err := run(t.Context(), []string{"-keys=40000", "-max-keys=5000", "-denied=200", "-algorithms=sliding_window_log", "-weights=1"}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "max-keys is too small") {
		t.Errorf("got %v", err)
	}
}

func TestArgumentsAreBounded(t *testing.T) {
	for _, args := range [][]string{
		{"-keys=1"},
		{"-parts=0"},
		{"-denied=0"},
		{"-max-keys=10"},
		{"-weights=0"},
		{"-weights=101"},
		{"-weights=x"},
		{"-algorithms=leaky"},
		{"more"},
		{"--", "--more"},
		{"-nonsense"},
	} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parse(%q): got no error", args)
		}
	}
}
