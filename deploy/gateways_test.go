package deploy

import (
	"cmp"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3" // the value of typed_config
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/test/parts"
)

// patient is a document with timeouts that are long enough for a busy machine.
func patient(v any) any {
	switch v := v.(type) {
	case table:
		for key, value := range v {
			if v[key] = patient(value); key == "timeout" {
				v[key] = "10s"
			}
		}
	case list:
		for i, value := range v {
			v[i] = patient(value)
		}
	}
	return v
}

// istioPatch returns the value that a patch of the EnvoyFilters inserts, unchanged.
func istioPatch(t *testing.T, document int) table {
	t.Helper()
	return as[table](t, readAll(t, "istio/envoyfilters.yaml")[document], "spec", "configPatches", 0, "patch", "value")
}

func TestEnvoyFiltersHoldWhatEnvoyKnows(t *testing.T) {
	t.Parallel()
	filter, host := new(hcmv3.HttpFilter), new(routev3.VirtualHost)
	decode(t, istioPatch(t, 0), filter)
	decode(t, istioPatch(t, 1), host)
	if err := filter.ValidateAll(); err != nil {
		t.Error(err)
	}
	for _, limit := range host.GetRateLimits() {
		if err := limit.ValidateAll(); err != nil {
			t.Error(err)
		}
	}
}

func TestIstiosGatewayLimits(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		t.Skip("there is no IPv6, on which the manifest has it listen")
	}
	s := startService(t, buildManifests(t, "istio"), surroundings{with: map[string]string{"REDIS_URL": parts.Nowhere(t)}})
	// The configuration that Istio makes of a Gateway and a VirtualService, and patches.
	host := table{"name": "*:80", "domains": list{"*"}, "routes": list{table{"match": table{"prefix": "/"}, "route": table{"cluster": "backend"}}}}
	maps.Copy(host, istioPatch(t, 1))
	filter := patient(istioPatch(t, 0))
	name := as[string](t, filter, "typed_config", "rate_limit_service", "grpc_service", "envoy_grpc", "cluster_name")
	e := startEnvoy(t, bootstrap(table{"virtual_hosts": list{host}}, list{filter, router()},
		cluster(t, "backend", startBackend(t), nil), cluster(t, name, s.GRPC, speaksHTTP2())))
	awaitRoom(t)
	e.pass(t, 3, call{path: "/productpage?u=normal"})
	e.passes(t, 2, call{path: "/productpage?u=test"})
	answer := e.send(t, call{path: "/login"})
	if got := answer.Header.Get("x-ratelimit-limit"); answer.StatusCode != http.StatusOK || got != "100, 100;w=3600" {
		t.Errorf("/login: got %d and x-ratelimit-limit %q", answer.StatusCode, got)
	}
	e.withoutAnswer(t, s, call{path: "/productpage"})
}

// contourActions are the actions that Contour makes of a rateLimitPolicy.
func contourActions(t *testing.T, policy any) list {
	t.Helper()
	var all list
	for _, descriptor := range as[list](t, policy, "global", "descriptors") {
		var actions list
		for _, entry := range as[list](t, descriptor, "entries") {
			entry := as[table](t, entry)
			switch {
			case entry["genericKey"] != nil:
				key := as[table](t, entry, "genericKey")
				action := table{"descriptor_value": key["value"]}
				if key["key"] != nil {
					action["descriptor_key"] = key["key"]
				}
				actions = append(actions, table{"generic_key": action})
			case entry["requestHeader"] != nil:
				actions = append(actions, table{"request_headers": table{
					"header_name": at(t, entry, "requestHeader", "headerName"), "descriptor_key": at(t, entry, "requestHeader", "descriptorKey"),
				}})
			case entry["remoteAddress"] != nil:
				actions = append(actions, table{"remote_address": table{}})
			default:
				t.Fatalf("nothing says what Contour makes of %v", entry)
			}
		}
		all = append(all, table{"actions": actions})
	}
	return all
}

