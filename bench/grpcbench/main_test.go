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

// measured runs grpcbench and returns the columns of the rows that it prints, by shape and server.
func measured(t *testing.T, args ...string) map[string][]string {
	t.Helper()
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	if _, err := exec.LookPath("h2load"); err != nil && !slices.Contains(args, "-keys=100") && !slices.Contains(args, "-holds") {
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
	rows := measured(t, "-shapes=2x5,1x1", "-requests=1200", "-servers=^(grpc|lane)")
	wantServers(t, rows, "2x5 bare", "2x5 grpc", "2x5 grpc over limit", "2x5 lane", "2x5 lane over limit", "2x5 lane net.Conn",
		"1x1 bare", "1x1 grpc", "1x1 grpc over limit", "1x1 lane", "1x1 lane over limit", "1x1 lane net.Conn")
	for name, columns := range rows {
		if p50 := columns[6]; strings.HasPrefix(name, "1x1") != (p50 != "-") && columns[0] != "shape" {
			t.Errorf("%s: p50 is %q; want a time for one request at a time, and none for others", name, p50)
		}
	}
}

func TestUnixSocketsAreMeasured(t *testing.T) {
	wantServers(t, measured(t, "-network=unix", "-requests=1200", "-servers=^lane$"), "4x50 bare", "4x50 lane")
}

func TestTLSIsMeasuredBesideABareServerWithout(t *testing.T) {
	wantServers(t, measured(t, "-network=tls", "-requests=1200"), "4x50 bare", "4x50 grpc", "4x50 lane")
}

// The filter asks: a listener whose filter does nothing takes no CPU time from its server.
func TestServersBehindEnvoyAreMeasured(t *testing.T) {
	parts.NeedEnvoy(t, "../..")
	rows := measured(t, "-envoy", "-shapes=2x1", "-requests=4000", "-servers=^lane$")
	if without := rows["2x1 no filter"]; len(without) < 8 || without[2] != "-" || without[6] == "-" {
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
	err := run(t.Context(), nil, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "h2load is missing") {
		t.Errorf("run without h2load: got %v; want an error that says so", err)
	}
}

func TestArgumentsAreBounded(t *testing.T) {
	for _, args := range [][]string{
		{"-rounds=0"},
		{"-requests=-1"},
		{"-keys=0"},
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
