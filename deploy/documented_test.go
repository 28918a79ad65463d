package deploy

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/test/parts"
)

// A page is a document of another project, in Markdown.
type page string

// below returns the part below a heading, with the headings under it.
func (p page) below(t *testing.T, heading string) page {
	t.Helper()
	_, text, found := strings.Cut(string(p), "\n"+heading+"\n")
	if !found {
		t.Fatalf("the page has no heading %q", heading)
	}
	level, _, _ := strings.Cut(heading, " ")
	if end := regexp.MustCompile(`(?m)^#{1,` + strconv.Itoa(len(level)) + `} `).FindStringIndex(text); end != nil {
		text = text[:end[0]]
	}
	return page(text)
}

// objects returns the YAML documents of the blocks with the word yaml, and of the commands of
// kubectl.
func (p page) objects(t *testing.T) list {
	t.Helper()
	var all list
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$|^( *)\\$ kubectl apply -f - <<EOF\n(.*?)^ *EOF$").FindAllStringSubmatch(string(p), -1) {
		var text strings.Builder
		for line := range strings.Lines(block[1] + block[3]) {
			text.WriteString(strings.TrimPrefix(line, block[2]))
		}
		all = append(all, documents(t, "a block of the page", text.String())...)
	}
	return all
}

// object returns the one object of a kind and with a name.
func (p page) object(t *testing.T, kind, name string) table {
	t.Helper()
	var found []table
	for _, object := range p.objects(t) {
		if m, ok := object.(table); ok && m["kind"] == kind && at(t, m, "metadata", "name") == name {
			found = append(found, m)
		}
	}
	if len(found) != 1 {
		t.Fatalf("got %d objects of kind %s named %s, want one", len(found), kind, name)
	}
	return found[0]
}

// documentedRules writes the rules of a ConfigMap into a directory, holds that both programs load
// them, and returns the files.
func documentedRules(t *testing.T, configMap table) map[string]string {
	t.Helper()
	dir, files := t.TempDir(), make(map[string]string)
	for name := range as[table](t, configMap, "data") {
		files[name] = as[string](t, configMap, "data", name)
		parts.Write(t, filepath.Join(dir, name), files[name])
	}
	for _, name := range []string{"sidecar", "ratelimit"} {
		if out, err := exec.CommandContext(t.Context(), program(t, name), "check", dir).CombinedOutput(); err != nil {
			t.Errorf("%s check: %v\n%s", name, err, out)
		}
	}
	return files
}

// documented returns the manifests of an example: of a folder here, with the rules and, where the
// example has one, the environment of its Deployment.
func documented(t *testing.T, folder string, configMap, deployment table) manifests {
	t.Helper()
	m := buildManifests(t, folder)
	m.configMaps[0].Data = documentedRules(t, configMap)
	if deployment != nil {
		text, err := json.Marshal(deployment)
		if err != nil {
			t.Fatal(err)
		}
		var theirs manifests
		theirs.add(t, "the Deployment of the page", text)
		m.deployment.Spec.Template.Spec.Containers[0].Env = theirs.container(t, "ratelimit").Env
	}
	return m
}

// awaitMinute waits until the minute has room for a test.
func awaitMinute(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)) < 10*time.Second {
		<-tick.C
	}
}

// Contour's guide has the rules, the Deployment, the HTTPProxy, and requests with their answers.
func TestContoursGuideGetsTheAnswersThatItShows(t *testing.T) {
	t.Parallel()
	guide := page(parts.Read(t, filepath.Join(moduleDirectory(t, "github.com/projectcontour/contour"), "site/content/docs/main/guides/global-rate-limiting.md")))
	setup := guide.below(t, "## Deploy an RLS")
	m := documented(t, "contour", setup.object(t, "ConfigMap", "ratelimit-config"), setup.object(t, "Deployment", "ratelimit"))
	s := startService(t, m, surroundings{with: map[string]string{"REDIS_URL": parts.RedisFor(t, parts.RedisOptions{}).Address()}})
	var told any
	configMap := guide.below(t, "## Configure the RLS with Contour").object(t, "ConfigMap", "contour")
	if err := yaml.Unmarshal([]byte(as[string](t, configMap, "data", "contour.yaml")), &told); err != nil {
		t.Fatal(err)
	}
	proxy := guide.below(t, "## Add global rate limit policies").object(t, "HTTPProxy", "echo")
	e := startContoursEnvoy(t, s, proxy, at(t, told, "rateLimitService"))
	requests := regexp.MustCompile(`(?m)^\$ curl -I ([^/\s]+)(/\S*)\n\nHTTP/1\.1 (\d+)`).FindAllStringSubmatch(string(guide.below(t, "## Make requests")), -1)
	if len(requests) != 4 {
		t.Fatalf("got %d requests in the guide, want four", len(requests))
	}
	awaitMinute(t)
	for i, request := range requests {
		t.Run("Request #"+strconv.Itoa(i+1), func(t *testing.T) {
			got := e.send(t, call{method: http.MethodHead, path: request[2], headers: []string{"host: " + request[1]}})
			if text := strconv.Itoa(got.StatusCode); text != request[3] {
				t.Errorf("%s: got %s, the guide shows %s", request[2], text, request[3])
			}
		})
	}
}

