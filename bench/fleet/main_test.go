package main

import (
	"cmp"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/test/parts"
)

// The scenarios in a few seconds each, on a machine that may be busy. So the sidecars are patient,
// and requests have no deadline. Claims that do not depend on speed must hold: no error and no
// false alarm. While Redis decides all no hit is over, and Redis has each hit in the end. If all
// answers are fast then, a fleet denies nearly as little as one process does. The bounds of
// over-admission in an outage are wide, as a slow machine notices an outage late.
func TestFleetsKeepTheirPromisesAroundFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	const root = "../.."
	noteSources(t, root)
	c := course{calm: time.Second, lasts: time.Second, watched: time.Second, scale: 0.2}
	c.programs.redis = parts.NeedRedis(t, root)
	sidecar, err := program.Sidecar(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	c.programs.sidecar = sidecar
	const patient = "10s" // Redis decides all
	for _, test := range []struct {
		scenario string
		modes    []string
		timeout  string  // of Redis
		scale    float64 // 0: a fifth
		over     float64 // percent of the hits that one process would have admitted
		missing  int     // hits that Redis may not know
		crowd    int     // requests in flight above the limit
	}{
		{scenario: "steady", modes: []string{"exact"}, timeout: patient},
		{scenario: "steady", modes: []string{"leased"}, timeout: patient, scale: 1},
		{scenario: "steady-cluster", modes: []string{"exact"}, timeout: patient},
		{scenario: "moving", modes: []string{"leased"}, timeout: patient},
		{scenario: "late", modes: []string{"leased"}, timeout: patient, scale: 1},
		{scenario: "stopped", modes: []string{"exact", "leased"}, timeout: "200ms", over: 15},
		{scenario: "paused", modes: []string{"leased"}, timeout: "200ms", over: 15},
		{scenario: "cut", modes: []string{"exact"}, timeout: "200ms", over: 50},
		{scenario: "read-only", modes: []string{"exact"}, timeout: "200ms", over: 50},
		{scenario: "shard", modes: []string{"exact"}, timeout: "200ms", over: 50},
		{scenario: "rolling-sized", modes: []string{"leased"}, timeout: "200ms", over: 50, missing: 1000},
		{scenario: "holds", modes: []string{"exact"}, timeout: "200ms", crowd: 20},
	} {
		for _, mode := range test.modes {
			t.Run(test.scenario+", "+mode, func(t *testing.T) {
				t.Parallel()
				all, c := scenarios(), c
				c.scale = cmp.Or(test.scale, c.scale)
				i := slices.IndexFunc(all, func(s scenario) bool { return s.name == test.scenario })
				c.args = []string{"--sharing=" + mode, "--redis-timeout=" + test.timeout}
				r, err := measure(t.Context(), all[i], c)
				if err != nil {
					t.Fatal(err)
				}
				t.Log(r.row(&all[i], mode))
				if r.overShare > test.over || r.crowd > test.crowd || r.missing > test.missing {
					t.Errorf("%d hits over, %d in flight too many, %d not counted; want at most %v %%, %d and %d",
						r.over, r.crowd, r.missing, test.over, test.crowd, test.missing)
				}
				const fast, denied = 100 * time.Millisecond, 10 // percent
				if test.timeout == patient && r.slowest < fast && r.after > denied {
					t.Errorf("%.1f %% of the hits were denied, and one process would have admitted them; want at most %d %%", r.after, denied)
				}
				if r.admitted == r.asked {
					t.Error("nothing was denied: the load did not reach the limits")
				}
				if r.errors > 0 || len(r.alarms) > 0 || r.asked == 0 {
					t.Errorf("of %d requests %d ended with an error: %v; false alarms: %q", r.asked, r.errors, r.why, r.alarms)
				}
			})
		}
	}
}

