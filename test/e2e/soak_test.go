package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// soakRules let everybody pass but one user. The second number changes with each reload.
const soakRules = `
domain: e2e
descriptors:
  - key: user
    rate_limit: {requests_per_unit: %d, unit: year}
  - key: user
    value: banned
    rate_limit: {requests_per_unit: 0, unit: year}
`

// soakFor returns how long the soak runs: as the environment variable SOAK says, or for a moment.
func soakFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("SOAK")
	if text == "" {
		return 2 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("SOAK: %v", err)
	}
	return d
}

// Two programs serve one Envoy. One drains, ends and starts again and again. The other one stays,
// and shows the cost of a long life. All rules change meanwhile, and Envoy makes a new connection
// after 100 requests. A restart explains no lost answer: Envoy's health check sees the drain, and
// asks the program that stays. So each request gets its due answer.
func TestASoakBehindEnvoyLosesNothingAndLeavesNothing(t *testing.T) {
	once(t)
	t.Parallel()
	for name, choose := range map[string]func(*testing.T) way{"tcp": plainWay, "unix": unixWay, "tls": tlsWay, "mtls": mutualWay} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSoak(t, choose(t))
			before := s.settled(t)
			e := startEnvoy(t, envoyConfig{
				RateLimits: byUser, Endpoints: []string{s.way.endpoint(t, s.stays), s.way.endpoint(t, s.goes)}, Transport: s.way.transport,
				HealthChecked: true, FailureModeDeny: true, MaxRequests: 100,
			})
			s.run(t, e)
			e.Kill()
			s.wantNothingLeft(t, before)
		})
	}
}

// A soak is the two programs, and samples of the one that stays.
type soak struct {
	way         way
	rules       string // path of the file
	stays, goes string // addresses
	metrics     string // URL of the page of the program that stays
	moving      *sidecar

	restarts, reloads int
	resident          []int // bytes, of each sample
	goroutines        []int
}

func newSoak(t *testing.T, w way) *soak {
	t.Helper()
	root := t.TempDir()
	s := &soak{way: w, rules: filepath.Join(root, "config", "rules.yaml"), stays: w.address(t), goes: w.address(t)}
	if err := os.Mkdir(filepath.Dir(s.rules), 0o755); err != nil {
		t.Fatal(err)
	}
	parts.Write(t, s.rules, fmt.Sprintf(soakRules, 1_000_000_000))
	if w.unix || w.files != nil {
		s.metrics = "http://" + w.start(t, s.rules, s.stays).HTTP + "/metrics"
	} else {
		s.metrics = "http://" + w.aged(t, root, s.stays).Metrics + "/metrics"
	}
	s.moving = w.start(t, s.rules, s.goes)
	return s
}

// metric returns the sum of a metric of the program that stays.
func (s *soak) metric(t *testing.T, name string, labels ...string) int {
	t.Helper()
	_, text := fetch(t, s.metrics)
	return sum(t, text, name, labels...)
}

// settled returns the goroutines of the program that stays without connections, after some of each
// kind.
func (s *soak) settled(t *testing.T) int {
	t.Helper()
	for first := range 7 {
		if err := s.ask(parts.Soon(t), first); err != nil {
			t.Fatal(err)
		}
	}
	s.awaitIdle(t)
	return s.metric(t, "go_goroutines")
}

// ask asks the program that stays, without Envoy.
func (s *soak) ask(ctx context.Context, first int) error {
	return mixed(ctx, s.way.target(s.stays), s.way.client, first)
}

// awaitIdle waits until the program that stays has no connection, and holds nothing for one.
func (s *soak) awaitIdle(t *testing.T) {
	t.Helper()
	parts.Eventually(t, func() string {
		_, text := fetch(t, s.metrics)
		connections, held := sum(t, text, "weir_connections", `server="grpc"`), sum(t, text, "weir_in_flight_bytes")
		if streams := sum(t, text, "weir_in_flight_streams"); connections+streams+held != 0 {
			return fmt.Sprintf("%d connections, %d streams, %d bytes in flight", connections, streams, held)
		}
		return ""
	})
}

// run asks through Envoy and directly, restarts and reloads, and checks each answer.
func (s *soak) run(t *testing.T, e *envoy) {
	t.Helper()
	through := newTraffic(t, 4, 20*time.Millisecond, func(ctx context.Context, worker int) string {
		user, due := fmt.Sprintf("user-%d", worker), 200
		if worker == 3 {
			user, due = "banned", 429
		}
		a, err := e.try(ctx, "/", "x-user: "+user)
		switch {
		case err != nil:
			return err.Error()
		case a.code != due:
			return fmt.Sprintf("%d for %s", a.code, user)
		}
		return "due"
	})
	var connections int // of the only worker
	direct := newTraffic(t, 1, 50*time.Millisecond, func(ctx context.Context, _ int) string {
		connections++
		if err := s.ask(ctx, connections); err != nil {
			return err.Error()
		}
		return "due"
	})
	for end := time.Now().Add(soakFor(t)); s.restarts < 1 || time.Now().Before(end); {
		through.awaitMore(t, 400)
		direct.awaitMore(t, 5)
		s.restart(t, e)
		s.reload(t)
		_, text := fetch(t, s.metrics)
		s.resident = append(s.resident, sum(t, text, "process_resident_memory_bytes"))
		s.goroutines = append(s.goroutines, sum(t, text, "go_goroutines"))
	}
	through.awaitMore(t, 400)
	seen, alone := through.stop(), direct.stop()
	t.Logf("through Envoy: %v; connections of the client: %v", seen, alone)
	for _, outcomes := range []map[string]int{seen, alone} {
		if codes := slices.Sorted(maps.Keys(outcomes)); !slices.Equal(codes, []string{"due"}) {
			t.Errorf("outcomes: got %v, want the due answers alone", outcomes)
		}
	}
	s.wantQuietEnvoy(t, e, seen["due"])
}

