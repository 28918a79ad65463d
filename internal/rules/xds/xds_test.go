package xds

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/test/parts"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{"internal/wire/certificates", "internal/loglimit", "internal/regular", "internal/metrics", "internal/ranges", "internal/spelling", "internal/timespan", "internal/zones", "pkg/algorithms", "pkg/descriptors", "pkg/store"},
		Third: []string{
			"github.com/envoyproxy/go-control-plane/envoy/...", "github.com/envoyproxy/go-control-plane/ratelimit/...",
			"github.com/prometheus/client_golang/prometheus", "golang.org/x/net/http/httpguts",
			"google.golang.org/genproto/googleapis/rpc/status", "google.golang.org/grpc/...", "google.golang.org/protobuf/...",
		},
		Never: []string{"github.com/spf13", "flag", "github.com/redis"},
	})
}

func TestRulesFollowTheControlPlane(t *testing.T) {
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			p.set("1", config("r1", "a", 1), config("r2", "b", 2))
			s := startClient(t, p, Options{Delta: delta})
			s.await(t, map[string]uint32{"a": 1, "b": 2})
			p.set("2", config("r1", "a", 3), config("r2", "b", 2), config("r3", "c", 4))
			s.await(t, map[string]uint32{"a": 3, "b": 2, "c": 4})
			p.set("3", config("r3", "c", 4))
			s.await(t, map[string]uint32{"c": 4})
			p.set("4")
			s.await(t, map[string]uint32{})
			p.set("5", config("r1", "a", 5))
			s.await(t, map[string]uint32{"a": 5})
			for _, r := range p.Requests() {
				if r.Refused {
					t.Errorf("a good response was refused: %s", r.Refusal)
				}
			}
			if err := s.Ready(); err != nil {
				t.Errorf("Ready: %v", err)
			}
		})
	}
}

func TestRulesAreInForceBeforeTheyAreAccepted(t *testing.T) {
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			p.set("1", config("r1", "a", 1))
			var s atomic.Pointer[subject]
			p.Heard = func(r parts.XDSRequest) { // on the server, when the answer is there: the nth response is n per hour
				n, err := strconv.Atoi(r.Nonce)
				if s := s.Load(); s != nil && err == nil && (r.Refused || s.inForce()["a"] < uint32(n)) {
					t.Errorf("answered %+v with %v in force", r, s.inForce())
				}
			}
			s.Store(startClient(t, p, Options{Delta: delta}))
			for i := range uint32(20) {
				s.Load().await(t, map[string]uint32{"a": i + 1})
				p.awaitRequest(t, 0, "the answer to it", func(r parts.XDSRequest) bool { return r.Nonce == fmt.Sprint(i+1) })
				p.set(fmt.Sprint(i+2), config("r1", "a", i+2))
			}
		})
	}
}

func TestOneBadOfThreeIsRefusedAndTheOthersAreInForce(t *testing.T) {
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			p.set("1", config("r1", "a", 1), config("r2", "b", 2))
			s := startClient(t, p, Options{Delta: delta})
			s.await(t, map[string]uint32{"a": 1, "b": 2})
			p.awaitRequest(t, 0, "an acceptance", func(r parts.XDSRequest) bool { return r.Nonce == "1" && !r.Refused })

			p.set("2", config("r1", "a", 0), config("r2", "b", 5), config("r3", "c", 6))
			s.await(t, map[string]uint32{"a": 1, "b": 5, "c": 6})
			r, _ := p.awaitRequest(t, 0, "a refusal", func(r parts.XDSRequest) bool { return r.Refused })
			const want = `xds:r1: descriptors[0].rate_limit.unit: "unit(9)" is not a unit, must be second, minute, hour, day, week, month or year`
			if r.Refusal != want || r.Nonce != "2" {
				t.Errorf("refusal: got %q of %s, want %q of 2", r.Refusal, r.Nonce, want)
			}
			if !delta && r.Version != "1" {
				t.Errorf("version of a refusal: got %q, want 1, the last that was accepted", r.Version)
			}
			status := s.reloader.Status()
			must.Match(t, "errors of the reloader", []string{want}, status.Errors)
			if got := s.Status(); got.Bad != 1 || got.Resources != 3 || got.Refused == 0 || got.Reason != want {
				t.Errorf("status: got %+v", got)
			}

			p.set("3", config("r1", "a", 7), config("r2", "b", 5), config("r3", "c", 6))
			s.await(t, map[string]uint32{"a": 7, "b": 5, "c": 6})
			eventually(t, func() string {
				if got := s.Status(); got.Bad != 0 || got.Reason != "" {
					return fmt.Sprintf("status: got %+v", got)
				}
				return ""
			})
		})
	}
}

