package main

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	secured "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weirproxy/weir/internal/certificates/certtest"
	"github.com/weirproxy/weir/test/parts"
)

// The environments that platforms start the original with, where only files, hosts and ports are those of the test. Without a Redis
// that answers they are healthy and limit all the same.
func TestPlatformsEnvironmentsServe(t *testing.T) {
	authority := certtest.New(t, "ca")
	certs := t.TempDir()
	pair := authority.Issue(t, "localhost", "127.0.0.1")
	pair.Write(t, certs)
	certtest.Write(t, filepath.Join(certs, "ca.crt"), authority.PEM)
	mutual := secured.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair.TLS(t)}, ClientCAs: authority.Pool, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	tests := map[string]struct {
		environment string
		node        string // of xDS; "" for files
		secure      bool   // xDS and gRPC over TLS
		ipv6        bool
	}{
		"Envoy Gateway without Redis": {
			`RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_IGNOREDOTFILES=true RUNTIME_WATCH_ROOT=false LOG_LEVEL=info
			USE_STATSD=false CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=XDS
			CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=CERTS/tls.crt
			GRPC_SERVER_TLS_KEY=CERTS/tls.key GRPC_SERVER_TLS_CA_CERT=CERTS/ca.crt CONFIG_GRPC_XDS_SERVER_USE_TLS=true
			CONFIG_GRPC_XDS_CLIENT_TLS_CERT=CERTS/tls.crt CONFIG_GRPC_XDS_CLIENT_TLS_KEY=CERTS/tls.key
			CONFIG_GRPC_XDS_SERVER_TLS_CACERT=CERTS/ca.crt FORCE_START_WITHOUT_INITIAL_CONFIG=true REDIS_SOCKET_TYPE=tcp
			USE_PROMETHEUS=true PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml`,
			"envoy-ratelimit", true, false,
		},
		"Envoy Gateway with Redis and traces": {
			`RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_IGNOREDOTFILES=true RUNTIME_WATCH_ROOT=false LOG_LEVEL=info
			USE_STATSD=false CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=XDS
			CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=CERTS/tls.crt
			GRPC_SERVER_TLS_KEY=CERTS/tls.key GRPC_SERVER_TLS_CA_CERT=CERTS/ca.crt CONFIG_GRPC_XDS_SERVER_USE_TLS=true
			CONFIG_GRPC_XDS_CLIENT_TLS_CERT=CERTS/tls.crt CONFIG_GRPC_XDS_CLIENT_TLS_KEY=CERTS/tls.key
			CONFIG_GRPC_XDS_SERVER_TLS_CACERT=CERTS/ca.crt FORCE_START_WITHOUT_INITIAL_CONFIG=true REDIS_SOCKET_TYPE=tcp
			REDIS_URL=REDIS REDIS_TLS=true REDIS_TLS_CLIENT_CERT=CERTS/tls.crt REDIS_TLS_CLIENT_KEY=CERTS/tls.key
			USE_PROMETHEUS=true PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml
			TRACING_ENABLED=true TRACING_SERVICE_NAME=envoy-ratelimit TRACING_SERVICE_NAMESPACE=envoy-gateway-system
			TRACING_SERVICE_INSTANCE_ID=pod-1 TRACING_SAMPLING_RATE=0.6`,
			"envoy-ratelimit", true, false,
		},
		"AI Gateway": {
			`RUNTIME_ROOT=/data CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=XDS
			CONFIG_GRPC_XDS_NODE_ID=envoy-ai-gateway-ratelimit USE_STATSD=false`,
			"envoy-ai-gateway-ratelimit", false, false,
		},
		"Istio": {
			`REDIS_SOCKET_TYPE=tcp REDIS_URL=REDIS USE_STATSD=false RUNTIME_ROOT=DATA
			RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_WATCH_ROOT=false RUNTIME_IGNOREDOTFILES=true HOST=:: GRPC_HOST=::`,
			"", false, true,
		},
		"Contour": {
			`REDIS_SOCKET_TYPE=tcp REDIS_URL=REDIS USE_STATSD=false RUNTIME_ROOT=DATA
			RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_WATCH_ROOT=false RUNTIME_IGNOREDOTFILES=true`,
			"", false, false,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat("/proc/net/if_inet6"); err != nil && test.ipv6 {
				t.Skip("there is no IPv6")
			}
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+nobody(t))
			root, client := t.TempDir(), insecure.NewCredentials()
			lay(t, root, configMap("ratelimit/config"))
			var plane *parts.ControlPlane
			var options []grpc.ServerOption
			if test.secure {
				options = append(options, grpc.Creds(mutual))
				// No certificate is shown: GRPC_SERVER_TLS_CA_CERT asks for none.
				client = secured.NewTLS(&tls.Config{RootCAs: authority.Pool, ServerName: "localhost"})
			}
			address := ""
			if test.node != "" {
				plane = controlPlane(t, options...)
				_, port, _ := net.SplitHostPort(plane.Address)
				address = "localhost:" + port
			}
			filled := strings.NewReplacer("CERTS/", certs+"/", "=XDS", "="+address, "=REDIS", "="+nobody(t), "=DATA", "="+root).Replace(test.environment)
			r := startAs(t, append(anyPort(), strings.Fields(filled)...), client)
			if test.ipv6 {
				_, port, _ := net.SplitHostPort(r.address["http"])
				r.address["http"] = "127.0.0.1:" + port // "::" is both
			}
			if test.node == "envoy-ai-gateway-ratelimit" {
				r.awaitPage(t, "http", "/healthcheck", http.StatusServiceUnavailable, "no configuration from xds server")
			} else {
				r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
			}
			if plane != nil {
				hands(t, plane, test.node, "1", map[string]uint32{"a": 1})
			}
			r.awaitPage(t, "debug", "/rlconfig", http.StatusOK, "a.k: unit=HOUR requests_per_unit=1, ")
			r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
			if got := r.health(t, "ratelimit"); got != healthgrpc.HealthCheckResponse_SERVING {
				t.Errorf("health of ratelimit: got %v", got)
			}
			for _, want := range []string{"OK | OK 1/3 reset", "OVER_LIMIT | OVER_LIMIT 1/3 reset"} {
				answer, err := r.ask(t, parseRequest(t, "a | k=v"))
				if got := show(t, answer, err); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
		})
	}
}

