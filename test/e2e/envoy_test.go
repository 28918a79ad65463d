package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"github.com/weirproxy/weir/test/parts"
)

// An envoyConfig holds a test's options of Envoy; testdata/envoy.yaml.tmpl has the rest.
type envoyConfig struct {
	RateLimits      string   // YAML list: which descriptors a request has
	Filters         string   // YAML list of HTTP filters that run before the rate limit filter
	Route           string   // YAML: options of the route to the backend
	Endpoints       []string // addresses of sidecars, made by tcpAddress and pipeAddress
	Transport       string   // YAML: transport socket of the connections to sidecars; "" is plain
	HealthChecked   bool     // sidecars are health checked every 100 ms
	MaxRequests     int      // of one connection to a sidecar; then Envoy makes another. 0: no bound
	FailureModeDeny bool
	NoRetryAfter    bool // Envoy does not make a retry-after header itself

	Backend, AccessLog string // set by startEnvoy
}

// tcpAddress is host:port as Envoy writes an address.
func tcpAddress(t *testing.T, hostPort string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("{ socket_address: { address: %q, port_value: %s } }", host, port)
}

// pipeAddress is a Unix socket as Envoy writes an address.
func pipeAddress(path string) string {
	return fmt.Sprintf("{ pipe: { path: %q } }", path)
}

// An envoy is a running Envoy with a backend behind it.
type envoy struct {
	*parts.Envoy
	url       string // of its listener
	accessLog string // path; one JSON object per request
}

// startEnvoy runs Envoy in front of the sidecars of c and of a backend of its own.
func startEnvoy(t *testing.T, c envoyConfig) *envoy {
	t.Helper()
	return startEnvoyTo(t, startBackend(t), c)
}

// startEnvoyTo is startEnvoy with the backend at host:port.
func startEnvoyTo(t *testing.T, backend string, c envoyConfig) *envoy {
	t.Helper()
	c.AccessLog = filepath.Join(t.TempDir(), "access.log")
	c.Backend = tcpAddress(t, backend)
	e := startEnvoyOn(t, bootstrap(t, "envoy.yaml.tmpl", c))
	e.accessLog = c.AccessLog
	return e
}

// bootstrap renders the template of that name in testdata with data.
func bootstrap(t *testing.T, name string, data any) string {
	t.Helper()
	indent := func(n int, text string) string {
		pad := strings.Repeat(" ", n)
		return pad + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+pad)
	}
	tmpl, err := template.New(name).Funcs(template.FuncMap{"indent": indent}).ParseFiles(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := tmpl.Execute(&text, data); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// startEnvoyOn runs Envoy with that bootstrap, which has a listener named ingress.
func startEnvoyOn(t *testing.T, bootstrap string) *envoy {
	t.Helper()
	process, url := parts.EnvoyFor(t, bootstrap)
	return &envoy{Envoy: process, url: url}
}

// startBackend serves the backend of Envoy and returns its host:port. The backend answers 200, with
// the query's cost in the header x-cost: /?cost=4 gives x-cost: 4.
func startBackend(t *testing.T) string {
	t.Helper()
	return startBackendNamed(t, "backend")
}

// startBackendNamed is startBackend with the given text in its answers.
func startBackendNamed(t *testing.T, name string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if cost := r.URL.Query().Get("cost"); cost != "" {
			w.Header().Set("x-cost", cost)
		}
		fmt.Fprintln(w, name)
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// An answer is an answer as the client got it.
type answer struct {
	code   int
	header http.Header
	body   string
}

// get sends a GET through Envoy. Headers are "name: value".
func (e *envoy) get(t *testing.T, path string, headers ...string) answer {
	t.Helper()
	a, err := e.try(parts.Soon(t), path, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// try is get for goroutines that may not end the test.
func (e *envoy) try(ctx context.Context, path string, headers ...string) (answer, error) {
	return e.tryOn(ctx, http.DefaultClient, path, headers...)
}

// tryOn is try with the client's connections.
func (e *envoy) tryOn(ctx context.Context, client *http.Client, path string, headers ...string) (answer, error) {
	return e.send(ctx, client, path, nil, headers...)
}

// send sends a POST of JSON, or a GET if there is no body.
func (e *envoy) send(ctx context.Context, client *http.Client, path string, body io.Reader, headers ...string) (answer, error) {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
		headers = append([]string{"content-type: application/json"}, headers...)
	}
	request, err := http.NewRequestWithContext(ctx, method, e.url+path, body)
	if err != nil {
		return answer{}, err
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		request.Header.Set(name, value)
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(text)}, err
}

// codes sends n times the same request and returns the status codes.
func (e *envoy) codes(t *testing.T, n int, path string, headers ...string) []int {
	t.Helper()
	codes := make([]int, n)
	for i := range codes {
		codes[i] = e.get(t, path, headers...).code
	}
	return codes
}

// stat returns one of Envoy's counters or gauges.
func (e *envoy) stat(t *testing.T, name string) int {
	t.Helper()
	n, err := e.Stat(parts.Soon(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// rateLimitStats returns how many of the backend's requests were judged, and how: ok, over_limit,
// error, failure_mode_allowed.
func (e *envoy) rateLimitStats(t *testing.T) map[string]int {
	t.Helper()
	stats := map[string]int{}
	for _, name := range []string{"ok", "over_limit", "error", "failure_mode_allowed"} {
		if n := e.stat(t, "cluster.backend.ratelimit."+name); n != 0 {
			stats[name] = n
		}
	}
	return stats
}
