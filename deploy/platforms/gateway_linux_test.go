package platforms

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/test/parts"
)

// The class that the manifests of Envoy Gateway's tests leave open.
const className = "weir"

// A gateway is an Envoy Gateway that runs without Kubernetes, its files, and the Envoys that it
// starts.
type gateway struct {
	*parts.Process
	root      root   // that it and the Envoys have for /
	tree      string // of its source, for the manifests of its tests
	resources string // the directory that it watches
}

// TestEnvoyGatewaysTestsEndAsThePageSays plays the tests of global rate limits that Envoy Gateway
// runs in a cluster. Envoy Gateway itself, built from the module, turns their manifests into xDS,
// and starts real Envoy. The rules go to Weir's `ratelimit` over xDS with TLS. Addresses of
// Services are the loopback.
func TestEnvoyGatewaysTestsEndAsThePageSays(t *testing.T) {
	const builtVariable = "PLATFORMS_GATEWAY_BUILT"
	page := cases(t, "Envoy Gateway")
	source := tree(t, "PLATFORMS_GATEWAY")
	sameCases(t, page, gatewayTests(t, source))
	built := os.Getenv(builtVariable)
	if built == "" {
		built = buildEnvoyGateway(t)
	}
	envoy := parts.NeedEnvoy(t, parts.RootFor(t))
	program, err := parts.Program(t.Context(), parts.RootFor(t), "cmd/ratelimit", false)
	if err != nil {
		t.Fatal(err)
	}
	if !parts.InWorld(t, append(os.Environ(), builtVariable+"="+built, "ENVOY="+envoy)...) {
		return
	}
	g := layEnvoyGateway(t, built, envoy, source)
	g.root.program(t, program, "ratelimit")
	startBackends(t, g)
	// Before Envoy Gateway, which has the port 8081 on all addresses for a page of its own, if it is
	// free.
	service := startRatelimit(t, g.root)
	g.start(t)
	results := unplayed(page)
	all := gatewayCases(t, source)
	for _, c := range all {
		if page[c.name].result == cannot {
			continue
		}
		started := time.Now()
		passed := t.Run(c.name, func(t *testing.T) {
			if c.with != nil {
				c.with(t)
			}
			g.put(t, c.manifests)
			defer g.clear(t)
			for _, step := range c.steps {
				step.play(t, service)
			}
		})
		results[c.name] = outcome{map[bool]string{true: pass, false: fail}[passed], time.Since(started)}
	}
	for _, c := range all {
		if row := page[c.name]; row.result == cannot {
			started := time.Now()
			g.mustEnd(t, c.manifests, row.why)
			results[c.name] = outcome{cannot, time.Since(started)}
		}
	}
	report(t, page, results)
}

// gatewayTests returns the names of Envoy Gateway's tests with rate limits: all tests in the files
// that speak of them.
func gatewayTests(t *testing.T, source string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(source, "test/e2e/tests/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		text := parts.Read(t, file)
		if !strings.Contains(strings.ToLower(text), "ratelimit") {
			continue
		}
		for _, m := range regexp.MustCompile(`ShortName:\s*"([^"]+)"`).FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// buildEnvoyGateway compiles Envoy Gateway in the version that crds uses, and returns the path. The
// first run compiles some 1700 packages.
func buildEnvoyGateway(t *testing.T) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "github.com/envoyproxy/gateway")
	list.Dir = "../crds"
	version, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parts.RootFor(t), ".cache/platforms")
	module, number, _ := strings.Cut(strings.TrimSpace(string(version)), " ")
	install := exec.CommandContext(t.Context(), "go", "install", module+"/cmd/envoy-gateway@"+number)
	install.Dir, install.Env = t.TempDir(), append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+dir)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("building Envoy Gateway %s: %v\n%s", number, err, out)
	}
	return filepath.Join(dir, "envoy-gateway")
}

