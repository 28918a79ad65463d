package descriptors

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const nearestRules = `domain: edge
descriptors:
  - key: path
    value: /search
    descriptors: [{key: client_id, rate_limit: {unit: second, requests_per_unit: 10}}]
  - {key: path, value: /cart, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: path, value: /admin/*, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: client, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: model, rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: from, end: to, at_most: 1m}}}
`

func TestNearestSaysWhereTheSearchEnded(t *testing.T) {
	rules := load(t, nearestRules)
	for _, c := range []struct {
		entries string
		rule    string
		entry   int
		beside  string
		why     string
	}{
		{"pathh=/cart", "", 0, "path=/admin/* path=/cart path=/search model client", `key "pathh": this level has path=/admin/*, path=/cart, path=/search, model, client`},
		{"Client_ID=c", "", 0, "client model path=/admin/* path=/cart path=/search", `key "Client_ID": this level has client, model, path=/admin/*, path=/cart, path=/search`},
		{"path=/Serch", "", 0, "path=/search path=/cart path=/admin/*", `value "/Serch" of key "path": this level has path=/search, path=/cart, path=/admin/*`},
		{"path=/search,client-id=c", "path=/search", 1, "client_id", `key "client-id": this level has client_id`},
		{"path=/search", "path=/search", 1, "client_id", `no entry follows path=/search, which has no limit: this level has client_id`},
		{"client_id=c,path=/search", "", 0, "client model path=/admin/* path=/cart path=/search", `key "client_id": this level has client, model, path=/admin/*, path=/cart, path=/search; entry 1 would match here, so the entries may have another order than the rules`},
		{"client=c,more=x", "client", 1, "", `key "more": this level has no entries`},
		{"model=a", "model", 1, "from to", `an entry is missing that names a holder: from or to`},
		{"client=c", "client", 1, "", `no limit is here`},
	} {
		var entries []Entry
		for text := range strings.SplitSeq(c.entries, ",") {
			key, value, _ := strings.Cut(text, "=")
			entries = append(entries, Entry{key, value})
		}
		m := rules.Domain("edge").Nearest(entries)
		rule := ""
		if m.Rule != nil {
			rule = m.Rule.Path
		}
		if beside := strings.Join(m.Beside, " "); rule != c.rule || m.Entry != c.entry || beside != c.beside || m.More || m.String() != c.why {
			t.Errorf("%s: got rule %q, entry %d, beside %q, more %t\n %s\nwant %q, %d, %q, false\n %s", c.entries, rule, m.Entry, beside, m.More, m, c.rule, c.entry, c.beside, c.why)
		}
	}
	if names, more := rules.NearestDomains("egde"); !cmp.Equal(names, []string{"edge"}) || more {
		t.Errorf("NearestDomains: got %q, %t; want edge alone", names, more)
	}
}

// Among many thousand values the likely slips are still found, and nothing grows with the number of
// rules.
func TestNearestAmongManyValuesIsBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: edge\ndescriptors:\n")
	for i := range 5000 {
		fmt.Fprintf(&b, "- {key: path, value: /p%d, rate_limit: {unit: second, requests_per_unit: 1}}\n", i)
	}
	rules := load(t, b.String())
	for _, value := range []string{"/P4321", "/p4321/", "/p4321?q=1", " /p4321"} {
		m := rules.Domain("edge").Nearest([]Entry{{"path", value}})
		if len(m.Beside) != MaxBeside || m.Beside[0] != "path=/p4321" || !m.More {
			t.Errorf("%q: got %q, more %t; want path=/p4321 first, %d in all, and more", value, m.Beside, m.More, MaxBeside)
		}
	}
	long := strings.Repeat("ü", 1000)
	rules = load(t, "domain: "+long+"\ndescriptors: [{key: k, value: "+long+", rate_limit: {unit: second, requests_per_unit: 1}}]\n")
	m := rules.Domain(long).Nearest([]Entry{{"k", strings.Repeat("x", 1<<20)}})
	if text := m.String(); len(text) > 1000 || !strings.HasSuffix(text, "ü…") {
		t.Errorf("got %d bytes %.300q; want a short text that ends in an ellipsis", len(text), text)
	}
}
