package main

import (
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

func needsH2load(arg string) bool {
	return slices.Contains([]string{"-load=h2load", "-network=tls", "-envoy"}, arg)
}

// measured runs grpcbench and returns the columns of the rows that it prints, by shape and server.
func measured(t *testing.T, args ...string) map[string][]string {
	t.Helper()
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	if _, err := exec.LookPath("h2load"); err != nil && slices.ContainsFunc(args, needsH2load) {
		if parts.Required("h2load") {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Chdir("../..")
	var out strings.Builder
	if err := run(t.Context(), append(args, "-rounds=1", "-grpc-timeout=10s"), &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + out.String())
	rows := make(map[string][]string)
	for line := range strings.Lines(out.String()) {
		if columns := regexp.MustCompile(` {2,}`).Split(strings.TrimSpace(line), -1); len(columns) > 3 {
			rows[columns[0]+" "+columns[1]] = columns
		}
	}
	return rows
}

// A machine that runs tests measures nothing, so a test looks for the servers, and for a CPU time
// of each.
func wantServers(t *testing.T, rows map[string][]string, want ...string) {
	t.Helper()
	for _, name := range want {
		if columns := rows[name]; columns == nil || columns[2] == "-" {
			t.Errorf("%s: got %q; want a row with CPU time", name, columns)
		}
	}
	if got := len(rows) - 1; got != len(want) { // a row of titles
		t.Errorf("%d rows; want %d", got, len(want))
	}
}

func TestEachServerIsMeasuredInEachShape(t *testing.T) {
	rows := measured(t, "-shapes=2x5,1x1", "-requests=1200", "-servers=^(floor|grpc|lane|pair)")
	var want []string
	for _, shape := range []string{"2x5 ", "1x1 "} {
		for _, name := range []string{"bare", "floor", "grpc", "grpc over limit", "lane", "pair", "lane over limit", "lane net.Conn"} {
			want = append(want, shape+name)
		}
	}
	wantServers(t, rows, want...)
	for name, columns := range rows {
		if toFloor, p50 := columns[4], columns[7]; toFloor == "-" || p50 == "-" {
			t.Errorf("%s: compared to the floor %q, p50 %q; want both", name, toFloor, p50)
		}
	}
}

func TestH2loadMeasuresTimesOfOneRequestAtATime(t *testing.T) {
	rows := measured(t, "-load=h2load", "-shapes=2x5,1x1", "-requests=1200", "-servers=^lane$")
	wantServers(t, rows, "2x5 bare", "2x5 lane", "1x1 bare", "1x1 lane")
	for name, columns := range rows {
		if p50 := columns[7]; strings.HasPrefix(name, "1x1") != (p50 != "-") && columns[0] != "shape" {
			t.Errorf("%s: p50 is %q; want a time for one request at a time, and none for others", name, p50)
		}
	}
}

func TestUnixSocketsAreMeasured(t *testing.T) {
	wantServers(t, measured(t, "-network=unix", "-requests=1200", "-servers=^(floor|lane)$"), "4x50 bare", "4x50 floor", "4x50 lane")
}

func TestTLSIsMeasuredBesideABareServerWithout(t *testing.T) {
	wantServers(t, measured(t, "-network=tls", "-requests=1200"), "4x50 bare", "4x50 grpc", "4x50 lane")
}

// The filter asks: a listener whose filter does nothing takes no CPU time from its server.
func TestServersBehindEnvoyAreMeasured(t *testing.T) {
	parts.NeedEnvoy(t, "../..")
	rows := measured(t, "-envoy", "-shapes=2x1", "-requests=4000", "-servers=^lane$")
	if without := rows["2x1 no filter"]; len(without) < 8 || without[2] != "-" || without[7] == "-" {
		t.Errorf("without the filter: got %q; want times of answers, and no CPU time of a server", without)
	}
	delete(rows, "2x1 no filter")
	wantServers(t, rows, "2x1 bare", "2x1 lane")
}

func TestCostsOfManyKeysInRedisAreMeasured(t *testing.T) {
	parts.NeedRedis(t, "../..")
	rows := measured(t, "-store=redis", "-keys=100", "-requests=2000", "-redis-timeout=5s", "-servers=fixed|lane")
	wantServers(t, rows, "4x50 bare", "4x50 grpc fixed_window", "4x50 lane fixed_window", "4x50 lane token_bucket")
	for name, columns := range rows {
		if asks := !strings.Contains(name, "bare"); asks == (columns[3] == "-") {
			t.Errorf("%s: CPU time of Redis is %q", name, columns[3])
		}
	}
}

func TestHoldersAreMeasuredBesideALimitWithoutHolders(t *testing.T) {
	parts.NeedRedis(t, "../..")
	for _, store := range []string{"memory", "redis"} {
		t.Run(store, func(t *testing.T) {
			rows := measured(t, "-holds", "-store="+store, "-requests=2000", "-redis-timeout=5s")
			wantServers(t, rows, "4x50 bare", "4x50 token_bucket", "4x50 token_bucket, held", "4x50 concurrency")
		})
	}
}

func TestLeasesAreMeasuredBesideMemoryAndBesideRedis(t *testing.T) {
	parts.NeedRedis(t, "../..")
	rows := measured(t, "-store=leased", "-keys=100", "-requests=2000", "-redis-timeout=5s")
	wantServers(t, rows, "4x50 memory fixed_window", "4x50 exact fixed_window", "4x50 leased fixed_window",
		"4x50 memory token_bucket", "4x50 exact token_bucket", "4x50 leased token_bucket")
	for name, columns := range rows {
		if asks := !strings.Contains(name, "memory"); asks == (columns[3] == "-") {
			t.Errorf("%s: CPU time of Redis is %q", name, columns[3])
		}
	}
}

func TestIdleConnectionsAreMeasured(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	t.Chdir("../..")
	var out strings.Builder
	if err := run(t.Context(), []string{"-idle=200", "-servers=^lane$"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(out.String(), "\n"); len(lines) != 4 || !strings.Contains(lines[1], "bare") || !regexp.MustCompile(`lane +\d{4,6} `).MatchString(lines[2]) {
		t.Errorf("got\n%s\nwant kilobytes for each connection of the lane", out.String())
	}
}

func TestMissingH2loadIsSaidPlainly(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := run(t.Context(), []string{"-load=h2load"}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "h2load is missing") {
		t.Errorf("run without h2load: got %v; want an error that says so", err)
	}
}

func TestArgumentsAreBounded(t *testing.T) {
	for _, args := range [][]string{
		{"-rounds=0"},
		{"-requests=-1"},
		{"-keys=0"},
		{"-load=nghttp"},
		{"-load=h2load", "-keys=2"},
		{"-load=h2load", "-holds"},
		{"-load=adjacent", "-network=tls"},
		{"-load=adjacent", "-envoy"},
		{"-store=disk"},
		{"-shapes="},
		{"-shapes=4x50,"},
		{"-shapes=4x0"},
		{"-shapes=4x50x2"},
		{"-network=sctp"},
		{"-network=unix", "-keys=2"},
		{"-network=tls", "-envoy"},
		{"-envoy", "-store=redis"},
		{"-idle=-1"},
		{"-profile=-1s"},
		{"-servers=("},
		{"-grpc-timeout=0s"},
		{"more"},
		{"-nonsense"},
	} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parse(%q): got no error", args)
		}
	}
}

func TestShapesWithFewAtOnceAskForLess(t *testing.T) {
	shapes, err := parseShapes("4x50,1x8,2x1")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{6000, 2000, 1000} {
		if got := shapes[i].share(6000); got != want {
			t.Errorf("%v of 6000: got %d; want %d", shapes[i], got, want)
		}
	}
}
