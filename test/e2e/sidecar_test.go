package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// A sidecar is a running sidecar and the rule file it serves.
type sidecar struct {
	*parts.Sidecar
	rules   string // path of the rule file
	stopped bool   // by the test: it may have ended
}

// startSidecar writes the rules to a file of its own and serves them, on ports the system chooses;
// later args win over that.
func startSidecar(t *testing.T, rules string, args ...string) *sidecar {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	parts.Write(t, file, rules)
	return startSidecarOn(t, file, args...)
}

// startSidecarOn serves the rules at path, which may be a directory.
func startSidecarOn(t *testing.T, path string, args ...string) *sidecar {
	t.Helper()
	args = append([]string{
		"--rules=" + path, "--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=127.0.0.1:0",
	}, args...)
	process, err := parts.StartSidecar(parts.Soon(t), os.Getenv(sidecarVariable), args...)
	if err != nil {
		t.Fatal(err)
	}
	s := &sidecar{Sidecar: process, rules: path}
	t.Cleanup(func() { s.end(t) })
	return s
}

// end ends the process, and checks the claims that hold for every sidecar in every test.
func (s *sidecar) end(t *testing.T) {
	t.Helper()
	end(t, s.Process, s.stopped)
}

// end ends one of our programs, and checks two claims that hold in every test. The program never
// ended by itself, unless the test has stopped it. The race detector found no race.
func end(t *testing.T, process *parts.Process, stopped bool) {
	t.Helper()
	select {
	case <-process.Exited():
		if !stopped {
			t.Errorf("the program under test ended by itself")
		}
	default:
		process.Kill()
	}
	if log := strings.Join(process.Lines(), "\n"); strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic:") {
		t.Errorf("the program under test raced or panicked:\n%s", log)
		return
	}
	if t.Failed() {
		t.Logf("the last lines of the program under test:\n%s", process.Tail(30))
	}
}

// terminate sends SIGTERM.
func (s *sidecar) terminate(t *testing.T) {
	t.Helper()
	s.stopped = true
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// awaitExit waits for the end and wants exit code 0.
func (s *sidecar) awaitExit(t *testing.T) {
	t.Helper()
	code, err := s.Wait(parts.Soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if code != 0 {
		t.Errorf("the sidecar's exit code after SIGTERM: got %d, want 0", code)
	}
}

// metric returns the sum of the samples of a metric whose labels contain all of the given ones
// (`code="ok"`).
func (s *sidecar) metric(t *testing.T, name string, labels ...string) int {
	t.Helper()
	_, text := s.page(t, "/metrics")
	return sum(t, text, name, labels...)
}

// gauge returns the same sum with its fraction.
func (s *sidecar) gauge(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	_, text := s.page(t, "/metrics")
	return exact(t, text, name, labels...)
}

// sum is metric for the text of such a page.
func sum(t *testing.T, text, name string, labels ...string) int {
	t.Helper()
	return int(exact(t, text, name, labels...))
}

// exact is sum with the fraction.
func exact(t *testing.T, text, name string, labels ...string) float64 {
	t.Helper()
	sum := 0.0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name) {
			continue
		}
		series, value, found := strings.Cut(strings.TrimSpace(line), " ")
		bare, set, _ := strings.Cut(series, "{")
		if !found || bare != name || !containsAll(set, labels) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("metric %q: %v", line, err)
		}
		sum += n
	}
	return sum
}

// fetch returns the code and the text of a page.
func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	answer, text, err := parts.Page(parts.Soon(t), http.MethodGet, url, "")
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, text
}

// containsAll reports whether s contains every one of the parts.
func containsAll(s string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}
