package descriptors

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
)

// benchmarkRules is rules of which one matches entries that are depth deep.
func benchmarkRules(tb testing.TB, rules, depth int) (*Domain, []Entry) {
	tb.Helper()
	var b strings.Builder
	b.WriteString("domain: edge\ndescriptors:\n")
	indent := ""
	var entries []Entry
	for level := range depth {
		for i := range rules / depth {
			fmt.Fprintf(&b, "%s- {key: key%d, value: value%d, rate_limit: {unit: second, requests_per_unit: 1}}\n", indent, level, i)
		}
		key, value := fmt.Sprint("key", level), "any of the others"
		fmt.Fprintf(&b, "%s- key: %s\n%s  rate_limit: {unit: second, requests_per_unit: 1}\n", indent, key, indent)
		if level < depth-1 {
			fmt.Fprintf(&b, "%s  descriptors:\n", indent)
			indent += "  "
		}
		entries = append(entries, Entry{key, value})
	}
	return load(tb, b.String()).Domain("edge"), entries
}

func TestMatchAndKeysDoNotAllocate(t *testing.T) {
	rules := load(t, `
domain: edge
descriptors:
  - key: path
    value: /a/*/c
    share_threshold: true
    descriptors:
      - key: user
        detailed_metric: true
        rate_limit: {unit: second, requests_per_unit: 1}
`)
	entries := []Entry{{"path", "/a/b/c"}, {"user", "ann"}}
	buffer := make([]byte, 0, 256)
	got := testing.AllocsPerRun(100, func() {
		r := rules.Domain("edge").Match(entries)
		buffer = r.AppendKey(buffer[:0], r.Domain, entries, &r.Limits[0])
		buffer = AppendKey(buffer[:0], r.Domain, entries, &r.Limits[0])
		buffer = r.AppendMetricValue(buffer[:0], entries)
	})
	if got != 0 {
		t.Errorf("got %v allocations, want 0", got)
	}
}

func BenchmarkMatch(b *testing.B) {
	for _, depth := range []int{1, 2, 4} {
		for _, rules := range []int{10, 10_000} {
			b.Run(fmt.Sprintf("depth=%d/rules=%d", depth, rules), func(b *testing.B) {
				domain, entries := benchmarkRules(b, rules, depth)
				b.ReportAllocs()
				for b.Loop() {
					if domain.Match(entries) == nil {
						b.Fatal("no rule matched")
					}
				}
			})
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	var doc strings.Builder
	doc.WriteString("domain: edge\ndescriptors:\n")
	for i := range 10_000 {
		fmt.Fprintf(&doc, "- {key: key, value: value%d, rate_limit: {unit: second, requests_per_unit: 1}}\n", i)
	}
	data := []byte(doc.String())
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		rules := must.First(Load([]Source{{Data: data}}, Options{}))(b)
		_ = rules.Hash() // as a reload does
	}
}

// BenchmarkMatchOfForms is 10,000 rules of keys that have 20 descriptors each: texts with `*`, or
// all forms of match in turn. The entries lead to each form equally often, and past the others.
func BenchmarkMatchOfForms(b *testing.B) {
	const keys, each = 500, 20
	forms := [...]struct{ plain, mixed, value string }{
		{"value: \"/a%d/*\"", "match: {prefix: /a%d/}", "/a%d/x"},
		{"value: \"/b%d/*/x\"", "match: {path: \"/b%d/{id}/x\"}", "/b%d/7/x"},
		{"value: \"/c%d/*\"", "match: {regex: \"/c%d/[0-9]+\"}", "/c%d/12"},
		{"value: \"10.%d.*\"", "match: {cidr: [10.%d.0.0/16]}", "10.%d.1.2"},
		{"value: \"d%d*\"", "match: {any_of: [d%d, {prefix: e%[1]d}]}", "d%d"},
	}
	for _, mixed := range []bool{false, true} {
		b.Run(fmt.Sprintf("mixed=%t", mixed), func(b *testing.B) {
			var doc strings.Builder
			doc.WriteString("domain: edge\ndescriptors:\n")
			var all [][]Entry
			for k := range keys {
				for i := range each {
					f := forms[i%len(forms)]
					pattern := f.plain
					if mixed {
						pattern = f.mixed
					}
					fmt.Fprintf(&doc, "- {key: k%d, "+pattern+", rate_limit: {unit: second, requests_per_unit: 1}}\n", k, i)
					all = append(all, []Entry{{fmt.Sprint("k", k), fmt.Sprintf(f.value, i)}})
				}
			}
			domain := load(b, doc.String()).Domain("edge")
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if domain.Match(all[i*7919%len(all)]) == nil {
					b.Fatal("no rule matched")
				}
			}
		})
	}
}

// BenchmarkLoadOverlay loads 100,000 limits of 1000 routes without an overlay, and with as many
// entries as an overlay may have: one for each route.
func BenchmarkLoadOverlay(b *testing.B) {
	const routes, each = maxOverlay, 100
	var doc, overlay strings.Builder
	doc.WriteString("domain: default/eg/http\ndescriptors:\n")
	overlay.WriteString("overlay:\n")
	for route := range routes {
		fmt.Fprintf(&doc, "- key: httproute/default/shop%d/rule/0\n  descriptors:\n", route)
		fmt.Fprintf(&overlay, "- {for: {domain: \"default/*\", path: [\"httproute/default/shop%d/*\", \"rule-*\"]}, set: {algorithm: token_bucket}}\n", route)
		for i := range each {
			fmt.Fprintf(&doc, "  - {key: rule-%d-match-0, rate_limit: {unit: hour, requests_per_unit: 1}}\n", i)
		}
	}
	for _, sources := range [][]Source{{{Data: []byte(doc.String())}}, {{Data: []byte(overlay.String())}, {Data: []byte(doc.String())}}} {
		b.Run(fmt.Sprintf("overlay=%t", len(sources) > 1), func(b *testing.B) {
			for b.Loop() {
				if _, warnings, err := Load(sources, Options{}); err != nil || len(warnings) > 0 {
					b.Fatal(warnings, err)
				}
			}
		})
	}
}
