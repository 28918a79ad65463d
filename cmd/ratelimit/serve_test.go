package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/wire/certificates", "internal/regular", "internal/wire", "internal/durations", "internal/headers", "internal/admin", "internal/admin/grants", "internal/printable", "internal/wire/web", "internal/lane", "pkg/quota", "internal/wire/laneserver", "internal/lockfile", "internal/loglimit", "internal/metrics", "internal/admin/page", "internal/rawio", "internal/lab/compare", "internal/lab/records", "internal/redis", "internal/rules/reload", "internal/admin/render", "internal/redis/resp", "internal/app", "internal/settings", "internal/snapshots", "internal/ranges", "internal/spelling", "internal/timespan", "internal/zones", "internal/statistics", "internal/top", "internal/tracing", "internal/version", "internal/admin/watch", "internal/rules/xds", "pkg/...", "proto/..."},
		Third: []string{},
		Never: []string{"testing", "github.com/spf13"},
	})
}

func (r *running) health(t *testing.T, service string) healthgrpc.HealthCheckResponse_ServingStatus {
	t.Helper()
	answer := must.Get(healthgrpc.NewHealthClient(r.conn).Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: service}))(t)
	return answer.GetStatus()
}

func TestThePagesAreWhereTheOriginalHasThem(t *testing.T) {
	t.Parallel()
	r := start(t, scripted, "USE_PROMETHEUS=true", "PROMETHEUS_PATH=/figures", "EXTRA_TAGS=foo:bar")
	for _, line := range []string{"d +5 | plain=a", "d | plain=a", "d | shadow=a", "d | shadow=a", "d | meta2=b.c", "unknown | k=v"} {
		must.Get(r.ask(t, parseRequest(t, line)))(t)
	}
	const body = `{"domain":"d","descriptors":[{"entries":[{"key":"%s","value":"a"}]}]}`
	tests := []struct {
		method, server, path, body string
		code                       int
		want                       []string
	}{
		{"GET", "http", "/healthcheck", "", 200, []string{"OK"}},
		{"POST", "http", "/json", fmt.Sprintf(body, "week"), 200, []string{`"overallCode":"OK"`, `"limitRemaining":4`}},
		{"PUT", "http", "/json", fmt.Sprintf(body, "zero"), 429, []string{`"overallCode":"OVER_LIMIT"`}},
		{"POST", "http", "/json", `{"what":1}`, 400, nil},
		{"POST", "http", "/json", `{"domain":""}`, 400, []string{"rate limit domain must not be empty"}},
		{"GET", "http", "/debug/pprof/", "", 404, nil},
		{"GET", "http", "/metrics", "", 404, nil},
		{"GET", "debug", "/", "", 200, []string{"/debug/pprof/", "/rlconfig", "/stats"}},
		{"GET", "debug", "/rlconfig", "", 200, []string{
			"d.plain: unit=YEAR requests_per_unit=5, shadow_mode: false, quota_mode: false\n",
			"d.shadow: unit=YEAR requests_per_unit=1, shadow_mode: true, quota_mode: false\n", "d.free: unlimited\n", "d.l1.l3: unit=YEAR ",
		}},
		{"GET", "debug", "/stats", "", 200, []string{
			"ratelimit.service.rate_limit.d.plain.total_hits: 6\n", "ratelimit.service.rate_limit.d.plain.over_limit: 1\n",
			"ratelimit.service.rate_limit.d.plain.near_limit: 1\n", "ratelimit.service.rate_limit.domain_not_found: 1\n",
			"ratelimit.service.config_load_success: 1\n",
		}},
		{"GET", "debug", "/debug/pprof/goroutine?debug=1", "", 200, []string{"goroutine profile"}},
		{"GET", "metrics", "/debug/pprof/", "", 404, nil},
		{"GET", "metrics", "/metrics", "", 404, nil},
		{"GET", "metrics", "/figures", "", 200, []string{
			`ratelimit_service_rate_limit_total_hits{domain="d",foo="bar",key1="plain",key2="",key3=""} 6` + "\n",
			`ratelimit_service_rate_limit_over_limit{domain="d",foo="bar",key1="plain",key2="",key3=""} 1` + "\n",
			`ratelimit_service_rate_limit_near_limit{domain="d",foo="bar",key1="plain",key2="",key3=""} 1` + "\n",
			`ratelimit_service_rate_limit_within_limit{domain="d",foo="bar",key1="plain",key2="",key3=""} 5` + "\n",
			`ratelimit_service_rate_limit_shadow_mode{domain="d",foo="bar",key1="shadow",key2="",key3=""} 1` + "\n",
			`ratelimit_service_rate_limit_total_hits{domain="d",foo="bar",key1="meta2_b.c",key2="",key3=""} 1` + "\n",
			`ratelimit_service_should_rate_limit_error{err_type="service_error",foo="bar"} 1` + "\n",
			`ratelimit_service_total_requests{foo="bar",grpc_method="ShouldRateLimit"} 9` + "\n",
			`ratelimit_service_response_time_seconds_count{foo="bar",grpc_method="ShouldRateLimit"} 9` + "\n",
			`ratelimit_service_config_load_success{foo="bar"} 1` + "\n", `ratelimit_service_config_load_error{foo="bar"} 0` + "\n",
			"weir_requests_total", "go_goroutines",
		}},
	}
	for _, test := range tests {
		code, text := r.page(t, test.method, test.server, test.path, test.body)
		// protojson varies its spaces from build to build.
		plain := text
		if test.path == "/json" && strings.HasPrefix(text, "{") {
			plain = strings.ReplaceAll(text, " ", "")
		}
		if code != test.code {
			t.Errorf("%s %s: got %d %q, want %d", test.method, test.path, code, text, test.code)
		}
		for _, want := range test.want {
			if !strings.Contains(plain, want) {
				t.Errorf("%s %s: got\n%s\nwithout %q", test.method, test.path, text, want)
			}
		}
	}
	for _, service := range []string{"", "ratelimit"} {
		if got := r.health(t, service); got != healthgrpc.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: got %v", service, got)
		}
	}
}

func TestFilesNeedNotBeThereWhereTheStartIsForced(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	must.Do(t, os.Mkdir(filepath.Join(root, "config"), 0o700))
	r := start(t, "", "RUNTIME_ROOT="+root, "FORCE_START_WITHOUT_INITIAL_CONFIG=true", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true")
	r.awaitPage(t, "http", "/healthcheck", http.StatusServiceUnavailable, "there are no rules")
	if got := r.health(t, "ratelimit"); got != healthgrpc.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health of ratelimit: got %v, want NOT_SERVING", got)
	}
	if got := r.health(t, ""); got != healthgrpc.HealthCheckResponse_SERVING {
		t.Errorf("health: got %v, want SERVING", got)
	}
	lay(t, root, map[string]string{"config/a.yaml": rules("d", "k", 5)})
	r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
}

func TestAUnixSocketTakesThePlaceOfThePort(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "rl.sock")
	root := t.TempDir()
	lay(t, root, map[string]string{"config/a.yaml": rules("d", "k", 5)})
	r := start(t, "", "RUNTIME_ROOT="+root, "GRPC_UDS="+socket)
	if r.address["grpc"] != socket {
		t.Errorf("gRPC is at %q, want %q", r.address["grpc"], socket)
	}
	if _, err := os.Stat(socket); err != nil {
		t.Error(err)
	}
}