// startContoursEnvoy starts Envoy with the configuration that Contour makes of an HTTPProxy, and of
// the part rateLimitService of its own configuration.
func startContoursEnvoy(t *testing.T, s *service, proxy, told any) *envoy {
	t.Helper()
	var routes list
	for _, route := range as[list](t, proxy, "spec", "routes") {
		action := table{"cluster": "backend"}
		if policy := as[table](t, route)["rateLimitPolicy"]; policy != nil {
			action["rate_limits"] = contourActions(t, policy)
		}
		routes = append(routes, table{"match": table{"prefix": at(t, route, "conditions", 0, "prefix")}, "route": action})
	}
	prefix := func(route any) string { return as[string](t, route, "match", "prefix") }
	slices.SortFunc(routes, func(a, b any) int { return cmp.Compare(len(prefix(b)), len(prefix(a))) })
	virtual := as[table](t, proxy, "spec", "virtualhost")
	host := table{"name": "local", "domains": list{virtual["fqdn"]}, "routes": routes}
	if policy := virtual["rateLimitPolicy"]; policy != nil {
		host["rate_limits"] = contourActions(t, policy)
	}
	const name = "extension/projectcontour/ratelimit"
	filter := table{"name": "envoy.filters.http.ratelimit", "typed_config": table{
		"@type":  "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
		"domain": at(t, told, "domain"), "failure_mode_deny": at(t, told, "failOpen") != true, "timeout": "10s",
		"enable_x_ratelimit_headers": "DRAFT_VERSION_03",
		"rate_limit_service":         table{"transport_api_version": "V3", "grpc_service": table{"envoy_grpc": table{"cluster_name": name}}},
	}}
	return startEnvoy(t, bootstrap(table{"virtual_hosts": list{host}}, list{filter, router()},
		cluster(t, "backend", startBackend(t), nil), cluster(t, name, s.GRPC, speaksHTTP2())))
}

func TestContoursEnvoyLimits(t *testing.T) {
	t.Parallel()
	s := startService(t, buildManifests(t, "contour"), surroundings{})
	e := startContoursEnvoy(t, s, readYAML(t, "contour/httpproxy.yaml"), at(t, readYAML(t, "contour/contour.yaml"), "rateLimitService"))
	awaitRoom(t)
	to := func(path string, headers ...string) call {
		return call{path: path, headers: append(headers, "host: local.projectcontour.io")}
	}
	e.passes(t, 1, to("/foo"))
	e.passes(t, 2, to("/api", "X-Customer: acme"))
	e.pass(t, 1, to("/api", "X-Customer: other"))
	e.pass(t, 3, to("/api"))
	e.passes(t, 3, to("/"))
	e.withoutAnswer(t, s, to("/foo"))
}

func TestTheCentralServicesEnvoyLimits(t *testing.T) {
	t.Parallel()
	m := buildManifests(t, "central")
	s := startService(t, m, surroundings{secrets: map[string]string{"ratelimit-redis/auth": "weir:secret"}, with: map[string]string{"REDIS_URL": parts.Nowhere(t)}})
	file := patient(readYAML(t, "central/envoy.yaml"))
	for _, at := range [][]any{{"admin"}, {"static_resources", "listeners", 0}} {
		as[table](t, file, append(at, "address", "socket_address")...)["port_value"] = 0
	}
	for i, address := range []string{s.GRPC, startBackend(t)} {
		endpoint := as[table](t, file, "static_resources", "clusters", i, "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint")
		endpoint["address"] = socket(t, address)
	}
	e := startEnvoy(t, file)
	awaitRoom(t)
	e.passes(t, 5, call{path: "/search?q=1", headers: []string{"x-client: a"}})
	e.pass(t, 1, call{path: "/search", headers: []string{"x-client: b"}})
	e.pass(t, 8, call{path: "/search"})
	e.withoutAnswer(t, s, call{path: "/search", headers: []string{"x-client: a"}})
}

func TestEnvoyGatewaysEnvoyLimits(t *testing.T) {
	t.Parallel()
	s, authority := startEnvoyGatewaysService(t, readManifests(t, "envoy-gateway/testdata/deployment-memory.yaml"))
	e := startEnvoyGatewaysEnvoy(t, s, authority)
	awaitRoom(t)
	e.passes(t, 5, call{from: "127.0.0.2", headers: []string{"x-user-id: alice"}})
	e.pass(t, 1, call{from: "127.0.0.2", headers: []string{"x-user-id: bob"}})
	e.passes(t, 20, call{from: "127.0.0.3"})
	e.pass(t, 4, call{from: "127.0.0.4", method: http.MethodPost, headers: []string{"x-plan: free"}})
	tenant := call{from: "127.0.0.5", path: "/?tokens=101", headers: []string{"x-tenant: acme"}}
	e.pass(t, 1, tenant)
	// The cost is told after the answer, so the next request may be faster. Each has an address of its
	// own, as those are limited too.
	tick, last := time.NewTicker(20*time.Millisecond), 0
	defer tick.Stop()
	for n := 1; last != http.StatusTooManyRequests; n++ {
		if n == 250 {
			t.Fatalf("x-tenant: got %d after its tokens were spent, want 429", last)
		}
		<-tick.C
		tenant.from, tenant.path = "127.0.1."+strconv.Itoa(n), "/"
		last = e.send(t, tenant).StatusCode
	}
	e.pass(t, 1, call{from: "127.0.0.6", headers: []string{"x-tenant: other"}})
	e.withoutAnswer(t, s, call{from: "127.0.0.2", headers: []string{"x-user-id: alice"}})
}

