package descriptors

import (
	"fmt"
	"testing"
)

func TestEntriesWithoutAnOrderGetTheOrderOfTheirRule(t *testing.T) {
	t.Parallel()
	rules, _, err := Load([]Source{{Name: "rules", Data: []byte(`
domain: d
descriptors:
  - key: class
    value: tenant
    descriptors:
      - key: tenant
        rate_limit: {requests_per_unit: 1, unit: second}
  - key: a
    descriptors:
      - {key: b, rate_limit: {requests_per_unit: 1, unit: second}}
  - key: b
    descriptors:
      - {key: a, rate_limit: {requests_per_unit: 2, unit: second}}
`)}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := rules.Domain("d")
	for _, c := range []struct {
		entries []Entry
		orders  int
		want    string
	}{
		{[]Entry{{"tenant", "x"}, {"class", "tenant"}}, 1, "[{class tenant} {tenant x}]"},
		{[]Entry{{"class", "tenant"}, {"tenant", "x"}}, 1, "[{class tenant} {tenant x}]"},
		{[]Entry{{"class", "tenant"}}, 0, ""}, // a node that only leads further
		{[]Entry{{"tenant", "x"}, {"class", "tenant"}, {"more", ""}}, 0, ""},
		{[]Entry{{"a", "1"}, {"b", "1"}}, 2, ""},
	} {
		if orders := d.Order(c.entries); orders != c.orders {
			t.Errorf("%v: %d orders, want %d", c.entries, orders, c.orders)
		} else if got := fmt.Sprint(c.entries); orders == 1 && got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

func TestASearchForAnOrderIsBounded(t *testing.T) {
	t.Parallel()
	document := "domain: d\ndescriptors:\n"
	indent := ""
	for range 9 { // each level has all keys, and the tree has no rule at its end
		for _, key := range "abcdefghi" {
			document += fmt.Sprintf("%s  - key: %c\n", indent, key)
		}
		document += indent + "    descriptors:\n"
		indent += "    "
	}
	document += indent + "  - {key: z, rate_limit: {requests_per_unit: 1, unit: second}}\n"
	rules, _, err := Load([]Source{{Name: "rules", Data: []byte(document)}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var entries []Entry
	for range 2000 {
		entries = append(entries, Entry{"i", "v"})
	}
	s := orderSearch{entries: entries, found: make([]Entry, len(entries))}
	if s.from(&rules.Domain("d").root, 0); s.steps > maxOrderSteps+len(entries) {
		t.Errorf("the search took %d steps", s.steps)
	}
}
