package e2e

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/test/parts"
)

// deployed returns the path of a file of deploy/.
func deployed(t *testing.T, elements ...string) string {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(append([]string{root, "deploy"}, elements...)...)
}

// withPorts returns a bootstrap of deploy/ with only two changes: free ports, and timeouts that are
// long enough for a busy machine.
func withPorts(t *testing.T, file string, replacements ...string) string {
	t.Helper()
	return withPortsTo(t, startBackend(t), file, replacements...)
}

// withPortsTo is withPorts with the backend at host:port.
func withPortsTo(t *testing.T, backend, file string, replacements ...string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(backend)
	if err != nil {
		t.Fatal(err)
	}
	replacements = append(replacements,
		"address: 0.0.0.0, port_value: 10000", "address: 127.0.0.1, port_value: 0",
		"port_value: 9901", "port_value: 0",
		"port_value: 18080", "port_value: "+port,
		"timeout: 0.050s", "timeout: 10s",
	)
	text := ""
	for line := range strings.Lines(readFile(t, deployed(t, file))) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			text += line
		}
	}
	for i := 0; i < len(replacements); i += 2 {
		if n := strings.Count(text, replacements[i]); n != 1 {
			t.Fatalf("%s has %q %d times, want once", file, replacements[i], n)
		}
		text = strings.Replace(text, replacements[i], replacements[i+1], 1)
	}
	return text
}

// checkDeployed sends the requests that the comments of deploy/rules/edge.yaml describe.
func checkDeployed(t *testing.T, e *envoy) {
	t.Helper()
	hello := func(query string, headers ...string) []string {
		a := e.get(t, "/hello"+query, headers...)
		return []string{a.header.Get("x-ratelimit-limit"), a.header.Get("x-ratelimit-remaining"), a.body}
	}
	const anonymous = "3, 3;w=60, 50;w=1"
	if diff := cmp.Diff([]string{anonymous, "2", "backend\n"}, hello("")); diff != "" {
		t.Errorf("the first GET /hello (-want +got):\n%s", diff)
	}
	// Another query, and other spellings of the path, are no way around.
	if diff := cmp.Diff([]string{anonymous, "1", "backend\n"}, hello("?again")); diff != "" {
		t.Errorf("the second (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{200, 429}, append(e.codes(t, 1, "//hello"), e.codes(t, 1, "/./hello")...)); diff != "" {
		t.Errorf("the third and the fourth (-want +got):\n%s", diff)
	}
	denied := e.get(t, "/hello")
	if denied.code != 429 {
		t.Errorf("the fifth: got %d, want 429", denied.code)
	}
	denied.seconds(t, "retry-after", 1, 20)

	// A caller with a key has a limit of its own, and one over all paths.
	const keyed = "10, 10;w=60, 50;w=10, 50;w=1"
	got := e.get(t, "/hello", "x-api-key: alice")
	if limit, left := got.header.Get("x-ratelimit-limit"), got.header.Get("x-ratelimit-remaining"); got.code != 200 || limit != keyed || left != "9" {
		t.Errorf("with a key: got %d, %q and %q left, want 200, %q and 9", got.code, limit, left, keyed)
	}

	// The default limit, for a path without a rule; none at all for the probes.
	if got, want := e.get(t, "/other").header.Get("x-ratelimit-limit"), "600;w=60"; !strings.Contains(got, want) {
		t.Errorf("/other: got x-ratelimit-limit %q, want %q in it", got, want)
	}
	if got, want := e.get(t, "/healthz").header.Get("x-ratelimit-limit"), "50, 50;w=1"; got != want {
		t.Errorf("/healthz: got x-ratelimit-limit %q, want %q, the address's alone", got, want)
	}
	if stats := e.rateLimitStats(t); stats["error"] != 0 {
		t.Errorf("Envoy's counters: got %v, want no error", stats)
	}
}

func TestDeployedEnvoyAndRulesLimitOverTCP(t *testing.T) {
	t.Parallel()
	binary := findEnvoy(t)
	s := startSidecarOn(t, deployed(t, "rules"))
	_, port, err := net.SplitHostPort(s.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	e := startEnvoyOn(t, binary, withPorts(t, "envoy.yaml", "port_value: 8081", "port_value: "+port))
	checkDeployed(t, e)

	// Envoy fails open: with Weir gone every request passes, and Envoy counts the failures.
	s.terminate(t)
	s.awaitExit(t)
	if diff := cmp.Diff(repeat(3, 200), e.codes(t, 3, "/hello")); diff != "" {
		t.Errorf("with Weir stopped (-want +got):\n%s", diff)
	}
	if got := e.rateLimitStats(t)["failure_mode_allowed"]; got != 3 {
		t.Errorf("let pass without an answer: got %d, want 3", got)
	}
}

func TestDeployedEnvoyAndRulesLimitOverTheUnixSocket(t *testing.T) {
	t.Parallel()
	binary := findEnvoy(t)
	path := socketPath(t)
	startSidecarOn(t, deployed(t, "rules"), "--grpc-address=", "--grpc-socket="+path)
	checkDeployed(t, startEnvoyOn(t, binary, withPorts(t, "envoy-uds.yaml", "/run/weir/rls.sock", path)))
}
