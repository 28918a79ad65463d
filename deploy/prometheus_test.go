package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"

	"github.com/weirproxy/weir/test/parts"
)

// rulesOfPrometheus returns the rules that Prometheus reads from our file.
func rulesOfPrometheus(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile("prometheus/weir.rules.yaml", false, model.UTF8Validation, parser.NewParser(parser.Options{}), promslog.NewNopLogger())
	if errs != nil {
		t.Fatal(errs)
	}
	var all []rulefmt.Rule
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// panel is the part of a panel of Grafana that we test.
type panel struct {
	Title       string
	Type        string
	Description string
	Targets     []struct{ Expr string }
}

// panels returns the panels of the board with expressions.
func panels(t *testing.T) []panel {
	t.Helper()
	data, err := os.ReadFile("grafana/weir.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct{ Panels []panel }
	if err := json.Unmarshal(data, &board); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(board.Panels, func(p panel) bool { return p.Type == "row" })
}

// prometheusRules limits in shadow mode, with holders and without.
const prometheusRules = `domain: shop
descriptors:
  - {key: client, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: slots, rate_limit: {algorithm: concurrency, max_in_flight: 5, hold: {begin: r, end: d, at_most: 1m}}}
`

// scraped returns the series that two sidecars serve under traffic, with counts in memory and in a Redis that is away, by name.
func scraped(t *testing.T) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(prometheusRules), 0o600); err != nil {
		t.Fatal(err)
	}
	series := make(map[string]string)
	for job, args := range map[string][]string{
		"memory": {"--state-dir=" + t.TempDir()},
		"redis":  {"--store=redis", "--redis-url=unix://" + filepath.Join(t.TempDir(), "none.sock")},
	} {
		args = append(args, "--rules="+file, "--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=")
		s, err := parts.StartSidecar(ctx, program(t, "sidecar"), args...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Kill)
		for _, entry := range []string{"client", "client", "client", "shadow", "shadow", "nothing"} {
			body := fmt.Sprintf(`{"domain":"shop","descriptors":[{"entries":[{"key":%q,"value":"v"}]}]}`, entry)
			if _, _, err := parts.Page(ctx, http.MethodPost, "http://"+s.HTTP+"/json", body); err != nil {
				t.Fatal(err)
			}
		}
		_, page, err := parts.Page(ctx, http.MethodGet, "http://"+s.HTTP+"/metrics", "")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? (\S+)$`).FindAllStringSubmatch(page, -1) {
			series[fmt.Sprintf(`%s{%s}`, m[1], strings.Trim(m[2]+`,job="`+job+`",instance="`+job+`:8080"`, ","))] = m[3]
		}
	}
	return series
}

// TestEveryExpressionRunsOnWhatASidecarServes parses each expression of the board, the alerts and the recording rules. Real sidecars
// must serve each of the metrics, and the expression runs on their series.
func TestEveryExpressionRunsOnWhatASidecarServes(t *testing.T) {
	series := scraped(t)
	served := make(map[string]bool)
	var load strings.Builder
	load.WriteString("load 30s\n")
	for _, s := range slices.Sorted(maps.Keys(series)) {
		name, _, _ := strings.Cut(s, "{")
		served[name] = true
		if kind := name[strings.LastIndexByte(name, '_')+1:]; slices.Contains([]string{"total", "bucket", "count", "sum"}, kind) {
			fmt.Fprintf(&load, "  %s 0+%sx40\n", s, series[s]) // the same traffic every 30 seconds
			continue
		}
		fmt.Fprintf(&load, "  %s %sx40\n", s, series[s])
	}
	store := promqltest.LoadedStorage(t, load.String())
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, promqltest.DefaultMaxSamplesPerQuery)
	run := func(place, expr string) int {
		t.Helper()
		parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
		if err != nil {
			t.Errorf("%s: %v", place, err)
			return 0
		}
		parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
			if v, ok := node.(*parser.VectorSelector); ok && !served[v.Name] {
				t.Errorf("%s: no sidecar serves %s", place, v.Name)
			}
			return nil
		})
		query, err := engine.NewInstantQuery(t.Context(), store, nil, expr, time.Unix(15*60, 0))
		if err != nil {
			t.Errorf("%s: %v", place, err)
			return 0
		}
		defer query.Close()
		vector, err := query.Exec(t.Context()).Vector()
		if err != nil {
			t.Errorf("%s: %v", place, err)
		}
		return len(vector)
	}
	for _, r := range rulesOfPrometheus(t) {
		if n := run(r.Record+r.Alert, r.Expr); r.Record != "" && n == 0 {
			t.Errorf("%s has no value", r.Record)
		}
		if r.Alert != "" && (r.Labels["severity"] != "page" && r.Labels["severity"] != "ticket" || r.Annotations["summary"] == "" || r.Annotations["description"] == "") {
			t.Errorf("%s: must have a severity, page or ticket, a summary and a description", r.Alert)
		}
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*")
	titles := make(map[string]bool)
	for _, p := range panels(t) {
		if titles[p.Title] || p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("the panel %q must have a title of its own, a description and an expression", p.Title)
		}
		titles[p.Title] = true
		for _, target := range p.Targets {
			if run(p.Title, variables.Replace(target.Expr)) == 0 {
				t.Errorf("the panel %q shows nothing for %s", p.Title, target.Expr)
			}
		}
	}
}
