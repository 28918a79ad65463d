package admin

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/server"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// fixture is a rate limit service, with its admin service and pages, and clients of both.
type fixture struct {
	admin    *Server
	server   *server.Server
	limiter  *limiter.Limiter
	registry *prometheus.Registry
	logger   *slog.Logger
	logs     *logtest.Log
	loads    atomic.Pointer[adminv1.RulesPage] // as a reloader would report
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
	return startOn(tb, s, rules, func(o *Options) {
		o.Memory = s.Stats
		if change != nil {
			change(o)
		}
	})
}

// startOn serves rules, "" for none, from a store.
func startOn(tb testing.TB, s store.Store, rules string, change func(*Options)) *fixture {
	tb.Helper()
	f := &fixture{registry: prometheus.NewRegistry(), logs: new(logtest.Log)}
	f.loads.Store(new(adminv1.RulesPage))
	var err error
	if f.limiter, err = limiter.New(s, limiter.Options{TopKeys: 10}); err != nil {
		tb.Fatal(err)
	}
	if rules != "" {
		f.setRules(load(tb, rules))
	}
	f.logger = slog.New(slog.NewTextHandler(f.logs, nil))
	if f.server, err = server.New(server.Options{Limiter: f.limiter, Registry: f.registry, Logger: f.logger}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(f.server.Close)
	o := Options{
		Limiter: f.limiter, Registry: f.registry, Logger: f.logger, Service: f.server, Reflection: true,
		Loads: func() *adminv1.RulesPage { return proto.CloneOf(f.loads.Load()) },
	}
	if change != nil {
		change(&o)
	}
	if f.admin, err = New(o); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(f.admin.Close)
	f.client = ratelimitv3.NewRateLimitServiceClient(dial(tb, f.server.Serve))
	return f
}

// setRules puts rules in force, as a reloader does.
func (f *fixture) setRules(rules *descriptors.Rules, warnings ...string) {
	f.limiter.SetRules(rules)
	before := f.loads.Load()
	f.loads.Store(&adminv1.RulesPage{
		Hash: rules.Hash(), LoadedAt: timestamppb.Now(), AttemptedAt: timestamppb.Now(), Warnings: warnings,
		Loads: before.GetLoads() + 1, Refusals: before.GetRefusals(),
	})
}

// refuse records a refused load, as a reloader does.
func (f *fixture) refuse(mistake string) {
	loads := proto.CloneOf(f.loads.Load())
	loads.AttemptedAt, loads.Errors = timestamppb.Now(), []string{mistake}
	loads.Refusals++
	f.loads.Store(loads)
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

// load loads rules.
func load(tb testing.TB, rules string) *descriptors.Rules {
	tb.Helper()
	r, _, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(rules)}}, descriptors.Options{})
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

// hits makes a descriptor with hits of its own.
func hits(n uint64, keysAndValues ...string) *commonv3.RateLimitDescriptor {
	d := descriptor(keysAndValues...)
	d.HitsAddend = wrapperspb.UInt64(n)
	return d
}

// boom panics.
func boom(bug any) error {
	panic(bug) //nolint:forbidigo // for tests of panics
}

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{
			"internal/admin/page", "internal/admin/render", "internal/admin/watch", "internal/durations", "internal/lane", "internal/loglimit", "internal/metrics",
			"internal/printable", "pkg/quota", "internal/rawio", "internal/ranges", "internal/regular", "internal/spelling", "internal/timespan", "internal/top", "internal/wire", "internal/zones",
			"internal/wire/web", "pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store", "pkg/store/memstore", "proto/...",
		},
		Never: []string{"github.com/spf13", "flag", "github.com/redis", "github.com/weirproxy/weir/pkg/server"},
	})
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	if _, err := New(Options{}); err == nil || err.Error() != "limiter, logger, registry, service: must not be nil" {
		t.Errorf("New: got %v", err)
	}
	f := start(t, "", nil)
	o := f.admin.options
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "register metrics") {
		t.Errorf("New with a registry that has its metrics: got %v", err)
	}
	o.LogDenials = MaxLogDenials + 1
	if _, err := New(o); err == nil || err.Error() != "log denials: 1001: must be from 0 to 1000 per second" {
		t.Errorf("New: got %v", err)
	}
}