// controlPlane serves rules.
func controlPlane(t *testing.T, options ...grpc.ServerOption) *parts.ControlPlane {
	t.Helper()
	p, err := parts.StartControlPlane(context.Background(), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

// hands makes resources all that a control plane has for a node: a limit per hour on the key k of each domain, of 0 requests for one
// that is bad.
func hands(t *testing.T, p *parts.ControlPlane, node, version string, requests map[string]uint32) {
	t.Helper()
	var all []*ratelimitv3.RateLimitConfig
	for domain, n := range requests {
		policy := &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_HOUR, RequestsPerUnit: n}
		if n == 0 {
			policy.Unit = ratelimitv3.RateLimitUnit_UNKNOWN
		}
		all = append(all, &ratelimitv3.RateLimitConfig{
			Name: "of-" + domain, Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{{Key: "k", RateLimit: policy}},
		})
	}
	if err := p.Set(node, version, all...); err != nil {
		t.Fatal(err)
	}
}

// nobody returns an address that nobody listens on.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

func TestABadFirstConfigurationByXDSIsNotReadyAndABadLaterOneChangesNothing(t *testing.T) {
	t.Parallel()
	p := controlPlane(t)
	hands(t, p, "default", "1", map[string]uint32{"bad": 0})
	r := start(t, "", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+p.Address)
	r.awaitPage(t, "http", "/healthcheck", http.StatusServiceUnavailable, `xds:of-bad: descriptors[0].rate_limit.unit: "UNKNOWN" is not a unit`)
	if got := r.health(t, "ratelimit"); got != healthgrpc.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health of ratelimit: got %v, want NOT_SERVING", got)
	}
	hands(t, p, "default", "2", map[string]uint32{"bad": 2, "good": 1})
	r.awaitPage(t, "debug", "/rlconfig", http.StatusOK, "good.k: unit=HOUR requests_per_unit=1, ")
	r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
	hands(t, p, "default", "3", map[string]uint32{"bad": 0, "good": 3})
	r.awaitPage(t, "debug", "/rlconfig", http.StatusOK, "good.k: unit=HOUR requests_per_unit=3, ")
	r.awaitPage(t, "debug", "/rlconfig", http.StatusOK, "bad.k: unit=HOUR requests_per_unit=2, ")
	r.awaitPage(t, "debug", "/rlconfig", http.StatusOK, "# refused: xds:of-bad: ")
	r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
}

func TestHealthFollowsRedisWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	r := start(t, scripted, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+nobody(t), "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true")
	r.awaitPage(t, "http", "/healthcheck", http.StatusServiceUnavailable, "")
	answer, err := r.ask(t, parseRequest(t, "d | plain=a"))
	if got := show(t, answer, err); got != "OK | OK 5/6 left 4 reset" {
		t.Errorf("without Redis: got %s", got)
	}
}

func TestCountsInRedisAreSharedByAllOfAPrefix(t *testing.T) {
	t.Parallel()
	binary, err := parts.FindRedis(t.Context(), "../..")
	if err != nil {
		if strings.Contains(os.Getenv("WEIR_REQUIRE"), "redis") {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	redis, err := parts.StartRedis(t.Context(), binary, t.TempDir(), parts.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Kill)
	with := func(prefix string) *running {
		r := start(t, scripted, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis.Address(), "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true",
			"CACHE_KEY_PREFIX="+prefix, "LOCAL_CACHE_SIZE_IN_BYTES=1000")
		r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
		return r
	}
	a, b, other := with("x:"), with("x:"), with("y:")
	for _, step := range []struct {
		of   *running
		want string
	}{
		{a, "OK | OK 5/6 left 2 reset"},
		{b, "OVER_LIMIT | OVER_LIMIT 5/6 reset"},
		{other, "OK | OK 5/6 left 2 reset"},
		{b, "OVER_LIMIT | OVER_LIMIT 5/6 reset"},
	} {
		answer, err := step.of.ask(t, parseRequest(t, "d +3 | plain=a"))
		if got := show(t, answer, err); got != step.want {
			t.Errorf("got %s, want %s", got, step.want)
		}
	}
}
