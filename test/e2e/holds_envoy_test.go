package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/test/parts"
)

// beginAndEnd makes (user, request) of a request that begins, and (user, request_done) of one that
// ends.
const beginAndEnd = `
- actions:
  - request_headers: { header_name: x-user, descriptor_key: user }
  - request_headers: { header_name: x-request-id, descriptor_key: request }
- actions:
  - request_headers: { header_name: x-user, descriptor_key: user }
  - request_headers: { header_name: x-request-id, descriptor_key: request_done }
  apply_on_stream_done: true
`

// Holds depend on these facts about Envoy: when Envoy tells the end of a request, and with which
// name.
func TestWhenEnvoyTellsTheEndOfARequest(t *testing.T) {
	t.Parallel()
	canceled := make(chan struct{})
	r := startRecorder(t, func(ctx context.Context, call string) (ratelimitv3.RateLimitResponse_Code, error) {
		isBegin := strings.Contains(call, ",request=")
		switch {
		case isBegin && strings.Contains(call, "denied"):
			return ratelimitv3.RateLimitResponse_OVER_LIMIT, nil
		case isBegin && strings.Contains(call, "failed open"):
			return ratelimitv3.RateLimitResponse_UNKNOWN, errors.New("as told")
		case isBegin && strings.Contains(call, "leaves during the call"):
			<-ctx.Done()
			close(canceled)
		}
		return ratelimitv3.RateLimitResponse_OK, nil
	})
	backend := parts.BackendFor(t)
	e := startEnvoyTo(t, backend.Address(), envoyConfig{
		RateLimits: beginAndEnd,
		Filters: `
- name: envoy.filters.http.fault
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault
    abort: { header_abort: {}, percentage: { numerator: 100 } }
`,
		Endpoints: []string{tcpAddress(t, r.address)},
		Route: `
retry_policy: { retry_on: gateway-error, num_retries: 2, per_try_timeout: 0.2s }
hedge_policy: { hedge_on_per_try_timeout: true }
`,
	})
	once := []string{"request=1", "request_done=1"}
	tests := []struct {
		user, path string
		leave      string // the client leaves when a request waits at that gate of the backend
		want       []string
	}{
		{user: "answered", path: "/", want: once},
		{user: "with a name of its own", path: "/", want: once},
		{user: "denied", path: "/", want: once},
		{user: "failed open", path: "/", want: once},
		{user: "backend breaks the connection", path: "/?reset=begin", want: once},
		{user: "backend breaks a stream", path: "/?stream=9&reset=midway", want: once},
		{user: "tried three times", path: "/?status=503", want: once},
		{user: "hedged", path: "/?gate=hedged", want: once},
		{user: "leaves before the answer", path: "/?gate=before", leave: "before", want: once},
		{user: "leaves in the middle", path: "/?stream=9&midway=middle", leave: "middle", want: once},
		{user: "leaves during the call", path: "/", leave: "", want: []string{"request=1"}},
	}
	for _, test := range tests {
		t.Run(test.user, func(t *testing.T) {
			f := e.fly(t, test.path, "x-user: "+test.user, "x-request-id: mine")
			switch {
			case test.leave != "":
				awaitGate(t, backend, test.leave, 1)
				f.leave()
			case test.user == "hedged":
				awaitGate(t, backend, "hedged", 2)
				backend.Open("hedged")
			case len(test.want) == 1:
				parts.Eventually(t, func() string {
					if len(r.of(test.user)) == 0 {
						return "no call"
					}
					return ""
				})
				f.leave()
				<-canceled
			}
			<-f.ended
			parts.Eventually(t, func() string {
				return cmp.Diff(test.want, named(t, r.of(test.user)))
			})
		})
	}
	if code := e.get(t, "/", "x-user: refused by an earlier filter", "x-envoy-fault-abort-request: 403").code; code != 403 {
		t.Errorf("a request that an earlier filter refuses: got %d, want 403", code)
	}
	// An end that comes late would be here by now.
	if diff := cmp.Diff([]string{"request=1"}, named(t, r.of("leaves during the call"))); diff != "" {
		t.Errorf("a client that left during the call (-want +got):\n%s", diff)
	}
	if f := e.fly(t, "/", "x-user: last", "x-request-id: mine"); f.land(t).code != 200 {
		t.Errorf("the last request: got %d, want 200", f.code)
	}
	if calls := r.of("refused by"); len(calls) > 0 {
		t.Errorf("a request that an earlier filter refuses: got the calls %v, want none", calls)
	}
	if calls := r.of("=mine"); len(calls) > 0 {
		t.Errorf("with use_remote_address Envoy replaces a client's x-request-id; got %v", calls)
	}
}

