package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weirproxy/weir/test/parts"
)

func TestWithoutItsRedisASidecarServesFromMemoryAndSaysSoOnce(t *testing.T) {
	url := "redis://weir:31415926@" + parts.Nowhere(t)
	r := start(t, "--rules", rulesFile(t, rulesOf("2")), "--store=redis", "--redis-url", url)
	conn := r.dial(t, r.address["grpc tcp"])
	for range 3 {
		if got := limitFor(t, conn); got != 2 {
			t.Errorf("limit in force: got %d, want 2", got)
		}
	}
	r.read = 0 // it may be ready before or after
	r.await(t, "store is away, limits go by their on_store_error")
	if code, body := r.get(t, "/readyz"); code != 200 {
		t.Errorf("/readyz without --ready-requires-store: got %d %q, want 200", code, body)
	}
	_, page := r.get(t, "/metrics")
	for _, want := range []string{
		"weir_store_up 0\n", `weir_store_state{state="open"} 1` + "\n", `weir_store_fallback_decisions_total{policy="local"} 3` + "\n",
		"weir_store_keys 1\n", `weir_decisions_total{code="over_limit",domain="test",rule="user"} 1` + "\n",
	} {
		if !strings.Contains(page, "\n"+want) {
			t.Errorf("/metrics does not say %q", want)
		}
	}
	raise(t, syscall.SIGTERM)
	r.awaitEnd(t)
	log := r.log.String()
	if strings.Count(log, "store is away") != 1 || strings.Count(log, `"level":"ERROR"`) != 0 {
		t.Errorf("the log does not say once that Redis is away:\n%s", log)
	}
	if strings.Contains(log, "31415926") {
		t.Errorf("the log shows the password:\n%s", log)
	}
}

func TestOnStoreErrorOfTheSettingsCountsWhereTheRuleDoesNotSay(t *testing.T) {
	file := rulesFile(t, `domain: test
descriptors:
- {key: unset, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: set, on_store_error: allow, rate_limit: {unit: year, requests_per_unit: 1}}
`)
	for policy, want := range map[string][]int{"local": {200, 429, 200, 200}, "allow": {200, 200, 200, 200}, "deny": {429, 429, 200, 200}} {
		t.Run(policy, func(t *testing.T) {
			r := start(t, "--store=redis", "--redis-url=redis://"+parts.Nowhere(t), "--on-store-error", policy, "--rules", file)
			var got []int
			for _, key := range []string{"unset", "unset", "set", "set"} {
				code, _ := r.post(t, "/json", `{"domain": "test", "descriptors": [{"entries": [{"key": "`+key+`", "value": "x"}]}]}`)
				got = append(got, code)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("two requests where the rule does not say, and two where it says allow (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadinessDependsOnRedisOnlyWhenAsked(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, rulesOf("2")), "--store=redis", "--redis-url=redis://"+parts.Nowhere(t), "--ready-requires-store")
	conn := r.dial(t, r.address["grpc tcp"])
	if code, body := r.get(t, "/readyz"); code != 503 || !strings.HasPrefix(body, "the store is away since ") {
		t.Errorf("/readyz: got %d %q, want 503 and why", code, body)
	}
	if code, body := r.get(t, "/livez"); code != 200 {
		t.Errorf("/livez: got %d %q, want 200", code, body)
	}
	answer, err := healthgrpc.NewHealthClient(conn).Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: "ratelimit"})
	if err != nil || answer.GetStatus() != healthgrpc.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health of the service: got %v, %v; want NOT_SERVING", answer.GetStatus(), err)
	}
	if got := health(t, conn); got != healthgrpc.HealthCheckResponse_SERVING {
		t.Errorf("health of the server: got %v, want SERVING", got)
	}
	if got := limitFor(t, conn); got != 2 {
		t.Errorf("limit in force: got %d, want 2", got)
	}
}

func TestTheGranularityOfRedisIsThatOfRules(t *testing.T) {
	file := rulesFile(t, rulesOf("5"))
	r := start(t, "--rules", file, "--store=redis", "--redis-url=redis://"+parts.Nowhere(t))
	writeRules(t, file, "domain: test\ndefault: {period: 1ms1ns, requests_per_unit: 5}\n")
	refused := r.await(t, "rules refused")
	if len(refused.Errors) != 1 || !strings.Contains(refused.Errors[0], "must be a whole multiple of 1µs") {
		t.Errorf("reasons: got %q", refused.Errors)
	}
}
