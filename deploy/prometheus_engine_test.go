package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/test/parts"
)

// ruleTests is a file of `promtool test rules`, as far as ours use the format.
type ruleTests struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Tests              []ruleTest     `yaml:"tests"`
}

type ruleTest struct {
	Name        string         `yaml:"name"`
	Interval    model.Duration `yaml:"interval"`
	InputSeries []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Alerts []struct {
		EvalTime  model.Duration `yaml:"eval_time"`
		Alertname string         `yaml:"alertname"`
		Expected  []struct {
			Labels      map[string]string `yaml:"exp_labels"`
			Annotations map[string]string `yaml:"exp_annotations"`
		} `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test"`
	Expressions []struct {
		Expr     string         `yaml:"expr"`
		EvalTime model.Duration `yaml:"eval_time"`
		Expected []struct {
			Labels string  `yaml:"labels"`
			Value  float64 `yaml:"value"`
		} `yaml:"exp_samples"`
	} `yaml:"promql_expr_test"`
}

// TestAlertsFireForASickWeirAndNotForAHealthyOne runs weir.rules_test.yaml by the engine that
// promtool runs such files by. promtool itself cannot be a dependency: it needs the clients of all
// clouds. TestPromtoolAcceptsTheRulesAndTheirTests runs one that is there.
func TestAlertsFireForASickWeirAndNotForAHealthyOne(t *testing.T) {
	data := parts.Read(t, "prometheus/weir.rules_test.yaml")
	var file ruleTests
	decoder := yaml.NewDecoder(strings.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	tested := make(map[string]bool)
	for _, test := range file.Tests {
		t.Run(test.Name, func(t *testing.T) {
			test.run(t, time.Duration(file.EvaluationInterval), "prometheus/"+file.RuleFiles[0])
		})
		for _, a := range test.Alerts {
			tested[a.Alertname] = tested[a.Alertname] || len(a.Expected) > 0
		}
		for _, e := range test.Expressions {
			name, _, _ := strings.Cut(e.Expr, "{")
			tested[name] = true
		}
	}
	for _, r := range rulesOfPrometheus(t) {
		if name := r.Record + r.Alert; !tested[name] {
			t.Errorf("no test makes the rule %s true", name)
		}
	}
}

// run evaluates the rules at each step and compares alerts and expressions.
func (test *ruleTest) run(t *testing.T, step time.Duration, file string) {
	t.Helper()
	var load strings.Builder
	fmt.Fprintf(&load, "load %v\n", test.Interval)
	for _, s := range test.InputSeries {
		fmt.Fprintf(&load, "  %s %s\n", s.Series, s.Values)
	}
	for _, a := range test.Alerts {
		if time.Duration(a.EvalTime)%step != 0 {
			t.Errorf("%s at %v: the rules run every %v", a.Alertname, a.EvalTime, step)
		}
	}
	p := parser.NewParser(parser.Options{})
	suite, err := promqltest.NewLazyLoader(load.String(), promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true, Parser: p})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = suite.Close() }()
	suite.SubqueryInterval = step
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc:    rules.EngineQueryFunc(suite.QueryEngine(), suite.Storage()),
		AppendableV2: suite.Storage(),
		Context:      t.Context(),
		NotifyFunc:   func(context.Context, string, ...*rules.Alert) {},
		Logger:       promslog.NewNopLogger(),
		Parser:       p,
	})
	byName, errs := manager.LoadGroups(time.Duration(test.Interval), labels.EmptyLabels(), "", nil, false, file)
	if errs != nil {
		t.Fatal(errs)
	}
	var groups []*rules.Group
	for _, g := range byName {
		groups = append(groups, g)
		for _, r := range g.Rules() {
			if a, ok := r.(*rules.AlertingRule); ok {
				a.SetRestored(true)
			}
		}
	}
	for at := time.Unix(0, 0).UTC(); !at.After(time.Unix(0, 0).Add(test.last())); at = at.Add(step) {
		suite.WithSamplesTill(at, func(err error) {
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range groups {
				g.Eval(suite.Context(), at)
				for _, r := range g.Rules() {
					if r.LastError() != nil {
						t.Fatalf("%s at %v: %v", r.Name(), at, r.LastError())
					}
				}
			}
		})
		test.compare(t, suite, groups, at)
	}
}

// last returns when the last comparison is due.
func (test *ruleTest) last() time.Duration {
	var last model.Duration
	for _, a := range test.Alerts {
		last = max(last, a.EvalTime)
	}
	for _, e := range test.Expressions {
		last = max(last, e.EvalTime)
	}
	return time.Duration(last)
}

// compare compares the alerts and the expressions of one instant.
func (test *ruleTest) compare(t *testing.T, suite *promqltest.LazyLoader, groups []*rules.Group, at time.Time) {
	t.Helper()
	since := model.Duration(at.Sub(time.Unix(0, 0)))
	for _, want := range test.Alerts {
		if want.EvalTime != since {
			continue
		}
		expected, got := []string{}, []string{}
		for _, e := range want.Expected {
			all := labels.NewBuilder(labels.FromMap(e.Labels)).Set(labels.AlertName, want.Alertname).Labels()
			expected = append(expected, all.String()+" "+labels.FromMap(e.Annotations).String())
		}
		for _, g := range groups {
			for _, r := range g.Rules() {
				a, ok := r.(*rules.AlertingRule)
				if !ok || a.Name() != want.Alertname {
					continue
				}
				for _, active := range a.ActiveAlerts() {
					if active.State == rules.StateFiring {
						got = append(got, active.Labels.String()+" "+active.Annotations.String())
					}
				}
			}
		}
		slices.Sort(got)
		slices.Sort(expected)
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("%s after %v (-want +got):\n%s", want.Alertname, since, diff)
		}
	}
	for _, want := range test.Expressions {
		if want.EvalTime != since {
			continue
		}
		query, err := suite.QueryEngine().NewInstantQuery(suite.Context(), suite.Queryable(), nil, want.Expr, at)
		if err != nil {
			t.Fatal(err)
		}
		result, err := query.Exec(suite.Context()).Vector()
		if err != nil {
			t.Fatal(err)
		}
		expected, got := []string{}, []string{}
		for _, e := range want.Expected {
			expected = append(expected, fmt.Sprintf("%s %.6g", parsedLabels(t, e.Labels), e.Value))
		}
		for _, s := range result {
			got = append(got, fmt.Sprintf("%s %.6g", s.Metric, s.F))
		}
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("%s after %v (-want +got):\n%s", want.Expr, since, diff)
		}
	}
}

// parsedLabels returns a series as Prometheus writes it.
func parsedLabels(t *testing.T, text string) string {
	t.Helper()
	all, err := parser.NewParser(parser.Options{}).ParseMetric(text)
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