// restart drains and ends one program, starts it again, and waits until Envoy asks both.
func (s *soak) restart(t *testing.T, e *envoy) {
	t.Helper()
	s.moving.terminate(t)
	s.moving.awaitExit(t)
	s.moving = s.way.start(t, s.rules, s.goes)
	parts.Eventually(t, func() string {
		if n := e.stat(t, "cluster.rls.membership_healthy"); n != 2 {
			return fmt.Sprintf("after restart %d: %d healthy programs", s.restarts+1, n)
		}
		return ""
	})
	s.restarts++
}

// reload changes the rules and waits for both programs.
func (s *soak) reload(t *testing.T) {
	t.Helper()
	const loads = "weir_config_reloads_total"
	before, moving := s.metric(t, loads, `result="success"`), s.moving.metric(t, loads, `result="success"`)
	s.reloads++
	next := filepath.Join(filepath.Dir(s.rules), ".next")
	parts.Write(t, next, fmt.Sprintf(soakRules, 1_000_000_000+s.reloads))
	if err := os.Rename(next, s.rules); err != nil {
		t.Fatal(err)
	}
	parts.Eventually(t, func() string {
		if s.metric(t, loads, `result="success"`) == before || s.moving.metric(t, loads, `result="success"`) == moving {
			return fmt.Sprintf("reload %d does not come into force", s.reloads)
		}
		return ""
	})
}

// wantQuietEnvoy checks the counters of Envoy: each answer came, and connections changed without a
// reset.
func (s *soak) wantQuietEnvoy(t *testing.T, e *envoy, due int) {
	t.Helper()
	stats := e.rateLimitStats(t)
	if stats["error"]+stats["failure_mode_allowed"] != 0 || stats["ok"]+stats["over_limit"] < due {
		t.Errorf("Envoy's counters: got %v, want no error, and an answer for each of %d requests", stats, due)
	}
	for _, name := range []string{
		"upstream_rq_rx_reset", "upstream_rq_timeout", "upstream_rq_pending_failure_eject",
		"upstream_cx_destroy_remote_with_active_rq", "upstream_cx_destroy_local_with_active_rq", "http2.rx_messaging_error",
	} {
		if n := e.stat(t, "cluster.rls."+name); n != 0 {
			t.Errorf("cluster.rls.%s: got %d, want 0", name, n)
		}
	}
	churned := map[string]int{} // Envoy counts an error of the protocol where it ends a connection itself, with grpc-go too
	for _, name := range []string{
		"upstream_cx_total", "upstream_cx_max_requests", "upstream_cx_close_notify", "upstream_cx_protocol_error", "upstream_cx_connect_fail",
		"upstream_cx_connect_timeout", "health_check.attempt", "health_check.failure",
	} {
		churned[name] = e.stat(t, "cluster.rls."+name)
	}
	t.Logf("restarts %d, reloads %d, Envoy: %v", s.restarts, s.reloads, churned)
	if churned["upstream_cx_max_requests"] == 0 {
		t.Error("Envoy has changed no connection: the soak shows little")
	}
}

// wantNothingLeft checks the program that stays, without connections again.
func (s *soak) wantNothingLeft(t *testing.T, before int) {
	t.Helper()
	s.awaitIdle(t)
	const slack = 8 // goroutines of the page of metrics and of the Go runtime
	parts.Eventually(t, func() string {
		if n := s.metric(t, "go_goroutines"); n > before+slack {
			return fmt.Sprintf("%d goroutines without connections, %d before the soak", n, before)
		}
		return ""
	})
	warm := s.resident[len(s.resident)/4:]
	first, last := slices.Max(warm[:(len(warm)+1)/2]), slices.Max(warm[len(warm)/2:])
	t.Logf("goroutines %d before, %v during, %d after; resident MiB %v", before, ends(s.goroutines), s.metric(t, "go_goroutines"), ends(mebibytes(s.resident)))
	if grown := last - first; soakFor(t) >= time.Minute && grown > 8<<20 {
		t.Errorf("resident memory: at most %d bytes, later %d", first, last)
	}
}

// ends returns the first and last numbers of many.
func ends(all []int) []int {
	if len(all) > 10 {
		return slices.Concat(all[:5], all[len(all)-5:])
	}
	return all
}

func mebibytes(bytes []int) []int {
	all := make([]int, 0, len(bytes))
	for _, n := range bytes {
		all = append(all, n>>20)
	}
	return all
}
