package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

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
		{name: "bare", costs: []cost{{server: 10_000}, {server: 12_000}}},
		{name: "weir", costs: []cost{{server: 5000}, {server: 6000}}, late: 3},
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

func TestReportTellsSidecarAndRedisApart(t *testing.T) {
	var out bytes.Buffer
	report(&out, options{rounds: 1, requests: 10, redis: true, load: load{connections: 4, streams: 50, keys: 1000}}, []contender{
		{name: "bare", costs: []cost{{server: 10_000}}},
		{name: "weir", costs: []cost{{server: 12_000, redis: 3000}}, alone: 2},
	})
	want := `server CPU per ShouldRateLimit in microseconds; 10 requests a turn, 200 clients on 4 connections, 1000 keys at random

round                 bare              weir
1                    10.00             15.00
server               10.00             12.00
redis                 0.00              3.00
median               10.00             15.00
ratio                1.00x             1.50x
late                     0                 0
alone                    0                 2
`
	if got := out.String(); got != want {
		t.Errorf("report: got\n%s\nwant\n%s", got, want)
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
	for _, args := range [][]string{{"-rounds=0"}, {"-requests=-1"}, {"-keys=0"}, {"-store=disk"}, {"more"}, {"-nonsense"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parse(%q): got no error", args)
		}
	}
}

func TestCostsOfManyKeysInRedisAreMeasured(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	const root = "../.."
	parts.NeedRedis(t, root)
	t.Chdir(root)
	var out strings.Builder
	err := run(t.Context(), []string{"-store=redis", "-keys=100", "-rounds=1", "-requests=2000", "-redis-timeout=5s"}, &out, io.Discard)
	if t.Log("\n" + out.String()); err != nil || !strings.Contains(out.String(), "token_bucket") {
		t.Error(err)
	}
}
