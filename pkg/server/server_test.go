package server

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{"internal/spelling", "pkg/algorithms", "pkg/descriptors", "pkg/store", "pkg/limiter", "internal/wire", "internal/durations", "internal/lane", "internal/wire/laneserver", "internal/loglimit", "internal/metrics", "internal/printable", "internal/rawio", "internal/top", "internal/wire/web"},
		Never: []string{
			"github.com/spf13", "flag", "github.com/redis", "github.com/weirproxy/weir/pkg/store/memstore",
			"go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters",
		},
	})
}

func TestNewNamesEverythingThatIsWrong(t *testing.T) {
	_, err := New(Options{MaxRequestBytes: -1, Headers: Headers{Reset: "X Reset"}})
	want := "limiter: must not be nil\nlogger: must not be nil\nregistry: must not be nil\nmax request bytes: -1: must be at least 1\n" +
		"reset header: \"X Reset\": must be the name of an HTTP header: letters, digits and !#$%&'*+-.^_`|~"
	if err == nil || err.Error() != want {
		t.Errorf("New: got %v; want %s", err, want)
	}
}

func TestNewFailsOnARegistryThatHasItsMetrics(t *testing.T) {
	f := start(t, "", nil)
	if _, err := New(Options{Limiter: f.limiter, Logger: f.server.options.Logger, Registry: f.registry}); err == nil {
		t.Error("New: got no error; want one about metrics")
	}
}

// fixture is a server with its parts and a client of it.
type fixture struct {
	server   *Server
	limiter  *limiter.Limiter
	registry *prometheus.Registry
	logs     *logtest.Log
	json     http.Handler // the page /json
	conn     *grpc.ClientConn
	client   ratelimitv3.RateLimitServiceClient
}

// start serves rules from a memstore through memory. In a bubble everything ends with the test.
func start(tb testing.TB, rules string, change func(*Options)) *fixture {
	tb.Helper()
	s, err := memstore.New(memstore.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return startOn(tb, s, rules, change)
}

// waits is a store that decides nothing in place.
type waits struct{ store.Store }

func (waits) TakeNow([]store.Charge, []algorithms.Decision) (admitted, decided bool) {
	return false, false
}

// startOn serves rules, "" for none, from a store.
func startOn(tb testing.TB, s store.Store, rules string, change func(*Options)) *fixture {
	tb.Helper()
	f := &fixture{registry: prometheus.NewRegistry(), logs: new(logtest.Log)}
	if os.Getenv("WEIR_STORE") == "waits" { // all tests hold for that, too
		s = waits{s}
	}
	var err error
	if f.limiter, err = limiter.New(s, limiter.Options{TopKeys: 10}); err != nil {
		tb.Fatal(err)
	}
	if rules != "" {
		f.limiter.SetRules(load(tb, rules))
	}
	o := Options{
		Limiter: f.limiter, Registry: f.registry, Logger: slog.New(slog.NewTextHandler(f.logs, nil)), Reflection: true,
		GRPCGo: os.Getenv("WEIR_GRPC_SERVER") == "grpc", // all tests hold for both
	}
	if change != nil {
		change(&o)
	}
	if f.server, err = New(o); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(f.server.Close)
	f.json = jsonOf(f.server, true)
	f.conn = dial(tb, f.server.Serve)
	f.client = ratelimitv3.NewRateLimitServiceClient(f.conn)
	return f
}

// dial serves and connects to the server, through memory.
func dial(tb testing.TB, serve func(net.Listener) error) *grpc.ClientConn {
	tb.Helper()
	listener := bufconn.Listen(1 << 20)
	go func() { _ = serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///memory",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

// load loads rules, which may name the table tenants.csv.
func load(tb testing.TB, rules string) *descriptors.Rules {
	tb.Helper()
	table := func(name string) (*descriptors.Table, error) {
		return descriptors.NewTable(name, []byte("gold,7\nslow,5,hour\n")), nil
	}
	r, _, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(rules), Table: table}}, descriptors.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// ask sends descriptors to domain edge.
func (f *fixture) ask(t *testing.T, all ...*commonv3.RateLimitDescriptor) *ratelimitv3.RateLimitResponse {
	t.Helper()
	response, err := f.client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: all})
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// descriptor makes a descriptor of keys and values.
func descriptor(keysAndValues ...string) *commonv3.RateLimitDescriptor {
	d := new(commonv3.RateLimitDescriptor)
	for i := 0; i < len(keysAndValues); i += 2 {
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: keysAndValues[i], Value: keysAndValues[i+1]})
	}
	return d
}