// Contour's example has the rules of the guide as a file.
func TestContoursExampleLoads(t *testing.T) {
	t.Parallel()
	example := filepath.Join(moduleDirectory(t, "github.com/projectcontour/contour"), "examples/ratelimit")
	documentedRules(t, as[table](t, readYAML(t, filepath.Join(example, "01-ratelimit-config.yaml"))))
}

// Istio's task has the rules, the EnvoyFilters, and requests with their answers.
func TestIstiosTaskGetsTheAnswersThatItShows(t *testing.T) {
	t.Parallel()
	source := os.Getenv("PLATFORMS_ISTIO")
	if source == "" {
		t.Skip("PLATFORMS_ISTIO names no tree of istio.io: see docs/platforms-cases.md")
	}
	task := page(parts.Read(t, filepath.Join(source, "content/en/docs/tasks/policy-enforcement/rate-limit/index.md")))
	global := task.below(t, "## Global rate limit")
	m := documented(t, "istio", global.object(t, "ConfigMap", "ratelimit-config"), nil)
	s := startService(t, m, surroundings{with: map[string]string{"REDIS_URL": parts.RedisFor(t, parts.RedisOptions{}).Address()}})
	patch := func(name string) table {
		return as[table](t, global.object(t, "EnvoyFilter", name), "spec", "configPatches", 0, "patch", "value")
	}
	// The configuration that Istio makes of the Gateway and the VirtualService, and patches.
	host := table{"name": "*:8080", "domains": list{"*"}, "routes": istioRoutes(t, global.object(t, "VirtualService", "bookinfo"), patch("filter-ratelimit-svc-api"))}
	maps.Copy(host, patch("filter-ratelimit-svc"))
	filter := patch("filter-ratelimit")
	name := as[string](t, filter, "typed_config", "rate_limit_service", "grpc_service", "envoy_grpc", "cluster_name")
	e := startEnvoy(t, bootstrap(table{"virtual_hosts": list{host}}, list{filter, router()},
		cluster(t, "backend", startBackend(t), nil), cluster(t, name, s.GRPC, speaksHTTP2())))
	shown := regexp.MustCompile(`(?m)curl -s "http://\$GATEWAY_URL(\S+?)".*\n((?:\d{3}\n)+)`).FindAllStringSubmatch(string(task.below(t, "### Verify global rate limit")), -1)
	if len(shown) != 2 {
		t.Fatalf("got %d loops of requests in the task, want two", len(shown))
	}
	awaitMinute(t)
	for _, loop := range shown {
		t.Run(loop[1], func(t *testing.T) {
			for i, want := range strings.Fields(loop[2]) {
				path := strings.ReplaceAll(loop[1], "${i}", strconv.Itoa(i+1))
				if got := strconv.Itoa(e.send(t, call{path: path}).StatusCode); got != want {
					t.Errorf("%s, request %d: got %s, the task shows %s", path, i+1, got, want)
				}
			}
		})
	}
}

// istioRoutes returns the routes of a VirtualService, and merges a patch into the route named api.
// Envoy 1.40 has no google_re2 in a safe_regex_match.
func istioRoutes(t *testing.T, service, patch table) list {
	t.Helper()
	var routes list
	for _, http := range as[list](t, service, "spec", "http") {
		for _, match := range as[list](t, http, "match") {
			uri := as[table](t, match, "uri")
			route := table{"match": table{"path": uri["exact"]}, "route": table{"cluster": "backend"}}
			if uri["exact"] == nil {
				route["match"] = table{"prefix": uri["prefix"]}
			}
			if as[table](t, http)["name"] == "api" {
				limits := slices.Clone(as[list](t, patch, "route", "rate_limits"))
				as[table](t, route, "route")["rate_limits"] = limits
			}
			routes = append(routes, route)
		}
	}
	return routes
}
