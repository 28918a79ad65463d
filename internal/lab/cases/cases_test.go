package cases

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/lab", "internal/top", "internal/ranges", "internal/regular", "internal/spelling", "internal/timespan", "internal/zones", "pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store", "pkg/store/memstore"},
		Never: []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/spf13", "os", "net"},
	})
}

func parse(text string) (entries []descriptors.Entry, err error) {
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("%q: must be key=value", pair)
		}
		entries = append(entries, descriptors.Entry{Key: key, Value: value})
	}
	return entries, nil
}

const rules = `domain: d
default: {unit: day, requests_per_unit: 7}
descriptors:
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 3, burst: 5}}
  - {key: window, rate_limit: {unit: week, requests_per_unit: 2}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true, replaces: [{name: plan}]}}
  - {key: plan, rate_limit: {name: plan, unit: second, requests_per_unit: 1}}
  - {key: none}
  - {key: tenant, rate_limit: {table: t.csv, unit: hour, requests_per_unit: 1}}
  - {key: slots, rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: b, end: e, at_most: 10s}}}
  - {key: pt, quota_mode: true, group: pt, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: od, quota_mode: true, group: od, rate_limit: {unit: hour, requests_per_unit: 1}}
`

func results(t *testing.T, text string) []string {
	t.Helper()
	table := func(name string) (*descriptors.Table, error) {
		return descriptors.NewTable(name, []byte("gold,9\n")), nil
	}
	set, _, err := descriptors.Load([]descriptors.Source{{Name: "r.yaml", Data: []byte(rules), Table: table}}, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	all := []string{}
	f, err := Read("dir/c.yaml", []byte(text), parse)
	if mistakes, ok := errors.AsType[descriptors.Errors](err); ok {
		for _, m := range mistakes {
			all = append(all, m.Error())
		}
		return all
	}
	if err != nil {
		t.Fatal(err)
	}
	ran := must.Get(Run(t.Context(), f, set))(t)
	for _, r := range ran {
		for _, failure := range r.Failures {
			all = append(all, failure.Error())
		}
	}
	return all
}

func TestWhatHoldsPasses(t *testing.T) {
	got := results(t, `rules: [r.yaml]
domain: d
tests:
  - name: time
    start: 2026-01-01T00:00:00.5Z
    steps:
      - {descriptor: bucket=a, times: 5, outcome: ok, remaining: 0, reset: 1667ms}
      - {descriptor: bucket=a, hits: 0, remaining: 0}
      - {descriptor: bucket=a, outcome: over_limit, wait: 334ms, verdict: over_limit}
      - {at: 333ms, descriptor: bucket=a, outcome: over_limit}
      - {at: 334ms, descriptor: bucket=a, outcome: ok}
      - {at: 6d12h, descriptor: window=a, hits: 2, reset: 11h59m59.5s}
      - {at: 7d, descriptor: window=a, hits: 2, outcome: ok}
      - {at: 7d, descriptor: window=a, refund: true, remaining: 1}
  - name: outcomes
    steps:
      - descriptors:
          - {descriptor: shadow=a, outcome: shadowed, rule: shadow}
          - {descriptor: free=a, outcome: unlimited}
          - {descriptor: plan=a, outcome: replaced}
          - {descriptor: none=a, outcome: not_limited, rule: none}
          - {descriptor: other=a, outcome: ok, rule: default, requests: 7}
          - "bucket=a"
        verdict: ok
      - {descriptor: tenant=gold, requests: 9, times: 9, remaining: 0}
      - {descriptor: tenant=gold, limit: {requests_per_unit: 4, unit: second, unit_multiplier: 2}, requests: 4, remaining: 3}
      - {descriptor: "slots=x,b=1", outcome: ok}
      - {descriptor: "slots=x,b=2", outcome: over_limit}
      - {at: 10s, descriptor: "slots=x,b=2", outcome: ok}
  - name: groups
    steps:
      - {descriptors: [pt=a, od=a], groups: [pt, od]}
      - {descriptors: [pt=a, od=a], groups: [od], verdict: ok}
      - {descriptors: [pt=a, od=a], groups: [], verdict: over_limit}
  - {name: another domain, domain: x, steps: [{descriptor: a=b, outcome: no_domain, rule: "", verdict: ok}]}
`)
	if len(got) != 0 {
		t.Errorf("failures:\n%s", strings.Join(got, "\n"))
	}
}

func TestEveryFailureIsReportedWithItsLine(t *testing.T) {
	got := results(t, "rules: r.yaml\ndomain: d\ntests:\n- name: wrong\n  steps: [{descriptor: slots=b, rule: slots, b: 1}]\n")
	want := []string{`dir/c.yaml:5: tests[0].steps[0]: "b" is not a key that is known here, must be one of ` +
		`at, times, verdict, groups, descriptors, descriptor, hits, refund, limit, rule, outcome, requests, remaining, wait, reset`}
	must.Match(t, "mistakes", want, got)
	got = results(t, `rules: r.yaml
domain: d
tests:
  - name: wrong
    steps:
      - {descriptor: bucket=a, times: 9, outcome: ok}
      - descriptors:
          - {descriptor: bucket=b, outcome: over_limit, rule: plan, requests: 4, remaining: 3, wait: 1s, reset: 2s}
          - {descriptor: free=b, remaining: 1}
        verdict: over_limit
      - {at: 1s, descriptor: tenant=gold, requests: 1}
      - {descriptor: "slots=b,b=1", outcome: over_limit, rule: ""}
      - {descriptors: ["pt=b", "od=b"], groups: [od]}
      - {descriptor: "bucket=a", limit: {requests_per_unit: 1, unit: year, unit_multiplier: 4000}}
`)
	want = []string{
		`dir/c.yaml:6: wrong: at 0s, request 6 of 9: bucket=a: the outcome is over_limit, want ok (r.yaml:4, 3 per 1s)`,
		`dir/c.yaml:7: wrong: at 0s: the verdict is ok, want over_limit`,
		`dir/c.yaml:8: wrong: at 0s: bucket=b: the rule is "bucket", want "plan" (r.yaml:4, 3 per 1s)`,
		`dir/c.yaml:8: wrong: at 0s: bucket=b: the outcome is ok, want over_limit (r.yaml:4, 3 per 1s)`,
		`dir/c.yaml:8: wrong: at 0s: bucket=b: requests is 3, want 4 (r.yaml:4, 3 per 1s)`,
		`dir/c.yaml:8: wrong: at 0s: bucket=b: remaining is 4, want 3 (r.yaml:4, 3 per 1s)`,
		`dir/c.yaml:8: wrong: at 0s: bucket=b: wait is 0s, want 1s (r.yaml:4, 3 per 1s)`,
		`dir/c.yaml:8: wrong: at 0s: bucket=b: reset is 334ms, want 2s (r.yaml:4, 3 per 1s)`,
		`dir/c.yaml:9: wrong: at 0s: free=b: no limit applies, want one (r.yaml:7)`,
		`dir/c.yaml:11: wrong: at 1s: tenant=gold: requests is 9, want 1 (r.yaml:10, 9 per 1h0m0s by t.csv:1)`,
		`dir/c.yaml:12: wrong: at 1s: slots=b,b=1: the rule is "slots", want "" (r.yaml:11, 1 at once)`,
		`dir/c.yaml:12: wrong: at 1s: slots=b,b=1: the outcome is ok, want over_limit (r.yaml:11, 1 at once)`,
		`dir/c.yaml:13: wrong: at 1s: the groups with room are ["pt" "od"], want ["od"]`,
		`dir/c.yaml:14: wrong: at 1s: descriptor 0: override multiplier: `,
	}
	if n := len(want) - 1; len(got) == len(want) && strings.HasPrefix(got[n], want[n]) {
		got[n] = want[n]
	}
	must.Match(t, "failures", want, got)
}

func TestEveryMistakeIsReportedWithItsLine(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"empty", "", []string{"dir/c.yaml: is empty, must be a map with rules and tests"}},
		{"comments alone", "# nothing\n", []string{"dir/c.yaml: is empty, must be a map with rules and tests"}},
		{"no map", "- a\n", []string{"dir/c.yaml:1: must be a map with the keys rules, domain, start, tests"}},
		{"two documents", "rules: x\n---\nrules: y\n", []string{"dir/c.yaml: has several documents, must have one"}},
		{"no keys", "{}\n", []string{
			"dir/c.yaml:1: rules: is missing, must be rule files or directories, from the directory of this file",
			"dir/c.yaml:1: tests: is missing, must be a list of tests",
		}},
		{"no rules, and instants after the last one that 64 bits hold", `rules: []
tests: [{name: a, domain: d, start: 2200-01-01T00:00:00Z, steps: [{at: 36500d, descriptor: a=b, verdict: ok}]}]
`, []string{
			"dir/c.yaml:1: rules: is empty, must be rule files or directories, from the directory of this file",
			`dir/c.yaml:2: tests[0].start: is "2200-01-01T00:00:00Z", must be an instant of the years 1971 to 2100, such as 2026-01-01T00:00:00Z`,
		}},
		{"no anchor", "rules: x\ntests: [*y]\n", []string{"dir/c.yaml: not valid YAML: unknown anchor 'y' referenced"}},
		{"values", `rules: {a: b}
start: yesterday
tests:
  - {name: a, domain: d, start: 1969-01-01T00:00:00Z, steps: []}
  - &x {steps: [{descriptor: a}]}
  - name: b
    domain: d
    steps:
      - {at: 2s, descriptor: a=b, times: 0, hits: -1, refund: 3, outcome: denied, verdict: no}
      - {at: 1s, descriptor: a=b, remaining: 9007199254740992, wait: soon, reset: -1s, rule: [a]}
      - {descriptors: [a=b], hits: 3}
      - {descriptor: a=b, limit: {unit: fortnight, requests_per_unit: "1"}, groups: pt}
      - {descriptor: a=b, limit: {unit: second}, at: 99999d}
      - {descriptor: a=b, at: 36501d}
      - {descriptor: a=b, at: 3s, at: 4s}
      - {hits: 1, verdict: ok}
  - *x
`, []string{
			"dir/c.yaml:1: rules: must be text",
			`dir/c.yaml:2: start: is "yesterday", must be an instant of the years 1971 to 2100, such as 2026-01-01T00:00:00Z`,
			`dir/c.yaml:4: tests[0].start: is "1969-01-01T00:00:00Z", must be an instant of the years 1971 to 2100, such as 2026-01-01T00:00:00Z`,
			"dir/c.yaml:4: tests[0].steps: must be a list of steps, at least one",
			"dir/c.yaml:5: tests[1].name: is missing, must be the claim of the test",
			"dir/c.yaml:5: tests[1].domain: is missing, must be the name of a domain, here or for the whole file",
			`dir/c.yaml:5: tests[1].steps[0].descriptor: "a": must be key=value`,
			"dir/c.yaml:5: tests[1]: expects nothing, must have a step with an expectation: verdict, groups, rule, outcome, requests, remaining, wait or reset",
			"dir/c.yaml:9: tests[2].steps[0].times: must be a whole number from 1 to 1000000",
			"dir/c.yaml:9: tests[2].steps[0].verdict: must be one of ok, over_limit",
			"dir/c.yaml:9: tests[2].steps[0].hits: must be a whole number from 0 to 4294967295",
			"dir/c.yaml:9: tests[2].steps[0].refund: must be true or false",
			"dir/c.yaml:9: tests[2].steps[0].outcome: must be one of ok, over_limit, shadowed, unlimited, replaced, not_limited, unmatched, no_domain",
			"dir/c.yaml:10: tests[2].steps[1].at: is 1s, must be at least 2s as in the step above: time does not go back",
			"dir/c.yaml:10: tests[2].steps[1].rule: must be text",
			"dir/c.yaml:10: tests[2].steps[1].remaining: must be a whole number from 0 to 9007199254740991",
			`dir/c.yaml:10: tests[2].steps[1].wait: is "soon", must be a duration such as 250ms, 10s, 1h30m, 2d or 1w, at most 100 years`,
			`dir/c.yaml:10: tests[2].steps[1].reset: is "-1s", must be a duration such as 250ms, 10s, 1h30m, 2d or 1w, at most 100 years`,
			"dir/c.yaml:11: tests[2].steps[2].hits: stands beside descriptors, must be in one of them",
			"dir/c.yaml:12: tests[2].steps[3].groups: must be a list of the groups with room, in the order of the rules, such as [pt, od] or []",
			"dir/c.yaml:12: tests[2].steps[3].limit.requests_per_unit: must be a whole number from 0 to 4294967295",
			"dir/c.yaml:12: tests[2].steps[3].limit.unit: must be second, minute, hour, day, week, month or year",
			`dir/c.yaml:13: tests[2].steps[4].at: is "99999d", must be a duration such as 250ms, 10s, 1h30m, 2d or 1w, at most 100 years`,
			"dir/c.yaml:13: tests[2].steps[4].at: is 0s, must be at least 1s as in the step above: time does not go back",
			"dir/c.yaml:13: tests[2].steps[4].limit: must have requests_per_unit and unit",
			`dir/c.yaml:14: tests[2].steps[5].at: is "36501d", must be a duration such as 250ms, 10s, 1h30m, 2d or 1w, at most 100 years`,
			"dir/c.yaml:15: tests[2].steps[6]: at is given twice",
			"dir/c.yaml:16: tests[2].steps[7].descriptor: is missing, must be key=value[,key=value…]",
			"dir/c.yaml:17: tests[3]: is an alias, must be written out",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			must.Match(t, "mistakes", c.want, results(t, c.text))
		})
	}
}

