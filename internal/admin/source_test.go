package admin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/admin/page"
)

// BenchmarkPageReads is one reading of the counters for the admin page: every five seconds, or
// every second while somebody looks.
func BenchmarkPageReads(b *testing.B) {
	for _, rules := range []int{10, 10_000} {
		b.Run(fmt.Sprint(rules), func(b *testing.B) {
			var text strings.Builder
			text.WriteString("domain: edge\ndescriptors:\n")
			for i := range rules {
				fmt.Fprintf(&text, "- {key: user, value: u%d, rate_limit: {unit: hour, requests_per_unit: 1}}\n", i)
			}
			f := start(b, text.String(), nil)
			s := &service{Server: f.admin}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Status(b.Context(), nil); err != nil {
					b.Fatal(err)
				}
				for r := range f.admin.pageRules() {
					if r.Tally != (page.Tally{}) {
						b.Fatal("a rule has counts")
					}
				}
			}
		})
	}
}

func TestThePageSaysWhatARuleIs(t *testing.T) {
	f := start(t, `domain: edge
descriptors:
- {key: a, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: token_bucket, burst: 9}, shadow_mode: true}
- {key: b, rate_limit: {unlimited: true}}
- {key: c, descriptors: [{key: d, rate_limit: {unit: second, requests_per_unit: 1}}]}
`, nil)
	var got []string
	for r := range f.admin.pageRules() {
		a := r.About()
		got = append(got, fmt.Sprintf("%s %s %s:%d %v %v", a.Domain, a.Path, a.File, a.Line, a.Limits, a.Notes))
	}
	want := "edge a rules.yaml:3 [5 per 1m, token_bucket, burst 9] [shadow]\nedge b rules.yaml:4 [] [unlimited]\n" +
		"edge c,d rules.yaml:5 [1 per 1s, fixed_window, denied hits count too] []"
	if strings.Join(got, "\n") != want {
		t.Errorf("rules:\n%s\nwant:\n%s", strings.Join(got, "\n"), want)
	}
}
