package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/test/parts"
)

// startDeployed runs Envoy with a bootstrap of deploy/ before a backend, and asks the rate limit
// service at host:port.
func startDeployed(t *testing.T, file string, backend *parts.Backend, service string) *envoy {
	t.Helper()
	_, port, err := net.SplitHostPort(service)
	if err != nil {
		t.Fatal(err)
	}
	return startEnvoyOn(t, withPorts(t, backend.Address(), file, "port_value: 8081", "port_value: "+port))
}

// No request may escape its limit by an estimate that Envoy cannot read: Envoy then leaves the
// descriptor out.
func TestEveryRequestToAModelHasAnEstimateAndItsCost(t *testing.T) {
	t.Parallel()
	all := t
	r := startRecorder(t, func(context.Context, string) (ratelimitv3.RateLimitResponse_Code, error) {
		return ratelimitv3.RateLimitResponse_OK, nil
	})
	e := startDeployed(t, "llm/envoy.yaml", parts.BackendFor(t), r.address)
	const answer = 1000 // the estimate of an answer without max_tokens
	tests := []struct {
		name, body, path string
		headers          []string
		begin            int
		end              string // hits; "" where Envoy tells no end
	}{
		{name: "max_tokens", body: `{"max_tokens": 50}`, begin: 18/4 + 50, end: "30"},
		{name: "max_completion_tokens", body: `{"max_completion_tokens": 50}`, begin: 29/4 + 50, end: "108"},
		{name: "streamed", body: `{"max_tokens": 50, "stream": true}`, begin: 34/4 + 50, end: "34"},
		{name: "no max_tokens", body: `{}`, begin: answer, end: "101"},
		{name: "max_tokens is text", body: `{"max_tokens": "1"}`, begin: 19/4 + answer, end: "0"},
		{name: "max_tokens is negative", body: `{"max_tokens": -50}`, begin: 19/4 + answer, end: "0"},
		{name: "max_tokens is zero", body: `{"max_tokens": 0}`, begin: 17/4 + answer, end: "105"},
		{name: "max_tokens is enormous", body: `{"max_tokens": 1e300}`, begin: 21/4 + answer, end: "0"},
		{name: "max_tokens is a list", body: `{"max_tokens": [1]}`, begin: 19/4 + answer, end: "0"},
		{name: "max_tokens is null", body: `{"max_tokens": null}`, begin: 20/4 + answer, end: "105"},
		{name: "no JSON", body: `max_tokens`, begin: 10/4 + answer, end: "0"},
		{name: "JSON that is no object", body: `[1, 2]`, begin: 6/4 + answer, end: "0"},
		{name: "no body", path: "/?tokens=70", begin: answer, end: "70"},
		{name: "a header", body: `{"max_tokens": 50}`, headers: []string{"x-estimated-tokens: 7"}, begin: 7, end: "30"},
		{name: "a header with garbage", body: `{"max_tokens": 50}`, headers: []string{"x-estimated-tokens: -7"}, begin: 54, end: "30"},
		{name: "a header with a huge number", body: `{"max_tokens": 50}`, headers: []string{"x-estimated-tokens: 99999999999999999999"}, begin: 54, end: "30"},
		{name: "other content", body: `{"max_tokens": 50}`, headers: []string{"content-type: text/plain"}, begin: 18/4 + answer, end: "30"},
		{name: "an error of the model", path: "/?status=503", begin: answer, end: "0"},
		{name: "an answer without a usage", path: "/", begin: answer, end: ""},
		{name: "the model breaks the connection", path: "/?reset=begin", begin: answer, end: "0"},
		{name: "the model breaks a stream", path: "/?stream=9&tokens=70&reset=midway", begin: answer, end: ""},
		{name: "an answer that Envoy cannot hold", path: "/?tokens=70&size=5000000", begin: answer, end: "0"}, // the client gets a 500
		{name: "a cost of zero", path: "/?tokens=0", begin: answer, end: "0"},
	}
	for _, chunked := range []bool{false, true} {
		for _, test := range tests {
			t.Run(fmt.Sprintf("%s, chunked %t", test.name, chunked), func(t *testing.T) {
				user := regexp.MustCompile(`\W`).ReplaceAllString(t.Name(), "-")
				path, body := test.path, io.Reader(nil)
				if path == "" {
					path = "/v1/chat/completions"
				}
				if test.body != "" {
					body = strings.NewReader(test.body)
				}
				if chunked && body != nil {
					body = io.MultiReader(body) // the client does not know the length
				}
				if chunked && test.name == "other content" {
					test.begin = answer // Envoy holds only JSON until its length is known
				}
				headers := append([]string{"x-user: " + user, "x-team: team"}, test.headers...)
				if _, err := e.send(parts.Soon(t), http.DefaultClient, path, body, headers...); err != nil && !strings.Contains(test.name, "breaks a stream") {
					t.Fatal(err)
				}
				want := []string{fmt.Sprintf("user,request +%d; team,request +%[1]d", test.begin)}
				if test.end != "" {
					want = append(want, fmt.Sprintf("user,request_done +%s; team,request_done +%[1]s", test.end))
				}
				parts.Eventually(t, func() string {
					if got := len(r.of(user)); got < len(want) {
						return fmt.Sprintf("Envoy has asked %d times, want %d: %v", got, len(want), want)
					}
					return ""
				})
				check := func() {
					if diff := cmp.Diff(want, withoutValues(r.of(user))); diff != "" {
						all.Errorf("%s: what Envoy asks (-want +got):\n%s", t.Name(), diff)
					}
				}
				check()
				all.Cleanup(check) // an end that comes too late to be seen is here then
			})
		}
	}
}

// Envoy holds a request of JSON to read it, and has no room for more than
// per_connection_buffer_limit_bytes.
func TestRequestToAModelThatEnvoyCannotHoldGetsA413(t *testing.T) {
	t.Parallel()
	r := startRecorder(t, func(context.Context, string) (ratelimitv3.RateLimitResponse_Code, error) {
		return ratelimitv3.RateLimitResponse_OK, nil
	})
	e := startDeployed(t, "llm/envoy.yaml", parts.BackendFor(t), r.address)
	body := strings.NewReader(`{"messages": "` + strings.Repeat("word ", 1<<20) + `"}`)
	a, err := e.send(parts.Soon(t), http.DefaultClient, "/v1/chat/completions", body, "x-user: alice", "x-team: red")
	if err != nil || a.code != http.StatusRequestEntityTooLarge {
		t.Errorf("a request of 5 MiB: got %d (%v), want 413", a.code, err)
	}
	if calls := r.of(""); len(calls) > 0 {
		t.Errorf("got the calls %v, want none", calls)
	}
}

// withoutValues returns calls without the values of entries.
func withoutValues(calls []string) []string {
	var all []string
	for _, call := range calls {
		all = append(all, regexp.MustCompile(`=[^,; ]+`).ReplaceAllString(call, ""))
	}
	return all
}
