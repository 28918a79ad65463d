package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// A patient fleet asks a Redis that is far away about every request, and admits its limits exactly.
func TestAPatientFleetDecidesNothingWithoutAFarRedis(t *testing.T) {
	parts.NeedRedis(t, "../..")
	var out strings.Builder
	args := []string{"-distances=4ms,3ms-6ms", "-rates=400", "-duration=1s", "-redis-timeout=10s"}
	if err := run(t.Context(), args, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + out.String())
	rows := strings.Split(strings.TrimSpace(out.String()), "\n")[1:]
	if len(rows) != 2 {
		t.Fatalf("%d rows; want 2", len(rows))
	}
	for i, row := range rows {
		if strings.Count(row, " 0.00 %") != 2 {
			t.Errorf("requests were decided without Redis, or above the limit: %s", row)
		}
		columns := strings.Fields(row)
		p50, err := time.ParseDuration(columns[8])
		if least := []time.Duration{4 * time.Millisecond, 3 * time.Millisecond}[i]; err != nil || p50 < least {
			t.Errorf("half of the answers came within %q, %v; want at least %v: %s", columns[8], err, least, row)
		}
	}
}

func TestArgumentsAreBounded(t *testing.T) {
	for _, args := range [][]string{
		{"-rates=0"},
		{"-rates=x"},
		{"-rates="},
		{"-distances=x"},
		{"-distances=2ms-1ms"},
		{"-distances=-1ms"},
		{"-distances=1ms-"},
		{"-stores=0"},
		{"-duration=10ms"},
		{"-deadline=-1s"},
		{"more"},
		{"-nonsense"},
	} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parse(%q): got no error", args)
		}
	}
}
