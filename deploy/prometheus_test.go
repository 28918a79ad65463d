package deploy

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

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

// TestEveryAlertHasItsStepsOnThePage holds that runbook_url leads to a heading, and that each
// heading is of an alert.
func TestEveryAlertHasItsStepsOnThePage(t *testing.T) {
	t.Parallel()
	const page = "https://github.com/weirproxy/weir/blob/main/docs/alerts.md#"
	var alerts, headings []string
	for _, r := range rulesOfPrometheus(t) {
		if r.Alert == "" {
			continue
		}
		alerts = append(alerts, r.Alert)
		if got := r.Annotations["runbook_url"]; got != page+strings.ToLower(r.Alert) {
			t.Errorf("%s: got the page %q, want %s and its name", r.Alert, got, page)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(parts.Read(t, "../docs/alerts.md"), -1) {
		headings = append(headings, m[1])
	}
	if diff := cmp.Diff(alerts, headings); diff != "" || len(alerts) < 20 {
		t.Errorf("alerts and headings (-alerts +headings):\n%s", diff)
	}
}

// prometheusRules limits in shadow mode, with holders and without.
const prometheusRules = `domain: shop
descriptors:
  - {key: client, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: slots, rate_limit: {algorithm: concurrency, max_in_flight: 5, hold: {begin: r, end: d, at_most: 1m}}}
`

// scraped returns the series that two sidecars serve under traffic, with counts in memory and in a
// Redis that is away, by name.
func scraped(t *testing.T) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	parts.Write(t, file, prometheusRules)
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
		for _, request := range []string{"shop client", "shop client", "shop client", "shop shadow", "shop shadow", "shop nothing", "unknown client"} {
			domain, key, _ := strings.Cut(request, " ")
			body := fmt.Sprintf(`{"domain":%q,"descriptors":[{"entries":[{"key":%q,"value":"v"}]}]}`, domain, key)
			if _, _, err := parts.Page(ctx, http.MethodPost, "http://"+s.HTTP+"/json", body); err != nil {
				t.Fatal(err)
			}
		}
		_, page, err := parts.Page(ctx, http.MethodGet, "http://"+s.HTTP+"/metrics", "")
		if err != nil {
			t.Fatal(err)
		}
		series[`up{job="`+job+`",instance="`+job+`:8080"}`] = "1" // of Prometheus itself
		for _, m := range regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? (\S+)$`).FindAllStringSubmatch(page, -1) {
			series[fmt.Sprintf(`%s{%s}`, m[1], strings.Trim(m[2]+`,job="`+job+`",instance="`+job+`:8080"`, ","))] = m[3]
		}
	}
	return series
}