func TestTwoResourcesOfOneDomainAreRefusedByBothNames(t *testing.T) {
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			p.set("1", config("r1", "a", 1), config("r2", "a", 2))
			s := startClient(t, p, Options{Delta: delta})
			r, _ := p.awaitRequest(t, 0, "a refusal", func(r parts.XDSRequest) bool { return r.Refused })
			if want := `xds:r2: domain: domain "a" is defined already, at xds:r1: a domain must be one document`; r.Refusal != want {
				t.Errorf("refusal: got %q, want %q", r.Refusal, want)
			}
			s.await(t, map[string]uint32{"a": 1})
		})
	}
}

func TestABadFirstConfigurationIsNotReadyAndSaysWhy(t *testing.T) {
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			s := startClient(t, p, Options{Delta: delta})
			if err := s.Ready(); err == nil || !strings.HasPrefix(err.Error(), "no configuration from xds server "+p.Address+" yet") {
				t.Errorf("Ready before anything came: got %v", err)
			}
			p.set("1", config("r1", "a", 0))
			p.awaitRequest(t, 0, "a refusal", func(r parts.XDSRequest) bool { return r.Refused && r.Version == "" })
			want := "the configuration from xds server " + p.Address + ` was refused: xds:r1: descriptors[0].rate_limit.unit: "unit(9)" is not a unit`
			if err := s.Ready(); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("Ready after a bad configuration: got %v, want %s…", err, want)
			}
			p.set("2", config("r1", "a", 3))
			s.await(t, map[string]uint32{"a": 3})
			eventually(t, func() string {
				if err := s.Ready(); err != nil {
					return err.Error()
				}
				return ""
			})
			p.set("3", config("r1", "a", 0))
			p.awaitRequest(t, 0, "a second refusal", func(r parts.XDSRequest) bool { return r.Refused && r.Nonce > "2" })
			if err := s.Ready(); err != nil {
				t.Errorf("Ready after a bad configuration that follows a good one: got %v", err)
			}
			s.await(t, map[string]uint32{"a": 3})
		})
	}
}

func TestNothingAtAllIsAConfiguration(t *testing.T) {
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			p.set("1")
			s := startClient(t, p, Options{Delta: delta})
			eventually(t, func() string {
				if err := s.Ready(); err != nil {
					return err.Error()
				}
				return ""
			})
		})
	}
}

func TestTheClientSendsItsNode(t *testing.T) {
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			p.set("1", config("r1", "a", 1))
			s := startClient(t, p, Options{
				Delta:   delta,
				Node:    Node{ID: node, Cluster: "edge", Metadata: map[string]any{"zone": "eu", "n": 3.0}},
				Headers: []Header{{"x-tenant", "acme"}, {"X-Tenant", "globex"}, {"authorization", "Bearer secret"}},
			})
			s.await(t, map[string]uint32{"a": 1})
			eventually(t, func() string {
				if len(p.Requests()) < 2 {
					return "no answer"
				}
				return ""
			})
			for i, r := range p.Requests() {
				if r.Node.GetId() != node || r.Node.GetCluster() != "edge" || r.Node.GetUserAgentName() != "weir" || len(r.Resources) != 0 {
					t.Errorf("request %d: got node %v, resources %v", i, r.Node, r.Resources)
				}
				want := map[string]any{"zone": "eu", "n": 3.0}
				if diff := cmp.Diff(want, r.Node.GetMetadata().AsMap()); diff != "" {
					t.Errorf("request %d: metadata (-want +got):\n%s", i, diff)
				}
			}
			headers := p.Streams()[0]
			if !cmp.Equal(headers.Get("x-tenant"), []string{"acme", "globex"}) || !cmp.Equal(headers.Get("authorization"), []string{"Bearer secret"}) {
				t.Errorf("headers: got %v", headers)
			}
		})
	}
}