// A BackendTrafficPolicy has no words for token buckets: the overlay has them.
func TestAnOverlayGivesEnvoyGatewaysLimitsTokenBuckets(t *testing.T) {
	t.Parallel()
	overlay, err := filepath.Abs("envoy-gateway/overlay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s, authority := startEnvoyGatewaysService(t, readManifests(t, "envoy-gateway/testdata/deployment-memory.yaml"), "RULES_OVERLAY="+overlay)
	e := startEnvoyGatewaysEnvoy(t, s, authority)
	awaitRoom(t)
	alice := call{from: "127.0.0.2", headers: []string{"x-user-id: alice"}}
	e.passes(t, 10, alice) // 5 per hour with a burst of 10
	e.passes(t, 20, call{from: "127.0.0.3"})
	if got := e.send(t, alice).Header.Get("x-ratelimit-limit"); !strings.Contains(got, ";w=3600") {
		t.Errorf("x-ratelimit-limit: got %q, want the hour of the policy", got)
	}
}

// startEnvoyGatewaysEnvoy starts Envoy with the configuration that Envoy Gateway makes of the
// policy.
func startEnvoyGatewaysEnvoy(t *testing.T, s *service, authority *certtest.Authority) *envoy {
	t.Helper()
	awaitPage(t, "http://"+s.Debug+"/rlconfig", http.StatusOK, "default/limits.default/limits/rule/5")
	// The certificate and the authority are mounted in Envoy's pod too.
	certs := t.TempDir()
	pair := authority.Issue(t, "envoy")
	certificate, key := pair.Write(t, certs)
	trusted := filepath.Join(certs, "ca.crt")
	if err := os.WriteFile(trusted, authority.PEM, 0o600); err != nil {
		t.Fatal(err)
	}

	// The differences to Envoy Gateway's configuration: resources of xDS are in the file, timeouts are
	// long, and clients of a test are on the loopback. A header gives the cost of the answer.
	documents := as[list](t, patient(readAll(t, "envoy-gateway/testdata/xds.yaml")))
	manager := as[table](t, documents[0], "default_filter_chain", "filters", 0, "typed_config")
	delete(manager, "access_log")
	delete(manager, "rds")
	route := as[table](t, documents[1], "virtual_hosts", 0, "routes", 0)
	actions := as[list](t, route, "typed_per_filter_config", "envoy.filters.http.ratelimit", "rate_limits", 1, "actions")
	for _, action := range actions[1:] {
		ranges := as[table](t, action, "remote_address_match", "address_matcher", "ranges", 0)
		if ranges["address_prefix"] != "10.0.0.0" {
			t.Fatalf("got %v, want the network of the policy", ranges)
		}
		ranges["address_prefix"] = "127.0.0.0"
	}
	manager["route_config"] = documents[1]
	filters := as[list](t, manager, "http_filters")
	manager["http_filters"] = append(list{table{"name": "envoy.filters.http.header_to_metadata", "typed_config": table{
		"@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
		"response_rules": list{table{"header": "x-tokens", "on_header_present": table{
			"metadata_namespace": "io.envoy.ai_gateway", "key": "total_tokens", "type": "NUMBER",
		}}},
	}}}, filters...)
	service := as[table](t, documents[2])
	delete(service, "eds_cluster_config")
	maps.Copy(service, cluster(t, "ratelimit_cluster", s.GRPC, nil))
	common := as[table](t, service, "transport_socket", "typed_config", "common_tls_context")
	delete(common, "tls_certificate_sds_secret_configs")
	common["tls_certificates"] = list{table{"certificate_chain": table{"filename": certificate}, "private_key": table{"filename": key}}}
	common["validation_context"] = table{"trusted_ca": table{"filename": trusted}}
	return startEnvoy(t, withManager(manager, service, cluster(t, "httproute/default/backend/rule/0", startBackend(t), nil)))
}
