package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
)

// spoiled is a resource with two mistakes, beside a rule that is good.
func spoiled(domain string) *ratelimitv3.RateLimitConfig {
	c := perHour(domain, 1)
	c.Descriptors = append(c.Descriptors,
		&ratelimitv3.RateLimitDescriptor{Key: "", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: 9, RequestsPerUnit: 1}})
	return c
}

func reasonsOf(domain string) []string {
	return []string{
		"xds:of-" + domain + ": descriptors[1].key: is missing or empty, must be the key of an entry, as Envoy sends it",
		"xds:of-" + domain + `: descriptors[1].rate_limit.unit: "unit(9)" is not a unit, ` + unitWords,
	}
}

type refused struct {
	Errors  []string
	Older   []string `json:"older_in_force"`
	Without []string `json:"not_in_force"`
}

// awaitRefused wants the next line of the log, from the one of that number on, that says that rules
// were refused to say this. It returns the number of the line after it.
func (r *running) awaitRefused(t *testing.T, from int, want refused) int {
	t.Helper()
	line, next := r.log.Await(t, from, logtest.Has(`"level":"error","@message":"rules refused"`))
	var got refused
	must.Do(t, json.Unmarshal([]byte(line), &got))
	must.Match(t, "the log", want, got)
	return next
}

func TestABadFirstConfigurationByXDSIsNotReadyAndSaysWhy(t *testing.T) {
	t.Parallel()
	p := controlPlane(t)
	r := start(t, "", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+p.Address)
	// health wants the same of both kinds, of a service by name, and of requests.
	health := func(body string, want healthgrpc.HealthCheckResponse_ServingStatus, answer string) {
		t.Helper()
		code := http.StatusServiceUnavailable
		if body == "OK" {
			code = http.StatusOK
		}
		r.awaitPage(t, "http", "/healthcheck", code, body)
		if _, got := r.page(t, http.MethodGet, "http", "/healthcheck", ""); strings.TrimSpace(got) != body {
			t.Errorf("/healthcheck: got %q, want %q", got, body)
		}
		if got := r.health(t, "ratelimit"); got != want {
			t.Errorf("health of ratelimit: got %v, want %v", got, want)
		}
		r.wantAnswer(t, "bad +1 | k=v +0", answer)
	}
	const none = "Unavailable: no rate limit configuration loaded"
	health("no configuration from xds server "+p.Address+` yet: it has sent none to node "default"`, healthgrpc.HealthCheckResponse_NOT_SERVING, none)

	sets(t, p, "1", spoiled("bad"))
	from := r.awaitRefused(t, 0, refused{reasonsOf("bad"), nil, []string{"xds:of-bad"}})
	health("the configuration from xds server "+p.Address+" was refused: "+strings.Join(reasonsOf("bad"), "\n"),
		healthgrpc.HealthCheckResponse_NOT_SERVING, none)
	if got := awaitRefusal(t, p); got.Refusal != strings.Join(reasonsOf("bad"), "\n") || got.Version != "" {
		t.Errorf("the control plane heard %q, version %q", got.Refusal, got.Version)
	}
	if code, body := r.page(t, http.MethodGet, "debug", "/rlconfig", ""); code != http.StatusOK ||
		body != "# refused: "+strings.Join(reasonsOf("bad"), "\n# refused: ")+"\n" {
		t.Errorf("/rlconfig: got %d %q", code, body)
	}

	sets(t, p, "2", perHour("bad", 2))
	health("OK", healthgrpc.HealthCheckResponse_SERVING, "OK | OK 2/3 left 2 reset")

	// A bad later one changes nothing.
	r.wantAnswer(t, "bad | k=v", "OK | OK 2/3 left 1 reset")
	sets(t, p, "3", spoiled("bad"))
	r.awaitRefused(t, from, refused{reasonsOf("bad"), []string{"xds:of-bad"}, nil})
	health("OK", healthgrpc.HealthCheckResponse_SERVING, "OK | OK 2/3 left 1 reset")
}

// proto3 has one form for a limit of 0 and for one without a number. A control plane may mean 0.
func TestALimitOfZeroOverXDSDeniesAndIsNoWarning(t *testing.T) {
	t.Parallel()
	p := controlPlane(t)
	sets(t, p, "1", perHour("closed", 0))
	r := start(t, "", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+p.Address)
	r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
	r.wantAnswer(t, "closed | k=v", "OVER_LIMIT | OVER_LIMIT 0/3 reset")
	for _, line := range r.log.Lines() {
		if strings.Contains(line, `"@message":"rule warning"`) || strings.Contains(line, "requests_per_unit") {
			t.Errorf("got the line %s", line)
		}
	}
}
