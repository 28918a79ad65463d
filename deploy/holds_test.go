package deploy

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// patched returns the listener that Envoy Gateway made for the Gateway of
// envoy-gateway/policy.yaml, and the clusters, after the patches of an EnvoyPatchPolicy. Envoy
// Gateway applies the patches in the same way.
func patched(t *testing.T, policy string) (listener table, clusters list) {
	t.Helper()
	documents := readAll(t, "envoy-gateway/testdata/xds.yaml")
	listener = as[table](t, documents[0])
	for _, patch := range as[list](t, patient(readYAML(t, policy)), "spec", "jsonPatches") {
		operation := as[table](t, patch, "operation")
		path := as[string](t, operation, "path")
		if operation["op"] != "add" {
			t.Fatalf("%s: got %v, want only additions", policy, operation["op"])
		}
		if path == "" {
			value := as[table](t, operation, "value")
			if value["name"] != at(t, patch, "name") {
				t.Errorf("%s: a resource %v is added as %v", policy, value["name"], at(t, patch, "name"))
			}
			clusters = append(clusters, value)
			continue
		}
		if name := at(t, patch, "name"); name != listener["name"] {
			t.Fatalf("%s patches %v, and Envoy Gateway makes %v", policy, name, listener["name"])
		}
		insert(t, listener, strings.Split(strings.TrimPrefix(path, "/"), "/"), operation["value"])
	}
	return listener, clusters
}

// insert does an addition of JSON Patch that ends in the index of a list.
func insert(t *testing.T, document table, path []string, value any) {
	t.Helper()
	var steps []any
	for _, step := range path {
		if n, err := strconv.Atoi(step); err == nil {
			steps = append(steps, n)
			continue
		}
		steps = append(steps, step)
	}
	last := len(steps) - 1
	index, isIndex := steps[last].(int)
	if !isIndex {
		t.Fatalf("%v ends in no index", path)
	}
	parent, name := as[table](t, document, steps[:last-1]...), fmt.Sprint(steps[last-1])
	parent[name] = slices.Insert(as[list](t, parent, name), index, value)
}

// startPatched runs Envoy with the listener of an EnvoyPatchPolicy before a backend, and a Weir
// with the rules in a folder. The cost of an answer, is in the metadata as AI Gateway has it. The
// limits of policy.yaml are not here, as other tests have these.
func startPatched(t *testing.T, policy, rules string, backend *parts.Backend) *envoy {
	t.Helper()
	s, err := parts.StartSidecar(parts.Soon(t), program(t, "sidecar"), "--rules="+rules,
		"--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	listener, clusters := patched(t, policy)
	manager := as[table](t, listener, "default_filter_chain", "filters", 0, "typed_config")
	for _, name := range []string{"access_log", "rds"} {
		delete(manager, name)
	}
	filters := as[list](t, manager, "http_filters")
	manager["http_filters"] = list{
		table{"name": "envoy.filters.http.json_to_metadata", "typed_config": table{
			"@type": "type.googleapis.com/envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata",
			"response_rules": table{"rules": list{table{
				"selectors":  list{table{"key": "usage"}, table{"key": "total_tokens"}},
				"on_present": table{"metadata_namespace": "io.envoy.ai_gateway", "key": "llm_total_token"},
			}}},
		}}, filters[0], router(),
	}
	manager["route_config"] = table{"virtual_hosts": list{table{
		"name": "all", "domains": list{"*"}, "routes": list{table{"match": table{"prefix": "/"}, "route": table{"cluster": "backend"}}},
	}}}
	if len(clusters) != 1 {
		t.Fatalf("clusters: got %d, want that of Weir", len(clusters))
	}
	weir := as[table](t, clusters[0])
	maps.Copy(weir, cluster(t, "weir", s.GRPC, nil))
	return startEnvoy(t, withManager(manager, weir, cluster(t, "backend", backend.Address(), nil)))
}

// codeOf sends a GET and returns the code, 0 after an error.
func codeOf(url string, headers ...string) int {
	request, err := http.NewRequest(http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return 0
	}
	return answer.StatusCode
}

// awaitOK sends GETs until one is answered with 200.
func awaitOK(t *testing.T, url string, headers ...string) {
	t.Helper()
	parts.Eventually(t, func() string {
		if code := codeOf(url, headers...); code != http.StatusOK {
			return fmt.Sprintf("%s: got %d, want 200", url, code)
		}
		return ""
	})
}

// manyAtOnce sends so many requests to a gate of the backend, each when the one before has reached
// the gate or is answered. The result is the number of requests at the gate; the gate is then
// opened and all requests end.
func manyAtOnce(t *testing.T, e *envoy, backend *parts.Backend, n int, path, gate, user string) (passed int) {
	t.Helper()
	codes := make(chan int, n)
	denied := 0
	for i := range n {
		go func() { codes <- codeOf(e.url+path+gate, "x-user-id", user) }()
		parts.Eventually(t, func() string {
			select {
			case code := <-codes:
				if code != http.StatusTooManyRequests {
					t.Errorf("request %d: got %d, want 429 or no answer", i, code)
				}
				denied++
			default:
			}
			if arrived, _ := backend.At(gate); arrived+denied <= i {
				return "the request is neither at the backend nor answered"
			}
			return ""
		})
	}
	passed, _ = backend.At(gate)
	backend.Open(gate)
	for range n - denied {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("a request that passed: got %d, want 200", code)
		}
	}
	return passed
}

func TestEnvoyGatewaysPatchBoundsRequestsInFlight(t *testing.T) {
	t.Parallel()
	backend := parts.BackendFor(t)
	e := startPatched(t, "envoy-gateway/holds.yaml", "concurrency/rules", backend)
	if got := manyAtOnce(t, e, backend, 8, "/?gate=", "first", "alice"); got != 5 {
		t.Errorf("eight requests at once: got %d at the backend, want 5", got)
	}
	// Envoy tells the end of a request a moment after its answer.
	awaitOK(t, e.url, "x-user-id", "alice")
}

func TestAIGatewaysPatchChargesAnEstimateAndThenTheTokens(t *testing.T) {
	t.Parallel()
	// Not ../llm/rules: a bucket that fills again every minute would make the numbers depend on the
	// machine.
	rules := filepath.Join(t.TempDir(), "llm.yaml")
	const text = "domain: llm\ndescriptors:\n" +
		"- {key: user, rate_limit: {unit: year, requests_per_unit: 20000, hold: {begin: request, end: request_done, at_most: 1h}}}\n"
	parts.Write(t, rules, text)
	backend := parts.BackendFor(t)
	e := startPatched(t, "ai-gateway/holds.yaml", rules, backend)
	// 20 estimates of 1000 fit into 20000 tokens. In truth each request costs 19 tokens.
	for _, user := range []string{"alice", "bob"} {
		if got := manyAtOnce(t, e, backend, 25, "/?tokens=19&gate=", user, user); got != 20 {
			t.Errorf("25 requests of %s at once: got %d at the model, want 20", user, got)
		}
	}
	// The estimates of alice are given back, each a moment after its answer.
	awaitOK(t, e.url+"/?tokens=19", "x-user-id", "alice")
}
