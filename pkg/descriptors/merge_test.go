package descriptors

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sources makes a source of each document, a.yaml, b.yaml and so on.
func sources(documents ...string) []Source {
	var all []Source
	for i, d := range documents {
		all = append(all, Source{Name: string(rune('a'+i)) + ".yaml", Data: []byte(d)})
	}
	return all
}

func TestMergedDocumentsAreOneDomainInTheOrderOfTheSources(t *testing.T) {
	all := sources(
		"domain: d\ndescriptors:\n- {key: k, value: foo*, rate_limit: {unit: second, requests_per_unit: 1}}\n"+
			"default: {unit: second, requests_per_unit: 9}\n",
		"domain: other\ndescriptors:\n- {key: k}\n",
		"domain: d\ndefaults: {algorithm: token_bucket}\ndescriptors:\n"+
			"- {key: k, value: foob*, rate_limit: {unit: second, requests_per_unit: 2, replaces: [{name: of_d}]}}\n"+
			"- {key: k, value: bar, rate_limit: {unit: second, requests_per_unit: 3}}\n",
		"domain: d\ndescriptors:\n- {key: l, rate_limit: {unit: second, requests_per_unit: 4, name: of_d}}\n",
	)
	rules, warnings, err := Load(all, Options{MergeDomains: true})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`c.yaml:4: warning: descriptors[0].value: is reached by its own text only: every other value that it matches goes to "foo*" at a.yaml:3, which comes first`}
	var got []string
	for _, w := range warnings {
		got = append(got, w.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if n := len(rules.Domains()); n != 2 {
		t.Fatalf("there are %d domains, want 2", n)
	}
	d := rules.Domain("d")
	if d.File != "a.yaml" || d.Line != 1 {
		t.Errorf("the domain is at %s:%d, want at that of its first document", d.File, d.Line)
	}
	for _, test := range []struct {
		key, value string
		file       string
		requests   uint32
		algorithm  string
	}{
		{"k", "foobar", "a.yaml", 1, "fixed_window"},
		{"k", "bar", "c.yaml", 3, "token_bucket"},
		{"l", "x", "d.yaml", 4, "fixed_window"},
	} {
		r := d.Match([]Entry{{test.key, test.value}})
		if r == nil || r.File != test.file || r.Limits[0].Requests != test.requests || r.Limits[0].Algorithm.String() != test.algorithm {
			t.Errorf("%s=%s meets %+v, want %+v", test.key, test.value, r, test)
		}
	}
	ids := rules.All()
	for i, r := range ids {
		if r.ID != i {
			t.Errorf("rule %d has the ID %d", i, r.ID)
		}
	}
	if last := d.rules[len(d.rules)-1]; last != d.Default || d.Default.Limits[0].Requests != 9 {
		t.Errorf("the last rule is %v, want the default", last)
	}
}

func TestMergedDocumentsMustNotContradictEachOther(t *testing.T) {
	all := sources(
		"domain: d\ndescriptors:\n- {key: k, value: v}\n- {key: l}\ndefault: {unit: second, requests_per_unit: 9}\n",
		"domain: d\ndescriptors:\n- {key: k, value: v, descriptors: [{key: m}]}\n- {key: l}\ndefault: {unit: second, requests_per_unit: 9}\n",
	)
	_, _, err := Load(all, Options{MergeDomains: true})
	want := `b.yaml:3: descriptors[0]: "k=v" is given twice, first at a.yaml:3: descriptors side by side must differ in key or value
b.yaml:4: descriptors[1]: "l" is given twice, first at a.yaml:4: descriptors side by side must differ in key or value
b.yaml:5: default: the domain has a default already, at a.yaml:5: it can have one`
	if err == nil || err.Error() != want {
		t.Errorf("error:\n%v\nwant:\n%s", err, want)
	}
	if _, _, err := Load(all, Options{}); err == nil {
		t.Error("two documents of a domain load without MergeDomains")
	}
}

func TestANameMayBeReplacedThatNoDocumentOfTheDomainHas(t *testing.T) {
	all := sources(
		"domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: second, requests_per_unit: 1, replaces: [{name: none}]}}\n",
		"domain: e\ndescriptors:\n- {key: k, rate_limit: {unit: second, requests_per_unit: 1, name: none}}\n",
	)
	_, warnings, err := Load(all, Options{MergeDomains: true})
	if err != nil || len(warnings) != 1 || warnings[0].File != "a.yaml" {
		t.Errorf("warnings %v, error %v; want one of a.yaml", warnings, err)
	}
}

func TestDroppedHitsAreTheDefaultOfFixedWindowsWhenAskedFor(t *testing.T) {
	const document = `
domain: d
descriptors:
- {key: a, rate_limit: {unit: second, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: second, requests_per_unit: 1, count_rejected: true}}
- {key: c, rate_limit: {unit: second, requests_per_unit: 1, algorithm: token_bucket}}
`
	for _, drop := range []bool{false, true} {
		rules, _, err := Load(sources(document), Options{DropRejected: drop})
		if err != nil {
			t.Fatal(err)
		}
		var got []bool
		for _, r := range rules.All() {
			got = append(got, r.Limits[0].CountRejected)
		}
		if diff := cmp.Diff([]bool{!drop, true, false}, got); diff != "" {
			t.Errorf("DropRejected %t: denied hits count (-want +got):\n%s", drop, diff)
		}
	}
}

func TestMetricLevelsAreTheTextOfAMetricInParts(t *testing.T) {
	rules := load(t, `
domain: d
descriptors:
- key: route
  value: a.b
  descriptors:
  - key: path
    value: files/*
    share_threshold: true
    descriptors:
    - key: user
      value_to_metric: true
      rate_limit: {unit: second, requests_per_unit: 1}
default: {unit: second, requests_per_unit: 1}
`)
	r := rules.All()[2]
	entries := []Entry{{"route", "a.b"}, {"path", "files/x"}, {"user", "u.1"}}
	if diff := cmp.Diff([]string{"route_a.b", "path_files/*", "user_u.1"}, r.MetricLevels(entries)); diff != "" {
		t.Errorf("levels of a descriptor (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"route_a.b", "path_files/*", "user"}, r.MetricLevels(nil)); diff != "" {
		t.Errorf("levels as configured (-want +got):\n%s", diff)
	}
	if got := rules.All()[3].MetricLevels(nil); len(got) != 0 {
		t.Errorf("levels of a default: %q, want none", got)
	}
}
