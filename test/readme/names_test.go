package readme

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/test/parts"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{}, Third: []string{}})
}

var (
	code     = regexp.MustCompile("`[^`]+`")
	flagName = regexp.MustCompile(`(?:^|[\s` + "`" + `(])--([a-z][a-z0-9-]+)`)
	variable = regexp.MustCompile(`\bWEIR_[A-Z_]+\b`)
	metric   = regexp.MustCompile(`\bweir_[a-z_]+\b`)
	recorded = regexp.MustCompile(`\b[a-z_]+:weir_[a-z0-9_:]+\b`)
	target   = regexp.MustCompile(`(?:^|` + "`" + `)make ([a-z0-9-]+)`)
)

// said returns the lines of a document that name a part of the product: inline code, and commands
// that are not meant to fail.
func said(d document) []string {
	var all []string
	for _, line := range d.prose {
		all = append(all, code.FindAllString(line, -1)...)
	}
	for _, b := range d.blocks {
		if b.language == "sh" && b.option("exit") == "" {
			all = append(all, strings.Split(b.text, "\n")...)
		}
	}
	return all
}

func TestSettingsOfTheDocumentsExist(t *testing.T) {
	help := ""
	for _, command := range []string{"serve", "check", "match", "reset", "holds", "top", "watch", "log-level", "grant", "grants", "revoke", "usage", "test", "record", "simulate", "suggest", "replay", "version"} {
		out, err := exec.CommandContext(parts.Soon(t), os.Getenv(sidecarVariable), command, "--help").CombinedOutput()
		if err != nil {
			t.Fatalf("%s --help: %v", command, err)
		}
		help += string(out)
	}
	// Of other programs: kustomize, Helm, Envoy, Envoy Gateway, docker, redis-server, redis-cli,
	// Of other programs: kustomize, Helm, Envoy, Envoy Gateway, docker, redis-server, redis-cli,
	// kubectl, rls-conformance.
	others := []string{
		"rm", "set", "mode", "concurrency", "save", "aclfile", "scan", "pattern", "no-raw", "from-file", "target", "config-path", "local",
		"starter", "program", "redis",
	}
	for _, d := range documents(t) {
		for _, line := range said(d) {
			for _, m := range flagName.FindAllStringSubmatch(line, -1) {
				if !strings.Contains(help, "--"+m[1]+" ") && !slices.Contains(others, m[1]) {
					t.Errorf("%s: there is no flag --%s", d.name, m[1])
				}
			}
			for _, name := range variable.FindAllString(line, -1) {
				if !strings.Contains(help, "[$"+name+"]") && name != "WEIR_REQUIRE" {
					t.Errorf("%s: there is no setting %s", d.name, name)
				}
			}
		}
	}
}

func TestMetricsOfTheDocumentsExistAndAllOfThemAreInOne(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	const text = "domain: d\ndescriptors:\n  - {key: a, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5, warn_at: 80%}}\n" +
		"  - {key: e, rate_limit: {unit: day, requests_per_unit: 5, escalate: {after: 1, within: 1d, block: [1h], forget: 2d}}}\n" +
		"  - {key: h, rate_limit: {algorithm: concurrency, max_in_flight: 5, hold: {begin: r, end: d, at_most: 1s}}}\n"
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	sidecar, err := parts.StartSidecar(parts.Soon(t), os.Getenv(sidecarVariable), "--rules="+rules, "--http-json-allow=refund", "--state-dir="+t.TempDir(), "--record="+t.TempDir(),
		"--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sidecar.Kill)
	// The metrics of a remote store are there even without the store.
	remote, err := parts.StartSidecar(parts.Soon(t), os.Getenv(sidecarVariable), "--rules="+rules, "--store=redis",
		"--redis-url=unix://"+filepath.Join(t.TempDir(), "none.sock"), "--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remote.Kill)
	// The metrics of an xDS server are there too.
	fed, err := parts.StartSidecar(parts.Soon(t), os.Getenv(sidecarVariable), "--rules="+rules, "--xds-address=127.0.0.1:1",
		"--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fed.Kill)
	// Some metrics appear with their first event: a tracked key, a value, a refund.
	fetch(t, http.MethodPost, "http://"+sidecar.HTTP+"/json", `{"domain":"d","descriptors":[{"entries":[{"key":"a","value":"b"}]}]}`)
	const refund = `{"domain":"d","descriptors":[{"entries":[{"key":"a","value":"b"}],"hitsAddend":1,"isNegativeHits":true}]}`
	fetch(t, http.MethodPost, "http://"+sidecar.HTTP+"/json", refund)
	reportUsage(t, sidecar.GRPC)
	known := make(map[string]bool)
	for _, s := range []*parts.Sidecar{sidecar, remote, fed} {
		page := fetch(t, http.MethodGet, "http://"+s.HTTP+"/metrics", "")
		for _, m := range regexp.MustCompile(`(?m)^# TYPE (weir_\S+)`).FindAllStringSubmatch(page, -1) {
			known[m[1]] = false
		}
	}
	recording := readFile(t, "deploy/prometheus/weir.rules.yaml")
	for _, d := range documents(t) {
		for _, line := range append(said(d), d.prose...) {
			for _, name := range recorded.FindAllString(line, -1) {
				if !strings.Contains(recording, "- record: "+name+"\n") {
					t.Errorf("%s: there is no recording rule %s", d.name, name)
				}
			}
			for _, name := range metric.FindAllString(recorded.ReplaceAllString(line, ""), -1) {
				family := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
				if _, ok := known[family]; !ok {
					t.Errorf("%s: there is no metric %s", d.name, name)
					continue
				}
				known[family] = true
			}
		}
	}
	for name, named := range known {
		if !named {
			t.Errorf("no document names the metric %s", name)
		}
	}
}

// fetch returns the body of a page.
func fetch(t *testing.T, method, url, body string) string {
	t.Helper()
	answer, page, err := parts.Page(parts.Soon(t), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %s", url, answer.Status, page)
	}
	return page
}

func TestMakeTargetsOfTheDocumentsExist(t *testing.T) {
	makefile := readFile(t, "Makefile")
	for _, d := range documents(t) {
		for _, line := range said(d) {
			for _, m := range target.FindAllStringSubmatch(line, -1) {
				if !strings.Contains(makefile, "\n"+m[1]+":") {
					t.Errorf("%s: there is no target %s", d.name, m[1])
				}
			}
		}
	}
}

func TestRequestsOfTheDemoAreThoseOfTheREADME(t *testing.T) {
	readme := readFile(t, "README.md")
	for line := range strings.Lines(readFile(t, "test/demo/main.go")) {
		line = strings.TrimSpace(line)
		if (strings.HasPrefix(line, "curl ") || strings.HasPrefix(line, "for ") && strings.Contains(line, "curl ")) &&
			strings.Contains(line, ":10000") && !strings.Contains(readme, line) {
			t.Errorf("`make demo` prints a request that README.md does not show: %s", line)
		}
	}
}

// reportUsage reports a bucket of RLQS that a rule divides, and one without a rule.
func reportUsage(t *testing.T, address string) {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := rlqsv3.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(parts.Soon(t))
	if err != nil {
		t.Fatal(err)
	}
	usage := func(key string) *rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage {
		return &rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: &rlqsv3.BucketId{Bucket: map[string]string{key: "b"}}}
	}
	reports := &rlqsv3.RateLimitQuotaUsageReports{
		Domain: "d", BucketQuotaUsages: []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{usage("nothing"), usage("a")},
	}
	if err := stream.Send(reports); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
}