// layEnvoyGateway lays a root with the files that Envoy Gateway reads. Envoy Gateway makes the
// certificates itself. Our Envoy lies in the place of a downloaded one. Addresses of Services are
// the loopback.
func layEnvoyGateway(t *testing.T, binary, envoy, source string) *gateway {
	t.Helper()
	g := &gateway{tree: source, root: layRoot(t, "127.0.0.1 localhost envoy-gateway envoy-ratelimit.envoy-gateway-system.svc.cluster.local\n"+
		"::1 localhost\n"+keysAddress+" static-file-server.gateway-conformance-infra\n")}
	g.resources = g.root.path("home/resources")
	if err := os.Mkdir(g.resources, 0o755); err != nil {
		t.Fatal(err)
	}
	version := envoyVersion(t, envoy)
	g.root.program(t, binary, "envoy-gateway")
	g.root.program(t, envoy, filepath.Join("home/data/envoy-versions", version, "bin/envoy"))
	out, err := exec.CommandContext(t.Context(), binary, "certgen", "--local", "--config-home", g.root.path("home/config")).CombinedOutput()
	if err != nil {
		t.Fatalf("certgen: %v\n%s", err, out)
	}
	if err := os.Symlink("home/config/certs/envoy-rate-limit", g.root.path("certs")); err != nil {
		t.Fatal(err)
	}
	parts.Write(t, g.root.path("home/envoy-gateway.yaml"), strings.ReplaceAll(parts.Read(t, "testdata/envoy-gateway.yaml"), "{HOME}", "/home"))
	g.write(t, "base.yaml", strings.ReplaceAll(parts.Read(t, "testdata/base.yaml"), "{ENVOY_VERSION}", version))
	return g
}

// start starts Envoy Gateway. The end of the test ends Envoy Gateway and the Envoys.
func (g *gateway) start(t *testing.T) {
	t.Helper()
	var err error
	g.Process, err = parts.StartBelow(string(g.root), []string{"HOME=/home", "USER=root"}, "envoy-gateway", "/envoy-gateway",
		"server", "--config-path", "/home/envoy-gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	process := g.Process
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("Envoy Gateway's last lines:\n%s", process.Tail(40))
		}
		select {
		case <-process.Exited(): // in mustEnd
			return
		default:
		}
		if err := process.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Log(err)
		}
	})
	g.awaitReload(t, 0)
}

// mustEnd starts an Envoy Gateway that has ended again, and gives it the manifests of a test. Envoy
// Gateway must end with the line that the reason of the page has between backquotes.
func (g *gateway) mustEnd(t *testing.T, manifests []string, reason string) {
	t.Helper()
	select {
	case <-g.Exited():
		g.start(t)
	default:
	}
	_, line, _ := strings.Cut(reason, "`panic")
	line, _, quoted := strings.Cut(line, "`")
	if !quoted {
		t.Fatalf("%v: the page has no line that Envoy Gateway ends with: %q", manifests, reason)
	}
	from := g.Mark()
	g.lay(t, manifests)
	if _, _, err := g.Await(parts.Soon(t), from, func(text string) bool { return strings.Contains(text, "panic"+line) }); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Wait(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}
	g.remove(t)
}

// awaitReload waits until Envoy Gateway has read its files, in the lines from that one on.
func (g *gateway) awaitReload(t *testing.T, from int) {
	t.Helper()
	line, _, err := g.Await(parts.Soon(t), from, func(line string) bool {
		return strings.Contains(line, "reload resources finished") || strings.Contains(line, "failed to reload resources")
	})
	if err != nil || strings.Contains(line, "failed") {
		t.Fatalf("%v: %s", err, line)
	}
}

// envoyVersion returns the version of an Envoy, such as 1.40.0.
func envoyVersion(t *testing.T, envoy string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), envoy, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`/([0-9]+\.[0-9]+\.[0-9]+)[^/]*/`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("envoy --version: %q", out)
	}
	return string(m[1])
}

