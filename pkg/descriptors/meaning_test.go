package descriptors

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
)

func hashOf(t *testing.T, o Options, documents ...string) string {
	t.Helper()
	var sources []Source
	for i, d := range documents {
		sources = append(sources, Source{Name: string(rune('a'+i)) + ".yaml", Data: []byte(d)})
	}
	rules := must.First(Load(sources, o))(t)
	return rules.Hash()
}

const hashed = "domain: edge\ndescriptors:\n- {key: a, value: x*, rate_limit: {unit: second, requests_per_unit: 1}}\n- {key: a, value: \"*y\"}\n- {key: b}\n"

func TestHashDoesNotDependOnFilesAndTheirOrder(t *testing.T) {
	const other = "domain: other\ndefault: {unit: day, requests_per_unit: 5}\n"
	want := hashOf(t, Options{}, hashed, other)
	if len(want) != 16 || strings.Trim(want, "0123456789abcdef") != "" {
		t.Errorf("hash: got %q, want 16 hexadecimal digits", want)
	}
	for name, got := range map[string]string{
		"files in another order": hashOf(t, Options{}, other, hashed),
		"comments":               hashOf(t, Options{}, "# comment\n\n"+hashed, other),
		"descriptors in another order": hashOf(t, Options{},
			strings.Replace(hashed, "- {key: b}\n", "", 1)+"- {key: b}\n", other),
		"another form of the same limit": hashOf(t, Options{}, strings.Replace(hashed, "unit: second", "period: 1s", 1), other),
		"a domain in two files": hashOf(t, Options{MergeDomains: true}, strings.Replace(hashed, "- {key: b}\n", "", 1), other,
			"domain: edge\ndescriptors: [{key: b}]\n"),
	} {
		if got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func TestHashChangesWithTheMeaning(t *testing.T) {
	seen := map[string]string{hashOf(t, Options{}): "no rules", hashOf(t, Options{}, hashed): "the document"}
	for name, document := range map[string]string{
		"requests":         strings.Replace(hashed, "unit: 1", "unit: 2", 1),
		"shadow":           strings.Replace(hashed, "key: a,", "key: a, shadow_mode: true,", 1),
		"value_to_metric":  strings.Replace(hashed, "key: a,", "key: a, value_to_metric: true,", 1),
		"count_rejected":   strings.Replace(hashed, "unit: 1", "unit: 1, count_rejected: false", 1),
		"metadata":         strings.Replace(hashed, "key: b", "key: b, metadata: {a: 1}", 1),
		"hold":             strings.Replace(hashed, "unit: 1", "unit: 1, count_rejected: true, hold: {begin: r, end: d, at_most: 1s}", 1),
		"begin":            strings.Replace(hashed, "unit: 1", "unit: 1, count_rejected: true, hold: {begin: q, end: d, at_most: 1s}", 1),
		"at_most":          strings.Replace(hashed, "unit: 1", "unit: 1, count_rejected: true, hold: {begin: r, end: d, at_most: 2s}", 1),
		"schedule":         strings.Replace(hashed, "unit: 1", "unit: 1, schedule: [{days: mon, factor: 2}]", 1),
		"schedule_days":    strings.Replace(hashed, "unit: 1", "unit: 1, schedule: [{days: tue, factor: 2}]", 1),
		"schedule_hours":   strings.Replace(hashed, "unit: 1", "unit: 1, schedule: [{days: mon, hours: 01:00-02:00, factor: 2}]", 1),
		"schedule_factor":  strings.Replace(hashed, "unit: 1", "unit: 1, schedule: [{days: mon, factor: 3}]", 1),
		"schedule_number":  strings.Replace(hashed, "unit: 1", "unit: 1, schedule: [{days: mon, requests_per_unit: 3}]", 1),
		"schedule_zone":    strings.Replace(hashed, "unit: 1", "unit: 1, schedule: [{days: mon, zone: Europe/Berlin, factor: 2}]", 1),
		"schedule_from":    strings.Replace(hashed, "unit: 1", "unit: 1, schedule: [{from: 2026-12-01, days: mon, factor: 2}]", 1),
		"schedule_until":   strings.Replace(hashed, "unit: 1", "unit: 1, schedule: [{until: 2026-12-01, days: mon, factor: 2}]", 1),
		"schedule_order":   strings.Replace(hashed, "unit: 1", "unit: 1, schedule: [{days: mon, factor: 2}, {days: tue, factor: 3}]", 1),
		"schedule_swapped": strings.Replace(hashed, "unit: 1", "unit: 1, schedule: [{days: tue, factor: 3}, {days: mon, factor: 2}]", 1),
		"domain":           strings.Replace(hashed, "edge", "Edge", 1),
		"key":              strings.Replace(hashed, "key: b", "key: c", 1),
		"order":            strings.Replace(strings.Replace(hashed, "\"*y\"", "x", 1), "x*", "\"*y\"", 1),
		"wildcard_order":   "domain: edge\ndescriptors:\n- {key: a, value: \"*y\"}\n- {key: a, value: x*, rate_limit: {unit: second, requests_per_unit: 1}}\n- {key: b}\n",
		"without rules":    "domain: edge\n",
		"node without use": strings.Replace(hashed, "- {key: b}\n", "", 1),
	} {
		got := hashOf(t, Options{}, document)
		if other, ok := seen[got]; ok {
			t.Errorf("%s and %s: got the same hash %s", name, other, got)
		}
		seen[got] = name
	}
}

// A new field of a rule must be part of its meaning.
func TestEachFieldIsPartOfTheMeaning(t *testing.T) {
	rule := Rule{Limits: make([]Limit, 1), Levels: make([]Level, 1)}
	seen := map[string]string{string(rule.appendMeaning(nil)): "a rule of zeros"}
	var change func(name string, v reflect.Value)
	change = func(name string, v reflect.Value) {
		old := reflect.ValueOf(v.Interface())
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				f := v.Type().Field(i)
				place := name == "Rule" && slices.Contains([]string{"ID", "File", "Line", "Priced", "Divided"}, f.Name) || f.Name == "TableLine"
				if f.IsExported() && !place {
					change(name+"."+f.Name, v.Field(i))
				}
			}
			return
		case reflect.Slice:
			if v.Len() > 0 {
				change(name+"[0]", v.Index(0))
			}
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
		case reflect.Array:
			change(name+"[0]", v.Index(0))
			return
		case reflect.Map:
			v.Set(reflect.ValueOf(map[string]any{}))
		case reflect.Bool:
			v.SetBool(true)
		case reflect.String:
			v.SetString("x")
		case reflect.Pointer:
			switch v.Type() {
			case reflect.TypeFor[*Matcher]():
				v.Set(reflect.ValueOf(newPrefix("/api/")))
			case reflect.TypeFor[*Escalate]():
				v.Set(reflect.ValueOf(new(Escalate)))
			default:
				v.Set(reflect.ValueOf(must.Get(algorithms.NewCalendar(algorithms.CalendarSpec{Unit: algorithms.CalendarDay, Count: 1}))(t)))
			}
		default:
			v.Set(reflect.ValueOf(1).Convert(v.Type()))
		}
		text := string(rule.appendMeaning(nil))
		if other, ok := seen[text]; ok {
			t.Errorf("%s has the meaning of %s", name, other)
		}
		seen[text] = name
		v.Set(old)
	}
	change("Rule", reflect.ValueOf(&rule).Elem())
	if len(seen) < 20 {
		t.Errorf("got %d fields, want at least 20", len(seen))
	}
}

