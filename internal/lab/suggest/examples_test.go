package suggest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// examples returns the rule documents in the documentation and in deploy, by file and number.
func examples(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	pages := must.Get(filepath.Glob("../../../docs/*.md"))(t)
	for _, page := range append(pages, "../../../README.md") {
		data := must.Get(os.ReadFile(page))(t)
		for _, block := range regexp.MustCompile("(?s)\n```yaml\n(domain:.*?)```").FindAllStringSubmatch(string(data), -1) {
			all[page+" "+block[1]] = block[1]
		}
	}
	files := must.Get(filepath.Glob("../../../deploy/rules/*.yaml"))(t)
	for _, file := range append(files, "../../../deploy/llm/rules/llm.yaml", "../../../deploy/concurrency/rules/concurrency.yaml") {
		data := must.Get(os.ReadFile(file))(t)
		all[file] = string(data)
	}
	return all
}

// meets returns a record that meets the rule; nil if other rules stand before the rule.
func meets(rules *descriptors.Rules, rule *descriptors.Rule, hits uint64) *records.Record {
	d := limiter.Descriptor{Hits: hits}
	for _, l := range rule.Levels {
		value := strings.ReplaceAll(l.Value, "*", "x")
		if value == "" {
			value = "x"
		}
		d.Entries = append(d.Entries, limiter.Entry{Key: l.Key, Value: value})
	}
	if rule.Begin != "" {
		d.Entries = append(d.Entries, limiter.Entry{Key: rule.Begin, Value: "r1"})
	}
	if len(rule.Levels) == 0 {
		d.Entries = []limiter.Entry{{Key: "no rule has that key", Value: "x"}}
	}
	domain := rules.Domain(rule.Domain)
	got := domain.Match(d.Entries)
	if got == nil {
		got = domain.Default
	}
	if got != rule {
		return nil
	}
	return &records.Record{At: start, Request: limiter.Request{Domain: rule.Domain, Descriptors: []limiter.Descriptor{d}}}
}

// properties returns the parts of a rule that a suggestion must not change.
func properties(rule *descriptors.Rule) descriptors.Rule {
	p := *rule
	p.ID, p.File, p.Line = 0, "", 0
	p.Replaces, p.Limits = slices.Sorted(slices.Values(p.Replaces)), nil
	for _, l := range rule.Limits {
		p.Limits = append(p.Limits, descriptors.Limit{
			Limit: algorithms.Limit{Algorithm: l.Algorithm, Period: l.Period},
			Name:  l.Name, CountRejected: l.CountRejected, OnStoreError: l.OnStoreError, Sharing: l.Sharing, Unit: l.Unit, Multiplier: l.Multiplier, AtMost: l.AtMost,
		})
		if rule.Holds() {
			p.Limits[len(p.Limits)-1].Requests = l.Requests // stays
		}
	}
	return p
}

// The suggestion for each example of the documentation loads without a warning, and each rule that
// requests meet keeps its properties.
func TestARuleKeepsAllItsPropertiesButTheNumbers(t *testing.T) {
	table := func(name string) (*descriptors.Table, error) {
		return descriptors.NewTable(name, []byte("nobody,1\n")), nil
	}
	compared, documents := 0, 0
	for name, text := range examples(t) {
		rules, warnings, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(text), Table: table}}, descriptors.Options{})
		if err != nil || len(warnings) > 0 {
			continue // an example of a mistake
		}
		documents++
		var traffic []*records.Record
		for _, rule := range rules.All() {
			if r := meets(rules, rule, 3); r != nil {
				traffic = append(traffic, r)
			}
		}
		if len(traffic) == 0 {
			continue
		}
		r, suggested := suggestions(t, Options{Rules: rules}, Goal{Keys: 1, Unit: descriptors.Minute}, append(traffic, late(1e6*time.Hour)))
		var sources []descriptors.Source
		for _, s := range suggested {
			sources = append(sources, descriptors.Source{Name: "suggested", Data: []byte(s), Table: r.Table})
		}
		again, warnings, err := descriptors.Load(sources, descriptors.Options{})
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s\n%v, %v in\n%s", name, err, warnings, strings.Join(suggested, "\n---\n"))
			continue
		}
		for _, one := range traffic {
			entries := one.Request.Descriptors[0].Entries
			before, after := rules.Domain(one.Request.Domain), again.Domain(one.Request.Domain)
			was, is := before.Match(entries), after.Match(entries)
			if was == nil {
				was, is = before.Default, after.Default
			}
			if was == nil || len(was.Limits) == 0 && !was.Unlimited {
				continue
			}
			if is == nil {
				t.Errorf("%s\n%v: no rule in\n%s", name, entries, strings.Join(suggested, "\n---\n"))
				continue
			}
			compared++
			a, b := properties(was), properties(is)
			var kept []string
			for _, name := range a.Replaces { // but for names that no limit of the document has
				if slices.Contains(b.Replaces, name) || !strings.Contains(strings.Join(suggested, ""), "# left out: replaces \""+name+"\"") {
					kept = append(kept, name)
				}
			}
			a.Replaces = kept
			if diff := cmp.Diff(a, b, cmpopts.IgnoreUnexported(descriptors.Rule{}, descriptors.Limit{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s\n%v: (-was +is)\n%s\n%s", name, entries, diff, strings.Join(suggested, "\n---\n"))
			}
		}
	}
	if documents < 20 || compared < 50 {
		t.Errorf("only %d examples with %d rules", documents, compared)
	}
}