// write puts a file where Envoy Gateway sees it.
func (g *gateway) write(t *testing.T, name, text string) {
	t.Helper()
	text = strings.ReplaceAll(text, "{GATEWAY_CLASS_NAME}", className)
	whole := filepath.Join(t.TempDir(), name)
	parts.Write(t, whole, text)
	if err := os.Rename(whole, filepath.Join(g.resources, name)); err != nil {
		t.Fatal(err)
	}
}

// put gives Envoy Gateway the manifests of a test, and waits until it has read them.
func (g *gateway) put(t *testing.T, manifests []string) {
	t.Helper()
	from := g.Mark()
	g.lay(t, manifests)
	g.awaitReload(t, from)
}

// lay lays the manifests of a test where Envoy Gateway sees them. References to Services become
// references to Backends, see testdata/base.yaml; nothing else changes.
func (g *gateway) lay(t *testing.T, manifests []string) {
	t.Helper()
	for _, name := range manifests {
		decoder := yaml.NewDecoder(strings.NewReader(parts.Read(t, filepath.Join(g.tree, "test/e2e/testdata", name))))
		var all strings.Builder
		encoder := yaml.NewEncoder(&all)
		for {
			var object any
			err := decoder.Decode(&object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if object == nil {
				continue
			}
			toBackends(object)
			if err := encoder.Encode(object); err != nil {
				t.Fatal(err)
			}
		}
		g.write(t, "case-"+name, all.String())
	}
}

// toBackends makes references to Services of the cluster references to Backends.
func toBackends(v any) {
	switch v := v.(type) {
	case []any:
		for _, element := range v {
			toBackends(element)
		}
	case map[string]any:
		for key, value := range v {
			toBackends(value)
			refs, _ := value.([]any)
			for _, ref := range refs {
				ref, ok := ref.(map[string]any)
				if !ok || key != "backendRefs" && (key != "targetRefs" || ref["kind"] != "Service") {
					continue
				}
				ref["group"], ref["kind"] = "gateway.envoyproxy.io", "Backend"
				delete(ref, "port")
				delete(ref, "sectionName")
			}
		}
	}
}

// remove takes the manifests of a test away.
func (g *gateway) remove(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(g.resources, "case-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

// clear takes the manifests of a test away, and waits until nothing serves them.
func (g *gateway) clear(t *testing.T) {
	t.Helper()
	g.remove(t)
	for _, path := range []string{"/", "/get", "/foo"} {
		parts.Eventually(t, func() string {
			answer, err := request{path: path}.send(t)
			if err != nil || answer.status != http.StatusNotFound {
				return fmt.Sprintf("%s: got %v, %v; want 404 without the manifests", path, answer, err)
			}
			return ""
		})
	}
	for _, address := range []string{onPort80, onPort8080} {
		parts.Eventually(t, func() string {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				return ""
			}
			_ = conn.Close()
			return address + " is still served"
		})
	}
}

// startRatelimit starts `ratelimit` in a root, with the environment that Envoy Gateway gives it, in
// memory. The end of the test ends the program.
func startRatelimit(t *testing.T, in root) *parts.Ratelimit {
	t.Helper()
	var deployment struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Env []struct{ Name, Value string }
					}
				}
			}
		}
	}
	file, err := os.Open("../envoy-gateway/testdata/deployment-memory.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := yaml.NewDecoder(file).Decode(&deployment); err != nil {
		t.Fatal(err)
	}
	var environ []string
	for _, v := range deployment.Spec.Template.Spec.Containers[0].Env {
		if v.Name != "PROMETHEUS_ADDR" { // Envoy Gateway itself has that port
			environ = append(environ, v.Name+"="+v.Value)
		}
	}
	s, err := parts.StartRatelimitBelow(parts.Soon(t), string(in), "/ratelimit", append(environ, "GRPC_PORT=8081")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			t.Logf("last lines of ratelimit:\n%s", s.Tail(20))
		}
	})
	return s
}

// A request is one that a test sends.
type request struct {
	at           string // address of a gateway; the one named same-namespace when left out
	method, path string // GET when left out
	host         string
	headers      map[string]string
}

