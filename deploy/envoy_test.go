package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// startBackend serves the backend of Envoy and returns its address. /?tokens=4 is answered with
// x-tokens: 4.
func startBackend(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tokens := r.URL.Query().Get("tokens"); tokens != "" {
			w.Header().Set("x-tokens", tokens)
		}
		fmt.Fprintln(w, "backend")
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// A list and a table are YAML and JSON.
type (
	list  = []any
	table = map[string]any
)

// as is at where there must be a table, a list or a text.
func as[T table | list | string](t *testing.T, v any, path ...any) T {
	t.Helper()
	there := at(t, v, path...)
	found, ok := there.(T)
	if !ok {
		t.Fatalf("at %v: got %T, want %T", path, there, found)
	}
	return found
}

// socket is an address as Envoy writes it.
func socket(t *testing.T, address string) table {
	t.Helper()
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return table{"socket_address": table{"address": host, "port_value": portOf(t, address)}}
}

// cluster is a static cluster, which replaces the service discovery of a platform.
func cluster(t *testing.T, name, address string, more table) table {
	t.Helper()
	c := table{"name": name, "type": "STATIC", "connect_timeout": "10s", "load_assignment": table{"cluster_name": name, "endpoints": list{
		table{"lb_endpoints": list{table{"endpoint": table{"address": socket(t, address)}}}},
	}}}
	maps.Copy(c, more)
	return c
}

// speaksHTTP2 returns the options of a cluster for gRPC.
func speaksHTTP2() table {
	const options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	return table{"typed_extension_protocol_options": table{options: table{
		"@type": "type.googleapis.com/" + options, "explicit_http_config": table{"http2_protocol_options": table{}},
	}}}
}

// bootstrap is an Envoy with one listener, which has these filters and routes.
func bootstrap(routes any, filters list, clusters ...any) table {
	const manager = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	return withManager(table{
		"@type": "type.googleapis.com/" + manager, "stat_prefix": "ingress", "use_remote_address": true,
		"route_config": routes, "http_filters": filters,
	}, clusters...)
}

// withManager is an Envoy with one listener and the given connection manager.
func withManager(manager any, clusters ...any) table {
	loopback := table{"socket_address": table{"address": "127.0.0.1", "port_value": 0}}
	return table{
		"admin": table{"address": loopback},
		"static_resources": table{
			"clusters": clusters,
			"listeners": list{table{"name": "ingress", "address": loopback, "filter_chains": list{table{"filters": list{
				table{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager},
			}}}}},
		},
	}
}

// router is the last of all filters.
func router() table {
	return table{"name": "envoy.filters.http.router", "typed_config": table{
		"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
	}}
}

// An envoy is one that runs.
type envoy struct {
	*parts.Envoy
	url string
}

// startEnvoy runs Envoy with a bootstrap that has a listener named ingress.
func startEnvoy(t *testing.T, bootstrap any) *envoy {
	t.Helper()
	text, err := json.MarshalIndent(bootstrap, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return startEnvoyOn(t, string(text))
}

func startEnvoyOn(t *testing.T, bootstrap string) *envoy {
	t.Helper()
	e, url := parts.EnvoyFor(t, bootstrap)
	return &envoy{e, url}
}

// A call is one request through Envoy.
type call struct {
	method, path string   // GET and / when left out
	from         string   // address of the client, one of the loopback; 127.0.0.1 when left out
	headers      []string // name: value
}

// send sends a request on a new connection and returns the answer; send has read the body.
func (e *envoy) send(t *testing.T, c call) *http.Response {
	t.Helper()
	if c.from == "" {
		c.from = "127.0.0.1"
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.from)}}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(parts.Soon(t), c.method, e.url+c.path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range c.headers {
		name, value, _ := strings.Cut(header, ": ")
		if request.Header.Set(name, value); name == "host" {
			request.Host = value
		}
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		t.Fatal(err)
	}
	return answer
}

// passes holds that n requests pass and that the next one does not.
func (e *envoy) passes(t *testing.T, n int, c call) {
	t.Helper()
	for i := range n + 1 {
		want := http.StatusOK
		if i == n {
			want = http.StatusTooManyRequests
		}
		if got := e.send(t, c).StatusCode; got != want {
			t.Errorf("%v: request %d: got %d, want %d", c, i+1, got, want)
		}
	}
}

// pass holds that n requests pass.
func (e *envoy) pass(t *testing.T, n int, c call) {
	t.Helper()
	for i := range n {
		if got := e.send(t, c).StatusCode; got != http.StatusOK {
			t.Errorf("%v: request %d: got %d, want 200", c, i+1, got)
		}
	}
}

// withoutAnswer holds that requests pass when nobody judges them.
func (e *envoy) withoutAnswer(t *testing.T, s *service, c call) {
	t.Helper()
	s.Kill()
	e.pass(t, 1, c)
}