func TestNewNamesEverythingThatIsWrong(t *testing.T) {
	_, err := New(Options{
		MaxMessageBytes: -1, Headers: []Header{{"a b", "c"}, {"ok", "\n"}, {"grpc-timeout", "1S"}},
		Node: Node{Metadata: map[string]any{"a": make(chan int)}}, TLS: secure("", "cert.pem", "", ""),
	})
	want := []string{
		"address: must not be empty",
		"max message bytes -1, min backoff 0s, max backoff 0s: must not be negative",
		`header "a b": must be the name of an HTTP header, and not start with grpc-`,
		"header ok: its value must be of printable ASCII characters",
		`header "grpc-timeout": must be the name of an HTTP header, and not start with grpc-`,
		"node metadata: proto: invalid type: chan int",
		"tls cert, tls key: must both be given, or neither",
		"push: must not be nil",
		"logger: must not be nil",
	}
	if err == nil {
		t.Fatal("New: got no error")
	}
	must.Match(t, "errors", want, strings.Split(strings.ReplaceAll(err.Error(), "\u00a0", " "), "\n"))
}

func TestNewSuppliesDefaults(t *testing.T) {
	c := must.Get(New(Options{Address: "localhost:1", Push: (&fakeRules{}).push, Logger: slog.New(slog.DiscardHandler)}))(t)
	o := c.options
	if o.Node.ID != "default" || o.MaxMessageBytes != 64<<20 || o.MinBackoff != time.Second || o.MaxBackoff != 30*time.Second {
		t.Errorf("options: got %+v", o)
	}
	if c.node.GetMetadata() != (*structpb.Struct)(nil) {
		t.Errorf("metadata: got %v, want none", c.node.GetMetadata())
	}
}

// Ten MiB in three resources, one of which is most of it. With the race detector it is a hundredth,
// as each rule costs the same.
func TestALargeConfiguration(t *testing.T) {
	large := config("large", "large", 1)
	size := func(full int) int { return race.Scale(race.Scale(full)) }
	for i := range size(101_000) {
		large.Descriptors = append(large.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Key: "user", Value: fmt.Sprintf("%06d-%s", i, strings.Repeat("x", 80)),
			RateLimit: &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_MINUTE, RequestsPerUnit: uint32(i + 1)},
		})
	}
	if n := len(wire(t, large)); n < size(10<<20) {
		t.Fatalf("the configuration has %d bytes, want 10 MiB", n)
	}
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			p.set("1", config("r1", "a", 1), large, config("r2", "b", 2))
			s := startClient(t, p, Options{Delta: delta})
			s.await(t, map[string]uint32{"a": 1, "b": 2, "large": 1})
			entry := descriptors.Entry{Key: "user", Value: fmt.Sprintf("%06d-%s", 77, strings.Repeat("x", 80))}
			if got := s.limiter.Rules().Domain("large").Match([]descriptors.Entry{entry}).Limits[0].Requests; got != 78 {
				t.Errorf("limit 77: got %d, want 78", got)
			}
		})
	}
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			p.set("1", large)
			s := startClient(t, p, Options{Delta: delta, MaxMessageBytes: size(4 << 20)})
			want := fmt.Sprintf("a response may have at most %d bytes here: ", size(4<<20))
			eventually(t, func() string {
				if err := s.Ready(); err == nil || !strings.Contains(err.Error(), want) {
					return fmt.Sprintf("Ready: got %v, want %s", err, want)
				}
				return ""
			})
		})
	}
}
