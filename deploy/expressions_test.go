package deploy

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
)

// An evaluator runs expressions over a day of the series of real sidecars.
type evaluator struct {
	engine *promql.Engine
	store  storage.Queryable
}

// evaluatedAt is the instant of the evaluation: some expressions compare with the day or the week
// before.
const evaluatedAt = 8 * 24 * time.Hour

// newEvaluator repeats the samples of real sidecars every two minutes, in two hours that end a week
// before the evaluation, and in the last 25. One scrape gives the growth of a counter in two
// minutes.
func newEvaluator(t *testing.T) *evaluator {
	t.Helper()
	const step = 2 * time.Minute
	series := scraped(t)
	var load strings.Builder
	fmt.Fprintf(&load, "load %v\n", step)
	for _, s := range slices.Sorted(maps.Keys(series)) {
		name, _, _ := strings.Cut(s, "{")
		start := series[s]
		if kind := name[strings.LastIndexByte(name, '_')+1:]; slices.Contains([]string{"total", "bucket", "count", "sum"}, kind) {
			start = "0+" + start
		}
		const first, last = 2 * time.Hour, 25 * time.Hour
		gap := evaluatedAt - 7*24*time.Hour - first
		fmt.Fprintf(&load, "  %s _x%d %sx%d _x%d %sx%d\n", s, gap/step, start, first/step, (7*24*time.Hour-last)/step-1, start, last/step)
	}
	return &evaluator{
		engine: promqltest.NewTestEngine(t, false, 5*time.Minute, promqltest.DefaultMaxSamplesPerQuery),
		store:  promqltest.LoadedStorage(t, load.String()),
	}
}

// evaluate returns the value of an expression.
func (e *evaluator) evaluate(t *testing.T, expr string) promql.Vector {
	t.Helper()
	query, err := e.engine.NewInstantQuery(t.Context(), e.store, nil, expr, time.Unix(0, 0).Add(evaluatedAt))
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	defer query.Close()
	vector, err := query.Exec(t.Context()).Vector()
	if err != nil {
		t.Errorf("%s: %v", expr, err)
	}
	return slices.Clone(vector)
}

// check evaluates an expression and its parts. Sidecars must serve series for each selector with
// its labels, for each side of a comparison, and with each label of a grouping. So a wrong name
// never makes a comparison that is always false.
func (e *evaluator) check(t *testing.T, expr string) promql.Vector {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			if len(e.evaluate(t, n.String())) == 0 {
				t.Errorf("%s: no sidecar serves %s", expr, n)
			}
		case *parser.BinaryExpr:
			for _, side := range []parser.Expr{n.LHS, n.RHS} {
				if n.Op.IsComparisonOperator() && side.Type() == parser.ValueTypeVector && len(e.evaluate(t, side.String())) == 0 {
					t.Errorf("%s: compares nothing: %s", expr, side)
				}
			}
		case *parser.AggregateExpr:
			for _, sample := range e.evaluate(t, n.Expr.String()) {
				for _, label := range n.Grouping {
					if !n.Without && !sample.Metric.Has(label) {
						t.Errorf("%s: %s has no label %s", expr, sample.Metric, label)
					}
				}
			}
		}
		return nil
	})
	return e.evaluate(t, expr)
}

// TestEveryExpressionHasAValueOnTheSeriesOfRealSidecars evaluates the alerts, the recording rules
// and the board. Two sidecars under traffic serve the series: one counts in memory, and the Redis
// of the other one is away.
func TestEveryExpressionHasAValueOnTheSeriesOfRealSidecars(t *testing.T) {
	e := newEvaluator(t)
	var firing []string
	for _, r := range rulesOfPrometheus(t) {
		vector := e.check(t, r.Expr)
		if r.Record != "" && len(vector) == 0 {
			t.Errorf("%s has no value", r.Record)
		}
		if r.Alert != "" && len(vector) > 0 {
			firing = append(firing, r.Alert)
		}
		if r.Alert != "" && (r.Labels["severity"] != "page" && r.Labels["severity"] != "ticket" || r.Annotations["summary"] == "" || r.Annotations["description"] == "") {
			t.Errorf("%s: must have a severity, page or ticket, a summary and a description", r.Alert)
		}
	}
	// The traffic has an unknown domain, and a Redis that is away. The breaker opens again in each
	// repetition. A rule in shadow mode is above its limit, which is no alarm. All else is well.
	want := []string{"WeirDomainUnknown", "WeirStoreDown", "WeirStoreFallback", "WeirStoreFlaps"}
	if diff := cmp.Diff(want, firing); diff != "" {
		t.Errorf("alerts (-want +got):\n%s", diff)
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*")
	for _, p := range readBoard(t).Panels {
		for _, target := range p.Targets {
			vector := e.check(t, variables.Replace(target.Expr))
			if len(vector) == 0 {
				t.Errorf("the panel %q shows nothing for %s", p.Title, target.Expr)
			}
			for _, sample := range vector {
				for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
					if !sample.Metric.Has(m[1]) {
						t.Errorf("the panel %q: the legend names the label %s, which %s does not have", p.Title, m[1], sample.Metric)
					}
				}
			}
			if len(vector) > 1 && !strings.Contains(target.LegendFormat, "{{") {
				t.Errorf("the panel %q: %d series have one legend", p.Title, len(vector))
			}
		}
	}
}
