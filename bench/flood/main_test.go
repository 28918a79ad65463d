package main

import (
	"io"
	"strings"
	"testing"
)

// Times say nothing on a machine that runs tests. The error says whether a denied key was free again.
func TestAFloodFreesNoDeniedKey(t *testing.T) {
	var out strings.Builder
	err := run(t.Context(), []string{"-keys=40000", "-max-keys=5000", "-denied=200", "-parts=2"}, &out, io.Discard)
	t.Log("\n" + out.String())
	if err != nil {
		t.Error(err)
	}
	if rows := strings.Count(out.String(), " MiB"); rows != 10 {
		t.Errorf("%d rows; want five algorithms with two weights each", rows)
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
