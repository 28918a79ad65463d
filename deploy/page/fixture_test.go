package page

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirproxy/weir/test/parts"
)

// sidecar builds the program at most once.
var sidecar = sync.OnceValues(func() (string, error) {
	root, err := parts.Root()
	if err != nil {
		return "", err
	}
	return parts.Program(context.Background(), root, "cmd/sidecar", false)
})

// shop has a rule that denies, a rule that does not, a rule per plan, and a rule in shadow mode.
const shop = `domain: shop
descriptors:
  - key: path
    value: /search
    descriptors:
      - key: client_id
        rate_limit: {algorithm: token_bucket, requests_per_unit: 5, unit: second, burst: 10}
  - key: path
    value: /checkout
    rate_limit: {algorithm: sliding_window_counter, requests_per_unit: 100000, unit: minute}
  - key: plan
    value: free_*
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 1000, algorithm: token_bucket}
  - key: plan
    value: gold
    rate_limit: {unlimited: true}
  - key: path
    value: /export
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 10}
`

// A weir is a sidecar that runs.
type weir struct {
	*parts.Sidecar
	rules string // path of the rule file
}

// serve runs a sidecar with rules.
func serve(t *testing.T, rules string, args ...string) *weir {
	t.Helper()
	file := filepath.Join(t.TempDir(), "shop.yaml")
	parts.Write(t, file, rules)
	return serveFiles(t, file, args...)
}

// serveFiles runs a sidecar with the rules of a file or a directory.
func serveFiles(t *testing.T, file string, args ...string) *weir {
	t.Helper()
	binary, err := sidecar()
	if err != nil {
		t.Fatal(err)
	}
	process, err := parts.StartSidecar(parts.Soon(t), binary, append([]string{
		"--rules=" + file, "--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=127.0.0.1:0",
		"--drain-timeout=100ms",
	}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		process.Kill()
		if t.Failed() {
			t.Logf("the last lines of the sidecar:\n%s", process.Tail(20))
		}
	})
	return &weir{process, file}
}

// throughEnvoy runs Envoy in front of a backend. Envoy asks the sidecar about path and client_id,
// and about plan and user.
func throughEnvoy(t *testing.T, w *weir) (url string) {
	t.Helper()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "backend") }))
	t.Cleanup(backend.Close)
	text, err := json.Marshal(bootstrap(backend.Listener.Addr().String(), w.GRPC))
	if err != nil {
		t.Fatal(err)
	}
	_, url = parts.EnvoyFor(t, string(text))
	return url
}

// bootstrap is the configuration of Envoy.
func bootstrap(backend, weir string) map[string]any {
	type (
		table = map[string]any
		list  = []any
	)
	socket := func(address string) table {
		host, port, _ := net.SplitHostPort(address)
		n, _ := strconv.Atoi(port)
		return table{"socket_address": table{"address": host, "port_value": n}}
	}
	cluster := func(name, address string) table {
		return table{"name": name, "type": "STATIC", "load_assignment": table{"cluster_name": name, "endpoints": list{
			table{"lb_endpoints": list{table{"endpoint": table{"address": socket(address)}}}},
		}}}
	}
	limits := cluster("weir", weir)
	const options, filters = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "type.googleapis.com/envoy.extensions.filters."
	limits["typed_extension_protocol_options"] = table{options: table{
		"@type": "type.googleapis.com/" + options, "explicit_http_config": table{"http2_protocol_options": table{}},
	}}
	header := func(name, key string) table {
		return table{"request_headers": table{"header_name": name, "descriptor_key": key}}
	}
	return table{
		"admin": table{"address": socket("127.0.0.1:0")},
		"static_resources": table{
			"clusters": list{cluster("backend", backend), limits},
			"listeners": list{table{"name": "ingress", "address": socket("127.0.0.1:0"), "filter_chains": list{table{"filters": list{table{
				"name": "envoy.filters.network.http_connection_manager", "typed_config": table{
					"@type": filters + "network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "ingress",
					"route_config": table{"virtual_hosts": list{table{"name": "all", "domains": list{"*"}, "routes": list{table{
						"match": table{"prefix": "/"},
						"route": table{"cluster": "backend", "rate_limits": list{
							table{"actions": list{header(":path", "path"), header("x-client", "client_id")}},
							table{"actions": list{header("x-path", "path")}},
							table{"actions": list{header("x-plan", "plan"), header("x-user", "user")}},
						}},
					}}}}},
					"http_filters": list{
						table{"name": "envoy.filters.http.ratelimit", "typed_config": table{
							"@type": filters + "http.ratelimit.v3.RateLimit", "domain": "shop", "timeout": "1s",
							"rate_limit_service": table{"transport_api_version": "V3", "grpc_service": table{"envoy_grpc": table{"cluster_name": "weir"}}},
						}},
						table{"name": "envoy.filters.http.router", "typed_config": table{"@type": filters + "http.router.v3.Router"}},
					},
				},
			}}}}}},
		},
	}
}

// ask sends a request with headers, "Name: value" in pairs, and returns the status code.
func ask(ctx context.Context, url string, headers ...string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, answer.Body.Close()
}

// traffic sends requests until the test ends: alice is denied much, bob a little, and others pass.
func traffic(t *testing.T, url string) {
	t.Helper()
	repeat(t, 25*time.Millisecond, url+"/search", "X-Client", "alice")
	repeat(t, 140*time.Millisecond, url+"/search", "X-Client", "bob")
	repeat(t, 400*time.Millisecond, url+"/search", "X-Client", "carol")
	repeat(t, 30*time.Millisecond, url+"/", "X-Path", "/checkout")
	repeat(t, 250*time.Millisecond, url+"/", "X-Path", "/export")
	repeat(t, 120*time.Millisecond, url+"/", "X-Plan", "free_trial", "X-User", "dave")
	repeat(t, 500*time.Millisecond, url+"/", "X-Plan", "silver", "X-User", "erin")
}

// repeat sends a request again and again, until end or the end of the test. After end the last
// answer has come.
func repeat(t *testing.T, every time.Duration, url string, headers ...string) (end func()) {
	t.Helper()
	return again(t, every, func(ctx context.Context) { _, _ = ask(ctx, url, headers...) }) // a stop may come first
}

// again calls do at every tick until end, or the end of the test.
func again(t *testing.T, every time.Duration, do func(context.Context)) (end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var sending sync.WaitGroup
	sending.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				do(ctx)
			}
		}
	})
	end = func() {
		stop()
		sending.Wait()
	}
	t.Cleanup(end)
	return end
}

// dial connects to one of the addresses of gRPC.
func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// charge asks about one entry.
func charge(ctx context.Context, conn *grpc.ClientConn, domain, key, value string) error {
	return decide(ctx, conn, domain, &rlsv3.RateLimitDescriptor{Entries: []*rlsv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}})
}

// send asks about descriptors, each as "key=value,key=value".
func send(ctx context.Context, conn *grpc.ClientConn, domain string, descriptors ...string) error {
	var all []*rlsv3.RateLimitDescriptor
	for _, text := range descriptors {
		d := new(rlsv3.RateLimitDescriptor)
		for e := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(e, "=")
			d.Entries = append(d.Entries, &rlsv3.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		all = append(all, d)
	}
	return decide(ctx, conn, domain, all...)
}

func decide(ctx context.Context, conn *grpc.ClientConn, domain string, all ...*rlsv3.RateLimitDescriptor) error {
	_, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{Domain: domain, Descriptors: all})
	return err
}