// noteSources opens the source files of the sidecar, so that `go test` runs this test again when
// one has changed.
func noteSources(t *testing.T, root string) {
	t.Helper()
	for _, dir := range []string{"cmd", "internal", "pkg"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				_, err = os.Stat(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestArgumentsAreBounded(t *testing.T) {
	for _, args := range [][]string{{"-lasts=0s"}, {"-watched=1ms"}, {"-timeout=-1s"}, {"-mode=magic"}, {"-mode="}, {"-scenario=("}, {"-scenario=magic"}, {"more"}, {"-nonsense"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parse(%q): got no error", args)
		}
	}
	o, err := parse([]string{"-scenario=steady|late", "-mode=leased", "--", "--fleet-size=4"}, io.Discard)
	if err != nil || len(o.more) != 1 || len(o.modes) != 1 || !o.scenario.MatchString("late") || o.scenario.MatchString("later") {
		t.Errorf("parse: got %+v, %v", o, err)
	}
}

// A skewed or moving load has the same requests as an even one.
func TestEachLoadHasAllRequests(t *testing.T) {
	p, err := newPlan(2*time.Second, 1, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	var want int
	for _, k := range p.keys {
		want += int(2*k.rate + 0.5)
	}
	for l, most := range map[load]float64{even: 0.26, skewed: 0.91, moving: 0.27} {
		all, largest := 0, 0
		for _, of := range p.schedule(4, l) {
			all, largest = all+len(of), max(largest, len(of))
		}
		if all < want-len(p.keys) || all > want+len(p.keys) || float64(largest) > most*float64(all) {
			t.Errorf("load %d: %d requests, %d of them for one sidecar; want %d", l, all, largest, want)
		}
	}
}

func TestAMetricThatContradictsTheClientsIsAFalseAlarm(t *testing.T) {
	const healthy = `weir_config_last_reload_successful 1
weir_requests_total{code="ok"} 7
weir_requests_total{code="over_limit"} 3
weir_request_duration_seconds_count 10
`
	calm := seen{verdict: verdict{asked: 10, admitted: 7, slowest: time.Millisecond}, quiet: true}
	for name, test := range map[string]struct {
		page   string
		change func(*seen)
		alarms int
	}{
		"healthy":                         {page: healthy},
		"lost, and no limit was passed":   {page: healthy + "weir_store_lost_hits_total 610\n", alarms: 1},
		"lost, and over":                  {healthy + "weir_store_lost_hits_total 610\n", func(s *seen) { s.over = 600 }, 0},
		"an error that no client saw":     {page: healthy + "weir_requests_total{code=\"error\"} 1\n", alarms: 1},
		"an error that only clients saw":  {healthy, func(s *seen) { s.errors = 1 }, 1},
		"open, and all answers are fast":  {page: healthy + "weir_store_opened_total 1\n", alarms: 1},
		"opened before the clients began": {healthy + "weir_store_opened_total 1\n", func(s *seen) { s.opened = 1 }, 0},
		"open, and an answer is slow":     {healthy + "weir_store_opened_total 1\n", func(s *seen) { s.slowest = shortWait }, 0},
		"open, in an outage":              {healthy + "weir_store_opened_total 1\n", func(s *seen) { s.quiet, s.away = false, true }, 0},
		"an outage without a word":        {healthy, func(s *seen) { s.quiet, s.away = false, true }, 1},
		"without Redis, though fast":      {page: healthy + "weir_store_fallback_decisions_total{policy=\"local\"} 1\n", alarms: 1},
		"fewer admitted":                  {healthy, func(s *seen) { s.admitted = 6 }, 1},
		"fewer requests":                  {healthy, func(s *seen) { s.asked = 9 }, 1},
		"another program since":           {healthy, func(s *seen) { s.asked, s.replaced = 20, true }, 0},
		"rules that were refused":         {page: strings.Replace(healthy, "successful 1", "successful 0", 1), alarms: 1},
		"a fault of Weir":                 {page: healthy + "weir_store_disagreements_total 1\n", alarms: 1},
	} {
		s := calm
		if test.change != nil {
			test.change(&s)
		}
		if got := falseAlarms([]drive.Metrics{drive.Metrics(test.page)}, &s); len(got) != test.alarms {
			t.Errorf("%s: got %q; want %d", name, got, test.alarms)
		}
	}
}