func TestHashAllocatesForAllRulesTogether(t *testing.T) {
	domain, _ := benchmarkRules(t, 1000, 2)
	rules := &Rules{all: domain.rules, domains: map[string]*Domain{domain.Name: domain}}
	if got := testing.AllocsPerRun(10, rules.digest); got > 100 {
		t.Errorf("got %v allocations for %d rules, want at most 100", got, rules.Len())
	}
}

func TestCountLeavesOutNodesWithoutLimits(t *testing.T) {
	rules := load(t, `
domain: edge
descriptors:
  - key: path
    value: /search
    descriptors:
      - {key: client, rate_limit: {unit: second, requests_per_unit: 1}}
      - {key: partner, rate_limit: {unlimited: true}}
  - key: known
default: {unit: second, requests_per_unit: 5}
`)
	if rules.Count() != 3 || rules.Len() != 5 {
		t.Errorf("got %d rules of %d nodes, want 3 of 5", rules.Count(), rules.Len())
	}
}

func TestOnlyWildcardsWhoseOrderMattersChange(t *testing.T) {
	const (
		limit  = "rate_limit: {unit: second, requests_per_unit: 1}"
		first  = "- {key: a, value: x*, " + limit + "}\n"
		second = "- {key: a, value: \"*y\", descriptors: [{key: b, " + limit + "}]}\n"
		third  = "- {key: a, value: z*, " + limit + "}\n"
		header = "domain: edge\ndescriptors:\n"
	)
	load := func(descriptors ...string) *Rules {
		t.Helper()
		return load(t, header+strings.Join(descriptors, ""))
	}
	older := load(first, second, third)
	for _, test := range []struct {
		name  string
		newer *Rules
		want  []Change
	}{
		{"a wildcard above", load("- {key: a, value: \"*\", "+limit+"}\n", first, second, third), []Change{{Domain: "edge", Added: []string{"a=*"}}}},
		{"a rule without limits above", load("- {key: a, value: q*}\n", first, second, third), nil},
		{"a wildcard between", load(first, "- {key: a, value: q*, "+limit+"}\n", second, third), []Change{{Domain: "edge", Added: []string{"a=q*"}}}},
		{"without the first", load(second, third), []Change{{Domain: "edge", Removed: []string{"a=x*"}}}},
		{"two that may match one value", load(second, first, third), []Change{{Domain: "edge", Changed: []string{"a=*y,b", "a=x*"}}}},
		{"the last one first", load(third, first, second), []Change{{Domain: "edge", Changed: []string{"a=*y,b", "a=z*"}}}},
		{"the last two", load(first, third, second), []Change{{Domain: "edge", Changed: []string{"a=*y,b", "a=z*"}}}},
		{"another limit", load(first, second, strings.Replace(third, "unit: 1", "unit: 2", 1)), []Change{{Domain: "edge", Changed: []string{"a=z*"}}}},
	} {
		must.Match(t, test.name, test.want, test.newer.Since(older))
	}
	apart := load(first, third)
	if got := load(third, first).Since(apart); got != nil {
		t.Errorf("no value matches both patterns: got %v, want no change", got)
	}
	if apart.Hash() == load(third, first).Hash() {
		t.Error("another order of wildcards: got the same hash")
	}
}

