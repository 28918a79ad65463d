package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"
)

func TestCPUTimeIsUserPlusSystem(t *testing.T) {
	const stat = "4711 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 13 14 20 0"
	got, err := cpuOf(stat)
	if want := 3 * time.Second; err != nil || got != want {
		t.Errorf("cpuOf: got %v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"", "1 (x", "1 (x) S 1 2 3", strings.Replace(stat, "250", "x", 1)} {
		if got, err := cpuOf(bad); err == nil {
			t.Errorf("cpuOf(%q): got %v; want an error", bad, got)
		}
	}
}

func TestSucceededReadsWhatH2loadSays(t *testing.T) {
	const output = "requests: 100 total, 100 started, 100 done, 98 succeeded, 2 failed\nstatus codes: 98 2xx, 0 3xx, 0 4xx, 2 5xx\n"
	if got := succeeded(output); got != 98 {
		t.Errorf("succeeded: got %d; want 98", got)
	}
	if got := succeeded("nothing"); got != 0 {
		t.Errorf("succeeded without a word: got %d; want 0", got)
	}
}

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		all  []time.Duration
		want time.Duration
	}{{[]time.Duration{5}, 5}, {[]time.Duration{9, 1, 5}, 5}, {[]time.Duration{9, 1, 5, 7}, 6}} {
		if got := median(test.all); got != test.want {
			t.Errorf("median(%v) = %v; want %v", test.all, got, test.want)
		}
	}
}

func TestReportComparesToTheFirst(t *testing.T) {
	var out bytes.Buffer
	report(&out, options{rounds: 2, requests: 10, load: load{connections: 4, streams: 50}}, []contender{
		{name: "bare", costs: []time.Duration{10_000, 12_000}},
		{name: "weir", costs: []time.Duration{5000, 6000}, late: 3},
	})
	want := `server CPU per ShouldRateLimit in microseconds; 10 requests a turn, h2load -c 4 -m 50

round                 bare              weir
1                    10.00              5.00
2                    12.00              6.00
median               11.00              5.50
ratio                1.00x             0.50x
late                     0                 3
`
	if got := out.String(); got != want {
		t.Errorf("report: got\n%s\nwant\n%s", got, want)
	}
}

func TestLogFindsTheGRPCListener(t *testing.T) {
	l := newLog()
	for _, part := range []string{
		"not json\n" + `{"msg":"listening","server":"http","address":"127.0.0.1:1"}` + "\n" + `{"msg":"listen`,
		`ing","server":"grpc","address":"127.0.0.1:2"}` + "\n", "more\n",
	} {
		if _, err := l.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case got := <-l.address:
		if want := "127.0.0.1:2"; got != want {
			t.Errorf("address: got %s; want %s", got, want)
		}
	default:
		t.Error("address: got none")
	}
}

func TestMissingH2loadIsSaidPlainly(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := run(t.Context(), nil, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "h2load is missing") {
		t.Errorf("run without h2load: got %v; want an error that says so", err)
	}
}

func TestArgumentsAreBounded(t *testing.T) {
	for _, args := range [][]string{{"-rounds=0"}, {"-requests=-1"}, {"more"}, {"-nonsense"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parse(%q): got no error", args)
		}
	}
}
