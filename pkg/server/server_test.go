package server

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

func TestDeps(t *testing.T) {
	once(t)
	deptest.Check(t, deptest.Rules{
		Own: []string{"internal/ranges", "internal/regular", "internal/spelling", "internal/timespan", "internal/zones", "pkg/algorithms", "pkg/descriptors", "pkg/store", "pkg/limiter", "pkg/store/memstore", "internal/wire", "internal/durations", "internal/headers", "internal/lane", "internal/wire/laneserver", "internal/loglimit", "internal/metrics", "internal/printable", "pkg/quota", "internal/rawio", "internal/top", "internal/wire/web"},
		Never: []string{
			"github.com/spf13", "flag", "github.com/redis",
			"go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters",
		},
	})
}

func TestNewNamesEverythingThatIsWrong(t *testing.T) {
	once(t)
	_, err := New(Options{MaxRequestBytes: -1, Headers: Headers{Reset: "X Reset"}})
	want := "limiter: must not be nil\nlogger: must not be nil\nregistry: must not be nil\nmax request bytes: -1: must be at least 1\n" +
		"reset header: \"X Reset\": must be the name of an HTTP header: letters, digits and !#$%&'*+-.^_`|~"
	if err == nil || err.Error() != want {
		t.Errorf("New: got %v; want %s", err, want)
	}
}

func TestNewFailsOnARegistryThatHasItsMetrics(t *testing.T) {
	once(t)
	f := start(t, "", nil)
	if _, err := New(Options{Limiter: f.limiter, Logger: f.server.options.Logger, Registry: f.registry}); err == nil {
		t.Error("New: got no error; want one about metrics")
	}
}

// once skips a test that says nothing about the kind of the server or of the store, where the tests
// run again with another kind.
func once(tb testing.TB) {
	tb.Helper()
	if os.Getenv("WEIR_GRPC_SERVER")+os.Getenv("WEIR_STORE") != "" {
		tb.Skip("the kinds of the server and of the store change nothing here")
	}
}

// onceForStores is once for a test that says something about the kind of the server.
func onceForStores(tb testing.TB) {
	tb.Helper()
	if os.Getenv("WEIR_STORE") != "" {
		tb.Skip("the kind of the store changes nothing here")
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
	s := must.Get(memstore.New(memstore.Options{}))(tb)
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
	if f.limiter, err = limiter.New(s, limiter.Options{TopKeys: 10, Now: time.Now}); err != nil {
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
	f.json = jsonOf(f.server)
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
	response := must.Get(f.client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: all}))(t)
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

func TestAStopBeforeTheServerServesIsNoError(t *testing.T) {
	onceForStores(t)
	for _, library := range []bool{false, true} {
		s := start(t, "", func(o *Options) { o.GRPCGo = library }).server
		l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
		s.Close()
		if err := s.Serve(l); err != nil {
			t.Errorf("grpc-go %v: got %v, want nil", library, err)
		}
		if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
			_ = conn.Close()
			t.Errorf("grpc-go %v: the address still listens", library)
		}
	}
}

func TestOldConnectionsAreClosed(t *testing.T) {
	onceForStores(t)
	f := start(t, spanRules, func(o *Options) { o.MaxConnectionAge, o.MaxConnectionAgeGrace = 20*time.Millisecond, time.Second })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	f.ask(t, descriptor("user", "b"))
	for state := f.conn.GetState(); state != connectivity.Idle; state = f.conn.GetState() {
		if !f.conn.WaitForStateChange(ctx, state) {
			t.Fatalf("the connection is %v, want it closed", state)
		}
	}
}

// A stranger who begins a handshake and stops must not make a drain use its whole timeout. An
// honest client needs less than a second.
func TestAnUnfinishedHandshakeDelaysNoDrain(t *testing.T) {
	onceForStores(t)
	secure := newRotated(t)
	for name, test := range map[string]struct {
		tls  bool
		sent string
	}{
		"requests: nothing":                {false, ""},
		"requests: half a preface":         {false, "PRI "},
		"requests: a preface alone":        {false, http2.ClientPreface},
		"requests with TLS: nothing":       {true, ""},
		"requests with TLS: half a record": {true, "\x16\x03\x01"},
		"requests: half a first frame":     {false, http2.ClientPreface + "\x00\x00\x06\x04\x00\x00\x00\x00\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, spanRules, func(o *Options) {
					if test.tls {
						o.TLS = secure.keeper.Server(nil)
					}
				})
				_ = f.conn.Close()
				l := bufconn.Listen(1 << 10)
				ended := make(chan error, 1)
				go func() { ended <- f.server.Serve(l) }()
				conn := must.Get(l.DialContext(t.Context()))(t)
				defer conn.Close()
				go func() { _, _ = io.Copy(io.Discard, conn) }()
				write(conn, test.sent)
				synctest.Wait()
				begun := time.Now()
				f.server.GracefulStop()
				if took := time.Since(begun); took > 2*time.Second {
					t.Errorf("the stop took %v, want at most 2s", took)
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func write(conn net.Conn, text string) { _, _ = io.WriteString(conn, text) }