func TestTheOrderOfRulesWithOnePathIsNoChange(t *testing.T) {
	const (
		header = "domain: edge\ndescriptors:\n"
		first  = "- {key: a=b, value: c=d, rate_limit: {unit: second, requests_per_unit: 1}}\n"
		second = "- {key: a, value: b=c=d, rate_limit: {unit: second, requests_per_unit: 2}}\n"
		third  = "- {key: a=b=c, value: d, rate_limit: {unit: second, requests_per_unit: 3}}\n"
	)
	older := load(t, header+first+second+third)
	for _, text := range []string{second + first + third, third + second + first, first + third + second, second + third + first} {
		if got := load(t, header+text).Since(older); got != nil {
			t.Errorf("another order: got %v, want no change", got)
		}
	}
	want := []Change{{Domain: "edge", Changed: []string{"a=b=c=d"}}}
	must.Match(t, "without the second rule", want, load(t, header+third+first).Since(older))
}

func TestADomainWithoutRulesIsAChange(t *testing.T) {
	load := func(documents ...string) *Rules {
		t.Helper()
		var sources []Source
		for i, d := range documents {
			sources = append(sources, Source{Name: string(rune('a'+i)) + ".yaml", Data: []byte(d)})
		}
		rules := must.First(Load(sources, Options{}))(t)
		return rules
	}
	with, without := load(hashed, "domain: empty\n"), load(hashed)
	must.Match(t, "a new domain", []Change{{Domain: "empty", Added: []string{noRules}}}, with.Since(without))
	must.Match(t, "a domain that is gone", []Change{{Domain: "empty", Removed: []string{noRules}}}, without.Since(with))
	if got := with.Since(with); got != nil {
		t.Errorf("the same rules: got %v, want no change", got)
	}
}
