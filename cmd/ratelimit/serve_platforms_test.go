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

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

// The environments that platforms start the original with. The test changes only files, hosts and
// ports. Without a Redis that answers they are healthy and limit all the same.
func TestPlatformsEnvironmentsServe(t *testing.T) {
	authority := certtest.New(t, "ca")
	certs := t.TempDir()
	pair := authority.Issue(t, "localhost", "127.0.0.1")
	pair.Write(t, certs)
	certtest.Write(t, filepath.Join(certs, "ca.crt"), authority.PEM)
	for name, environment := range platforms() {
		t.Run(name, func(t *testing.T) {
			needIPv6(t, environment)
			p := platformOf(t, environment, authority, pair)
			root := t.TempDir()
			lay(t, root, configMap("ratelimit/config"))
			if p.plane != nil {
				root = "/data" // which is not there
			}
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+parts.Nowhere(t))
			redis := parts.Nowhere(t)
			here := strings.NewReplacer(
				"=/certs/", "="+certs+"/", "=/redis-certs/", "="+certs+"/", "RUNTIME_ROOT=/data", "RUNTIME_ROOT="+root,
				"envoy-gateway:18001", p.address(), "ai-gateway-controller:18002", p.address(),
				"=redis.redis-system.svc.cluster.local:6379", "="+redis, "=redis:6379", "="+redis, "=localhost:6379", "="+redis,
				"GRPC_PORT=8081", "GRPC_PORT=0", "PROMETHEUS_ADDR=:19001", "PROMETHEUS_ADDR=127.0.0.1:0",
			).Replace(environment)
			r := startAs(t, append(anyPort(), strings.Fields(here)...), p.client)
			for server, address := range r.address { // "::" is both
				_, port, _ := net.SplitHostPort(address)
				r.address[server] = "127.0.0.1:" + port
			}
			p.wantToServe(t, r)
		})
	}
}

type platform struct {
	node   string              // by which the control plane knows it
	plane  *parts.ControlPlane // nil where rules come from files
	client secured.TransportCredentials
	ready  bool // before there are rules
}

// platformOf starts the servers that an environment expects, on any port. Servers with TLS share
// the pair.
func platformOf(t *testing.T, environment string, authority *certtest.Authority, pair certtest.Pair) *platform {
	t.Helper()
	c := read(t, strings.Fields(environment)...)
	p := &platform{client: insecure.NewCredentials(), ready: true}
	if c.UseTLS {
		// No certificate is shown: GRPC_SERVER_TLS_CA_CERT asks for none.
		p.client = secured.NewTLS(&tls.Config{RootCAs: authority.Pool, ServerName: "localhost"})
	}
	if c.ConfigType != configXDS {
		return p
	}
	var options []grpc.ServerOption
	if c.XDSUsesTLS {
		options = append(options, grpc.Creds(secured.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{pair.TLS(t)}, ClientCAs: authority.Pool, ClientAuth: tls.RequireAndVerifyClientCert,
		})))
	}
	p.node, p.plane, p.ready = c.XDS.Node.ID, controlPlane(t, options...), c.StartWithoutRules
	return p
}

func (p *platform) address() string {
	if p.plane == nil {
		return ""
	}
	_, port, _ := net.SplitHostPort(p.plane.Address)
	return "localhost:" + port
}

// wantToServe wants a service to become healthy, when rules have come at the latest, and to limit
// by them.
func (p *platform) wantToServe(t *testing.T, r *running) {
	t.Helper()
	if p.ready {
		r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
	} else {
		r.awaitPage(t, "http", "/healthcheck", http.StatusServiceUnavailable, "no configuration from xds server")
	}
	if p.plane != nil {
		must.Do(t, p.plane.Set(p.node, "1", perHour("a", 1)))
	}
	r.awaitPage(t, "debug", "/rlconfig", http.StatusOK, "a.k: unit=HOUR requests_per_unit=1, ")
	r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
	if got := r.health(t, "ratelimit"); got != healthgrpc.HealthCheckResponse_SERVING {
		t.Errorf("health of ratelimit: got %v", got)
	}
	r.wantAnswer(t, "a | k=v", "OK | OK 1/3 reset")
	r.wantAnswer(t, "a | k=v", "OVER_LIMIT | OVER_LIMIT 1/3 reset")
	if r.address["metrics"] != "" {
		const want = `ratelimit_service_rate_limit_over_limit{domain="a",key1="k",key2="",key3=""} 1`
		if code, page := r.page(t, http.MethodGet, "metrics", "/metrics", ""); code != http.StatusOK || !strings.Contains(page, want) {
			t.Errorf("/metrics: got %d without %q", code, want)
		}
	}
}

func needIPv6(t *testing.T, environment string) {
	t.Helper()
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil && strings.Contains(environment, "HOST=::") {
		t.Skip("there is no IPv6")
	}
}

func controlPlane(t *testing.T, options ...grpc.ServerOption) *parts.ControlPlane {
	t.Helper()
	p := must.Get(parts.StartControlPlane(context.Background(), options...))(t)
	t.Cleanup(p.Stop)
	return p
}

func TestHealthFollowsRedisWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	r := start(t, scripted, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+parts.Nowhere(t), "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true")
	r.awaitPage(t, "http", "/healthcheck", http.StatusServiceUnavailable, "")
	answer, err := r.ask(t, parseRequest(t, "d | plain=a"))
	if got := show(t, answer, err); got != "OK | OK 5/6 left 4 reset" {
		t.Errorf("without Redis: got %s", got)
	}
}

func startRedis(t *testing.T, o parts.RedisOptions) *parts.Redis {
	t.Helper()
	redis := must.Get(parts.StartRedis(t.Context(), parts.NeedRedis(t, "../.."), t.TempDir(), o))(t)
	t.Cleanup(redis.Kill)
	return redis
}

func TestCountsInRedisAreSharedByAllOfAPrefix(t *testing.T) {
	t.Parallel()
	redis := startRedis(t, parts.RedisOptions{})
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