func TestRulesAreInTheDirectoryOfTheFile(t *testing.T) {
	f, err := Read("a/b/c.yaml", []byte("rules: [../r, /s/t.yaml]\ntests: [{name: x, domain: d, steps: [{descriptor: a=b, verdict: ok}]}]\n"), parse)
	if err != nil {
		t.Fatal(err)
	}
	must.Match(t, "rules", []string{"a/r", "/s/t.yaml"}, f.Rules)
}

func TestRunEndsWithItsContext(t *testing.T) {
	f, err := Read("c.yaml", []byte("rules: r\ntests: [{name: x, domain: d, steps: [{descriptor: a=b, times: 1000000, verdict: ok}]}]\n"), parse)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, f, new(descriptors.Rules)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the context ended", err)
	}
}

func TestJUnitNamesFailuresAndMistakes(t *testing.T) {
	var out bytes.Buffer
	if err := WriteJUnit(&out, []Suite{
		{Path: "a.yaml", Results: []Result{
			{Test: &Test{Name: "good", Line: 3}},
			{Test: &Test{Name: "bad <&\x00", Line: 5}, Failures: descriptors.Errors{{File: "a.yaml", Line: 7, Text: "no ]]> \"x\""}, {File: "a.yaml", Line: 8, Text: "two"}}},
		}},
		{Path: "b.yaml", Mistakes: []string{"b.yaml:1: wrong"}},
	}); err != nil {
		t.Fatal(err)
	}
	var got junitReport
	if err := xml.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v in\n%s", err, out.Bytes())
	}
	if got.Tests != 3 || got.Failures != 1 || got.Errors != 1 || len(got.Suites) != 2 {
		t.Errorf("got %d tests, %d failures, %d errors", got.Tests, got.Failures, got.Errors)
	}
	bad := got.Suites[0].Cases[1]
	if bad.Name != "bad <&\ufffd" || len(bad.Failures) != 2 || bad.Failures[0].Text != "a.yaml:7: no ]]> \"x\"" || bad.Line != 5 {
		t.Errorf("got the case %+v", bad)
	}
	if e := got.Suites[1].Cases[0].Errors; len(e) != 1 || e[0].Message != "b.yaml:1: wrong" {
		t.Errorf("got the errors %+v", e)
	}
}

// FuzzRead: any file of cases is refused, or is read and runs.
func FuzzRead(f *testing.F) {
	f.Add("rules: r\ndomain: d\ntests: [{name: x, steps: [{at: 1s, descriptor: a=b, times: 3, wait: 1s, limit: {requests_per_unit: 1, unit: day}}]}]\n")
	f.Add("rules: [r]\ntests:\n- name: x\n  domain: d\n  start: 2026-01-01T00:00:00Z\n  steps:\n  - {descriptors: [a=b, {descriptor: c=d, hits: 0}], verdict: ok}\n")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Read("c.yaml", []byte(text), parse)
		if err != nil {
			if mistakes, ok := errors.AsType[descriptors.Errors](err); !ok || len(mistakes) == 0 || file != nil {
				t.Fatalf("got %v and the error %v of type %T", file, err, err)
			}
			return
		}
		for i := range file.Tests {
			for n := range file.Tests[i].Steps {
				file.Tests[i].Steps[n].Times = min(file.Tests[i].Steps[n].Times, 10)
			}
		}
		if _, err := Run(t.Context(), file, new(descriptors.Rules)); err != nil {
			t.Error(err)
		}
	})
}