// An answer is the part of an answer that tests look at.
type answer struct {
	status    int
	limit     string // x-ratelimit-limit
	remaining string // x-ratelimit-remaining
}

// send sends a request on a new connection.
func (r request) send(t *testing.T) (answer, error) {
	t.Helper()
	at := r.at
	if at == "" {
		at = "127.0.0.1:9080"
	}
	sent, err := http.NewRequestWithContext(t.Context(), r.method, "http://"+at+r.path, http.NoBody)
	if err != nil {
		return answer{}, err
	}
	sent.Host = r.host
	for name, value := range r.headers {
		sent.Header.Set(name, value)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	got, err := transport.RoundTrip(sent)
	if err != nil {
		return answer{}, err
	}
	defer got.Body.Close()
	if _, err := io.Copy(io.Discard, got.Body); err != nil {
		return answer{}, err
	}
	return answer{got.StatusCode, got.Header.Get("X-Ratelimit-Limit"), got.Header.Get("X-Ratelimit-Remaining")}, nil
}

// A step is a request and the expected answer.
type step struct {
	request
	times  int    // how often; 0 means until the answer is as expected
	status int    // of the answer; 0: no request, but a metric
	limit  string // x-ratelimit-limit; "" when the test does not look
	rest   bool   // as often as x-ratelimit-remaining says, and then once more for a 429

	metric string // a series of the service that must be there, as Prometheus asks for it
}

// play sends the request of a step, and judges the answers.
func (s step) play(t *testing.T, service *parts.Ratelimit) {
	t.Helper()
	wrong := func() string {
		got, err := s.send(t)
		if err != nil || got.status != s.status || s.limit != "" && got.limit != s.limit {
			return fmt.Sprintf("%+v: got %+v, %v; want %d and limit %q", s.request, got, err, s.status, s.limit)
		}
		return ""
	}
	switch {
	case s.metric != "":
		awaitMetric(t, service, s.metric)
	case s.times == 0:
		parts.Eventually(t, wrong)
	}
	for i := range s.times {
		if text := wrong(); text != "" {
			t.Fatalf("request %d of %d: %s", i+1, s.times, text)
		}
	}
	if s.rest {
		got, err := s.send(t)
		var left int
		if _, scanned := fmt.Sscan(got.remaining, &left); err != nil || scanned != nil {
			t.Fatalf("%+v: got %+v, %v; want x-ratelimit-remaining", s.request, got, err)
		}
		step{request: s.request, times: left, status: s.status, limit: s.limit}.play(t, service)
		step{request: s.request, times: 1, status: http.StatusTooManyRequests}.play(t, service)
	}
}

// awaitMetric waits until the service shows a series with that name and that label, above 0.
func awaitMetric(t *testing.T, service *parts.Ratelimit, series string) {
	t.Helper()
	name, label, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	parts.Eventually(t, func() string {
		_, text, err := parts.Page(t.Context(), http.MethodGet, "http://"+service.Metrics+"/metrics", "")
		if err != nil {
			return err.Error()
		}
		for line := range strings.Lines(text) {
			labels, value, _ := strings.Cut(line, "} ")
			if strings.HasPrefix(labels, name+"{") && strings.Contains(labels, label) && value != "0\n" {
				return ""
			}
		}
		return series + " is not there"
	})
}

// startBackends starts the servers that the Backends lead to, see testdata/base.yaml. Envoys of the
// tests have 80 and 8080 of all IPv4 addresses, so these servers are on ::1.
func startBackends(t *testing.T, g *gateway) {
	t.Helper()
	serve(t, "[::1]:8080", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"path": r.URL.Path, "host": r.Host, "headers": r.Header})
	}))
	serveExtProc(t, g)
}

// serve serves a handler until the test ends.
func serve(t *testing.T, address string, handler http.Handler) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }() // until Close
	t.Cleanup(func() { _ = server.Close() })
}
