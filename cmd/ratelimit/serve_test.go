package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"pkg/...", "proto/...", "internal/durations", "internal/certificates", "internal/serving"},
		Third: []string{"github.com/prometheus/client_golang/prometheus", "golang.org/x/net/http/httpguts"},
		Never: []string{"testing", "github.com/spf13"},
	})
}

// health returns what gRPC health says of a service.
func (r *running) health(t *testing.T, service string) healthgrpc.HealthCheckResponse_ServingStatus {
	t.Helper()
	answer, err := healthgrpc.NewHealthClient(r.conn).Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: service})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetStatus()
}

func TestThePagesAreWhereTheOriginalHasThem(t *testing.T) {
	t.Parallel()
	r := start(t, scripted, "USE_PROMETHEUS=true", "PROMETHEUS_PATH=/figures", "EXTRA_TAGS=foo:bar")
	for _, line := range []string{"d +5 | plain=a", "d | plain=a", "d | shadow=a", "d | shadow=a", "d | meta2=b.c", "unknown | k=v"} {
		if _, err := r.ask(t, parseRequest(t, line)); err != nil {
			t.Fatal(err)
		}
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

func TestDisabledStatsTellNobody(t *testing.T) {
	t.Parallel()
	r := start(t, scripted, "USE_PROMETHEUS=true", "USE_STATSD=true", "DISABLE_STATS=true")
	if got := r.address["metrics"]; got != "" {
		t.Errorf("metrics are served at %s", got)
	}
}

func TestStatsDIsToldAtTheEndAtTheLatest(t *testing.T) {
	t.Parallel()
	statsd, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer statsd.Close()
	host, port, _ := net.SplitHostPort(statsd.LocalAddr().String())
	r := start(t, scripted, "USE_STATSD=true", "STATSD_PROTOCOL=udp", "STATSD_HOST="+host, "STATSD_PORT="+port, "STATS_FLUSH_INTERVAL=10ms")
	if _, err := r.ask(t, parseRequest(t, "d | plain=a")); err != nil {
		t.Fatal(err)
	}
	if err := statsd.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	packet := make([]byte, 64<<10)
	for {
		n, _, err := statsd.ReadFrom(packet)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(packet[:n], []byte("ratelimit.service.rate_limit.d.plain.total_hits:1|c")) {
			return
		}
	}
}

func TestABadFirstConfigurationInFilesEndsTheProcess(t *testing.T) {
	good := rules("a", "k", 1)
	tests := map[string]struct {
		files map[string]string
		with  []string
		want  []string // lines
	}{
		"mistakes": {
			files: map[string]string{"config/good.yaml": good, "config/x.yaml": "domain: x\ndescriptors:\n- {key: '', rate_limit: {unit: eon, requests_per_unit: 1}}\n"},
			want:  []string{"x.yaml:3: descriptors[0].key: ", "x.yaml:3: descriptors[0].rate_limit.unit: "},
		},
		"mistakes all the same": {
			files: map[string]string{"config/x.yaml": "domain: ''\n"}, with: []string{"FORCE_START_WITHOUT_INITIAL_CONFIG=true"},
			want: []string{"x.yaml:1: domain: "},
		},
		"no file":      {files: map[string]string{"config/README.md": ""}, want: []string{"holds no rule file"}},
		"no directory": {files: map[string]string{"other/x.yaml": good}, want: []string{"no such file or directory"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			lay(t, root, test.files)
			var log, out bytes.Buffer
			err := run(t.Context(), append(anyPort(), append(test.with, "RUNTIME_ROOT="+root)...), &log)
			if code := report(&out, err); code != 1 {
				t.Errorf("exit code: got %d, want 1", code)
			}
			for _, want := range test.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("got\n%s\nwithout %q", out.String(), want)
				}
			}
			if strings.Contains(log.String(), "listening") {
				t.Errorf("it listened:\n%s", log.String())
			}
		})
	}
}

func TestABadLaterConfigurationChangesNothing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	lay(t, root, map[string]string{"config/a.yaml": rules("d", "k", 5)})
	r := start(t, "", "RUNTIME_ROOT="+root)
	lay(t, root, map[string]string{"config/a.yaml": "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: hour, requests_per_unit: many}}\n"})
	r.awaitPage(t, "debug", "/rlconfig", http.StatusOK, "a.yaml:3: descriptors[0].rate_limit.requests_per_unit: ")
	r.awaitPage(t, "debug", "/rlconfig", http.StatusOK, "d.k: unit=HOUR requests_per_unit=5, ")
	r.awaitPage(t, "debug", "/stats", http.StatusOK, "ratelimit.service.config_load_error: 1\n")
	answer, err := r.ask(t, parseRequest(t, "d | k=v"))
	if got := show(t, answer, err); got != "OK | OK 5/3 left 4 reset" {
		t.Errorf("a request: got %s", got)
	}
	if code, _ := r.page(t, "GET", "http", "/healthcheck", ""); code != 200 {
		t.Errorf("/healthcheck: got %d", code)
	}
	lay(t, root, map[string]string{"config/a.yaml": rules("d", "k", 7)})
	r.awaitPage(t, "debug", "/rlconfig", http.StatusOK, "d.k: unit=HOUR requests_per_unit=7, ")
}

func TestFilesNeedNotBeThereWhereTheStartIsForced(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "config"), 0o700); err != nil {
		t.Fatal(err)
	}
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

// The original dies of the first and grows by hundreds of MiB with the others.
func TestNoRequestEndsTheProcessOrMakesItGrow(t *testing.T) {
	r := start(t, scripted, "USE_PROMETHEUS=true")
	for _, unit := range []string{"0", "8"} {
		_, err := r.ask(t, parseRequest(t, "d | plain=a @5/"+unit))
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("override of unit %s: got %v, want InvalidArgument", unit, err)
		}
	}
	alive := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	flood := func(from, to int) {
		t.Helper()
		for n := from; n < to; n += 500 {
			overrides := new(ratelimitv3.RateLimitRequest)
			for i := range 500 {
				one := parseRequest(t, fmt.Sprintf("d | key%d=value%d @%d/1", n+i, n+i, n+i+1))
				overrides.Domain, overrides.Descriptors = "d", append(overrides.Descriptors, one.GetDescriptors()...)
			}
			if _, err := r.ask(t, overrides); err != nil {
				t.Fatal(err)
			}
		}
		for n := from; n < to; n += 20 { // a request has one domain
			if _, err := r.ask(t, parseRequest(t, fmt.Sprintf("domain%d | k=v", n))); err != nil {
				t.Fatal(err)
			}
		}
	}
	flood(0, 10_000)
	before := alive()
	flood(10_000, 110_000)
	r.page(t, "GET", "metrics", "/metrics", "")
	// What is left are counts, until their second is over.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(within); ; <-tick.C {
		grown := alive() - before
		if grown <= 10<<20 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("100 000 overrides left %d bytes more than 10 000, want at most 10 MiB", grown)
		}
	}
	_, page := r.page(t, "GET", "metrics", "/metrics", "")
	if n := strings.Count(page, "\n"); n > 2000 {
		t.Errorf("/metrics has %d lines", n)
	}
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
