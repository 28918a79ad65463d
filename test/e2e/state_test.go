package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// stateRules have a limit of each kind of state. A year has no end within a test, but at New Year.
const stateRules = `
domain: e2e
descriptors:
  - key: user
    rate_limits:
      - {requests_per_unit: 10, unit: year, algorithm: token_bucket}
      - {requests_per_unit: 12, unit: year, algorithm: sliding_window_counter}
      - {requests_per_unit: 14, unit: year, algorithm: sliding_window_log}
`

// passed asks n times through Envoy and returns how many requests passed.
func (e *envoy) passed(t *testing.T, n int, user string) int {
	t.Helper()
	passed := 0
	for _, code := range e.codes(t, n, "/", "x-user: "+user) {
		if code == 200 {
			passed++
		}
	}
	return passed
}

// A sidecar is stopped and started again under Envoy, as the kubelet does with a container in a
// pod: the directory outlives the process. At most the limit passes before and after together.
func TestCountsOutliveARestartUnderEnvoy(t *testing.T) {
	t.Parallel()
	dir, socket := t.TempDir(), filepath.Join(t.TempDir(), "rls.sock")
	args := []string{"--grpc-address=", "--grpc-socket=" + socket, "--state-dir=" + dir}
	s := startSidecar(t, stateRules, args...)
	e := startEnvoy(t, envoyConfig{RateLimits: byUser, Endpoints: []string{pipeAddress(socket)}, HealthChecked: true})
	if got := e.passed(t, 6, "alice"); got != 6 {
		t.Fatalf("before the restart: %d of 6 passed, want all", got)
	}
	if got := e.passed(t, 11, "bob"); got != 10 {
		t.Fatalf("before the restart: %d of 11 passed, want 10", got)
	}
	s.terminate(t)
	s.awaitExit(t)
	s = startSidecarOn(t, s.rules, args...)
	if n := s.metric(t, "weir_state_loaded_keys"); n != 6 {
		t.Errorf("weir_state_loaded_keys: got %d, want the 3 limits of 2 users", n)
	}
	awaitRateLimited(t, e)
	if got := e.passed(t, 10, "alice"); got != 4 {
		t.Errorf("after the restart: %d passed, want the 4 that were left", got)
	}
	if got := e.passed(t, 3, "bob"); got != 0 {
		t.Errorf("after the restart: %d passed of a spent limit, want 0", got)
	}
}

// awaitRateLimited waits until Envoy asks the sidecar again: a probe user of its own gets through,
// and is counted.
func awaitRateLimited(t *testing.T, e *envoy) {
	t.Helper()
	start := time.Now()
	parts.Eventually(t, func() string {
		asked := e.rateLimitStats(t)["ok"]
		e.codes(t, 1, "/", fmt.Sprint("x-user: probe", start.UnixNano()))
		if e.rateLimitStats(t)["ok"] == asked {
			return "Envoy does not ask the sidecar yet"
		}
		return ""
	})
}