// When Envoy follows a redirect, the end of the first hop comes while the second hop runs, and both
// hops have one x-request-id. So the name must be of the hop.
func TestRedirectsThatEnvoyFollowsNeedANameForEachHop(t *testing.T) {
	t.Parallel()
	const ofHops = `
- actions:
  - request_headers: { header_name: x-user, descriptor_key: user }
  - generic_key: { descriptor_key: request, descriptor_value: "%FILTER_STATE(hold.name:PLAIN)%" }
- actions:
  - request_headers: { header_name: x-user, descriptor_key: user }
  - generic_key: { descriptor_key: request_done, descriptor_value: "%FILTER_STATE(hold.name:PLAIN)%" }
  apply_on_stream_done: true
`
	const naming = `
- name: envoy.filters.http.set_filter_state
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config
    on_request_headers:
    - object_key: hold.name
      factory_key: envoy.string
      format_string: { text_format_source: { inline_string: "%UNIQUE_ID%" } }
`
	tests := []struct {
		name, limits, filters string
		running, all          []string
	}{
		{
			"x-request-id", beginAndEnd, "",
			[]string{"request=1", "request=1", "request_done=1"},
			[]string{"request=1", "request=1", "request_done=1", "request_done=1"},
		},
		{
			"a name of the hop", ofHops, naming,
			[]string{"request=1", "request=2", "request_done=1"},
			[]string{"request=1", "request=2", "request_done=1", "request_done=2"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := startRecorder(t, func(context.Context, string) (ratelimitv3.RateLimitResponse_Code, error) {
				return ratelimitv3.RateLimitResponse_OK, nil
			})
			backend := parts.BackendFor(t)
			e := startEnvoyTo(t, backend.Address(), envoyConfig{
				RateLimits: test.limits, Filters: test.filters, Endpoints: []string{tcpAddress(t, r.address)},
				Route: "internal_redirect_policy: {}",
			})
			f := e.fly(t, "/?to="+url.QueryEscape(e.url+"/?gate=second"), "x-user: alice")
			awaitGate(t, backend, "second", 1)
			await := func(want []string) {
				t.Helper()
				parts.Eventually(t, func() string {
					if got := named(t, r.of("")); len(got) < len(want) {
						return fmt.Sprintf("got %v, want %v", got, want)
					}
					return ""
				})
				got := named(t, r.of(""))
				slices.Sort(got) // the end of the first hop and the begin of the second are two calls under way
				if diff := cmp.Diff(slices.Sorted(slices.Values(want)), got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
			await(test.running)
			backend.Open("second")
			if code := f.land(t).code; code != 200 {
				t.Errorf("got %d, want 200", code)
			}
			await(test.all)
		})
	}
}

// named returns the last entry of each call, with numbers in the place of x-request-ids.
func named(t *testing.T, calls []string) []string {
	t.Helper()
	numbers := map[string]int{}
	var all []string
	for _, call := range calls {
		last := regexp.MustCompile(`(request\w*)=([^,; ]+)$`).FindStringSubmatch(call)
		if last == nil {
			t.Fatalf("the call %q has no name", call)
		}
		if numbers[last[2]] == 0 {
			numbers[last[2]] = len(numbers) + 1
		}
		all = append(all, fmt.Sprintf("%s=%d", last[1], numbers[last[2]]))
	}
	return all
}
