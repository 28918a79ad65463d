package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// socketPath returns a path for a Unix socket, which may have no more than about 100 bytes:
// t.TempDir can be longer.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "rls.sock")
}

func TestEnvoyAsksOverTheUnixSocket(t *testing.T) {
	t.Parallel()
	const rules = `
domain: e2e
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 2, unit: year}
`
	path := socketPath(t)
	// A killed sidecar's socket file does not stop the next sidecar.
	killed := startSidecar(t, rules, "--grpc-address=", "--grpc-socket="+path)
	killed.stopped = true
	killed.Kill()
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.ModeSocket {
		t.Fatalf("the socket of a killed sidecar: got %v, %v; want it to be left", info, err)
	}

	s := startSidecar(t, rules, "--grpc-address=", "--grpc-socket="+path, "--grpc-socket-mode=0600")
	if s.GRPC != "" {
		t.Errorf("the sidecar listens on %s too, though --grpc-address is empty", s.GRPC)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := info.Mode().Perm(), fs.FileMode(0o600); got != want {
		t.Errorf("the socket's mode: got %o, want %o", got, want)
	}
	e := startEnvoy(t, envoyConfig{RateLimits: byUser, Endpoints: []string{pipeAddress(path)}, HealthChecked: true})
	if diff := cmp.Diff([]int{200, 200, 429}, e.codes(t, 3, "/", "x-user: alice")); diff != "" {
		t.Errorf("through the socket (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"ok": 2, "over_limit": 1}, e.rateLimitStats(t)); diff != "" {
		t.Errorf("Envoy's counters (-want +got):\n%s", diff)
	}

	s.terminate(t)
	s.awaitExit(t)
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket after an orderly end: got %v, want it gone", err)
	}
}
