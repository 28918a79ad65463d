package platforms

import (
	"net/http"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// A gatewayCase is a test of Envoy Gateway: its manifests, and its requests in their order.
type gatewayCase struct {
	name      string
	manifests []string // of test/e2e/testdata
	steps     []step
	with      func(t *testing.T) // starts a server for this test alone; may be nil
}

// keysAddress is where the public keys of tokens are, on port 80.
const keysAddress = "127.0.0.2"

// The gateways of the tests on this machine.
const (
	onPort80   = "127.0.0.1:80"
	onPort8080 = "127.0.0.1:8080"
)

// overLimit begins a series of the service, as the tests ask Prometheus.
const overLimit = "ratelimit_service_rate_limit_over_limit"

// three is the x-ratelimit-limit of a limit of three requests per hour.
const three = "3, 3;w=3600"

// until is a step that repeats its request until the answer is as expected, exactly one that does
// not.
func until(r request, status int, limit string) step {
	return step{request: r, status: status, limit: limit}
}

func exactly(times int, r request, status int, limit string) step {
	return step{request: r, times: times, status: status, limit: limit}
}

// limited are the steps of most tests: requests pass n times, the first one after some tries, and
// then no more.
func limited(n int, r request, limit string) []step {
	return []step{
		until(r, http.StatusOK, limit), exactly(n-1, r, http.StatusOK, limit), exactly(1, r, http.StatusTooManyRequests, ""),
	}
}

// unlimited are the steps for a request that no limit is for.
func unlimited(r request) []step {
	return []step{until(r, http.StatusOK, ""), exactly(3, r, http.StatusOK, "")}
}

// get is a request to the gateway named same-namespace; headers are names and values.
func get(path string, headers ...string) request { return getAt("", path, headers...) }

func getAt(address, path string, headers ...string) request {
	r := request{at: address, path: path, headers: map[string]string{}}
	for i := 0; i < len(headers); i += 2 {
		r.headers[headers[i]] = headers[i+1]
	}
	return r
}

// join returns the steps of lists.
func join(lists ...[]step) []step {
	var all []step
	for _, steps := range lists {
		all = append(all, steps...)
	}
	return all
}

// gatewayCases returns the tests of Envoy Gateway that ask a rate limit service.
func gatewayCases(t *testing.T, source string) []gatewayCase {
	t.Helper()
	root, both, one := get("/"), get("/get", "x-user-id", "one", "x-user-org", "acme"), get("/get", "x-user-id", "one")
	john, tom := tokens(t, source)
	return append([]gatewayCase{
		{name: "RateLimitCIDRMatch", manifests: []string{"ratelimit-cidr-match.yaml"}, steps: []step{
			until(root, 200, three), until(root, 429, ""),
			{metric: overLimit + `{key2="masked_remote_address_0_0_0_0/0"}`},
			until(request{at: onPort80, path: "/", host: "app1.example.com"}, 429, three),
			until(request{at: onPort80, path: "/", host: "app2.example.com"}, 429, three),
		}},
		{name: "RateLimitCIDRInvertMatchAlwaysEnforce", manifests: []string{"ratelimit-cidr-invert-match-always-enforce.yaml"}, steps: join(
			limited(2, root, "2, 2;w=3600"), []step{{metric: overLimit + `{key2="masked_remote_address_invert_192_0_2_0/24"}`}},
		)},
		{name: "RateLimitCIDRInvertAlwaysExempt", manifests: []string{"ratelimit-cidr-invert-always-exempt.yaml"}, steps: []step{
			until(get("/never-limited"), 200, ""), exactly(2, get("/never-limited"), 200, ""),
		}},
		{name: "RateLimitHeaderMatch", manifests: []string{"ratelimit-header-match.yaml"}, steps: join(
			[]step{until(both, 200, three), until(both, 429, "")}, unlimited(one),
		)},
		{name: "RateLimitMethodMatch", manifests: []string{"ratelimit-method-match.yaml"}, steps: join([]step{
			until(request{method: http.MethodPost, path: "/get"}, 200, three),
			until(request{method: http.MethodPost, path: "/get"}, 429, ""),
			until(request{method: http.MethodDelete, path: "/get"}, 429, ""),
		}, unlimited(get("/get")))},
		{name: "RateLimitPathMatch", manifests: []string{"ratelimit-path-match.yaml"}, steps: join(
			limited(3, get("/get/specific-path"), three), []step{
				exactly(1, get("/get/specific-path/subpath"), 429, ""), exactly(1, get("/get/specific-path2"), 200, ""),
			}, unlimited(get("/get/no-specific-path")),
		)},
		{name: "GlobalRateLimitHeaderInvertMatch", manifests: []string{"ratelimit-header-invert-match-global.yaml"}, steps: join(
			limited(3, get("/get", "x-user-name", "username"), three), unlimited(get("/get", "x-user-name", "admin")),
		)},
		{name: "RateLimitHeadersDisabled", manifests: []string{"ratelimit-headers-disabled.yaml"}, steps: join(
			limited(3, both, ""), unlimited(one),
		)},
		{name: "RateLimitBasedJwtClaims", manifests: []string{"ratelimit-based-jwt-claims.yaml"}, steps: join(
			[]step{until(get("/bar"), 200, "")}, limited(3, get("/foo", "Authorization", john), three), []step{
				exactly(4, get("/foo", "Authorization", tom), 200, ""), exactly(1, get("/foo"), 401, ""),
				{metric: overLimit + `{key1="httproute/gateway-conformance-infra/http-ratelimit-based-jwt-claims/}`},
			},
		), with: func(t *testing.T) { // no gateway of this test has port 80
			t.Helper()
			serve(t, keysAddress+":80", http.FileServer(http.Dir(filepath.Join(source, "examples/static-file-server/files"))))
		}},
		{name: "RateLimitMultipleListeners", manifests: []string{"ratelimit-multiple-listeners.yaml"}, steps: join(
			limited(3, getAt(onPort80, "/"), three), limited(3, getAt(onPort8080, "/"), three),
		)},
		{name: "RateLimitHeadersAndCIDRMatch", manifests: []string{"ratelimit-headers-and-cidr-match.yaml"}, steps: join(
			limited(3, both, three), unlimited(one), unlimited(get("/get")),
		)},
		{
			name: "UsageRateLimit", manifests: []string{"ext-proc-service.yaml", "ratelimit-usage-ratelimit.yaml"},
			steps: limited(3, one, "21, 21;w=3600"),
		},
	}, moreCases()...)
}

// moreCases are the tests of shared limits, shadow mode, query parameters and a bad policy.
func moreCases() []gatewayCase {
	return []gatewayCase{
		{name: "RateLimitGlobalSharedCidrMatch", manifests: []string{"ratelimit-global-shared-cidr-match.yaml"}, steps: []step{
			until(get("/foo"), 200, three), until(get("/foo"), 200, three), until(get("/bar"), 200, three), until(get("/bar"), 429, ""),
		}},
		sharedGatewayHeaderMatch(),
		globalMerge(),
		{name: "RateLimitGlobalShadowModeTest", manifests: []string{"ratelimit-global-shadow-mode.yaml"}, steps: []step{
			until(get("/shadow"), 200, three), exactly(2, get("/shadow"), 200, three), exactly(2, get("/shadow"), 200, three),
		}},
		{name: "RateLimitQueryParameters", manifests: []string{"ratelimit-query-parameters.yaml"}, steps: join([]step{
			until(get("/get?user=alice"), 200, three), until(get("/get?user=alice"), 429, ""),
		}, unlimited(get("/get?name=bob")))},
		sharedWithCost(),
		{name: "FailedBackendTrafficPolicyDirectResponse", manifests: []string{"backendtrafficpolicy-translation-failed.yaml"}, steps: []step{
			until(request{path: "/myapp", host: "www.example.com"}, http.StatusInternalServerError, ""),
		}},
	}
}

func sharedGatewayHeaderMatch() gatewayCase {
	foo, bar := getAt(onPort8080, "/foo", "x-user-id", "one"), getAt(onPort8080, "/bar", "x-user-id", "one")
	const file = "ratelimit-global-shared-gateway-header-match.yaml"
	return gatewayCase{name: "RateLimitGlobalSharedGatewayHeaderMatch", manifests: []string{file}, steps: []step{
		until(foo, 200, three), exactly(1, foo, 200, three), exactly(1, bar, 200, three), exactly(1, bar, 429, ""),
	}}
}

func globalMerge() gatewayCase {
	user := func(path, id string) request { return getAt(onPort8080, path, "x-user-id", id) }
	var steps []step
	for _, id := range []string{"one", "two", "three", "four"} {
		foo, bar := user("/foo", id), user("/bar", id)
		if id == "one" || id == "three" { // one count for both routes
			limit := map[string]string{"one": three}[id]
			steps = append(steps, until(bar, 200, limit), exactly(1, bar, 200, ""), exactly(1, foo, 200, ""), exactly(1, foo, 429, ""))
		} else {
			steps = append(steps, limited(3, foo, "")...)
			steps = append(steps, exactly(3, bar, 200, ""), exactly(1, bar, 429, ""))
		}
	}
	steps = append(steps, step{request: getAt(onPort8080, "/bar"), status: 200, limit: "100, 100;w=3600", rest: true})
	const file = "ratelimit-global-shared-and-unshared-header-match.yaml"
	return gatewayCase{name: "RateLimitGlobalMergeTest", manifests: []string{file}, steps: steps}
}

func sharedWithCost() gatewayCase {
	foo, bar := getAt(onPort8080, "/foo", "x-user-id", "cost-test"), getAt(onPort8080, "/bar", "x-user-id", "cost-test")
	return gatewayCase{name: "RateLimitGlobalSharedWithCost", manifests: []string{"ratelimit-global-shared-gateway-cost.yaml"}, steps: []step{
		until(foo, 200, "4, 4;w=3600"), exactly(1, bar, 200, ""), exactly(1, bar, 429, ""), until(getAt(onPort8080, "/foo"), 200, ""),
	}}
}

// tokens returns the two tokens of RateLimitBasedJwtClaims, as headers: the first one is limited.
func tokens(t *testing.T, source string) (limited, free string) {
	t.Helper()
	text := parts.Read(t, filepath.Join(source, "test/e2e/tests/ratelimit.go"))
	found := regexp.MustCompile(`"(eyJ[\w.-]+)"`).FindAllStringSubmatch(text, -1)
	if len(found) != 2 {
		t.Fatalf("got %d tokens, want two", len(found))
	}
	return "Bearer " + found[0][1], "Bearer " + found[1][1]
}
