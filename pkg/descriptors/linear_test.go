package descriptors

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// many returns a document with a descriptor for each number, of one key. The values have a pattern.
func many(pattern string, values ...int) []Source {
	var b strings.Builder
	b.WriteString("domain: edge\ndescriptors:\n")
	for _, n := range values {
		fmt.Fprintf(&b, "- {key: a, value: %q, rate_limit: {unit: second, requests_per_unit: 5}}\n", fmt.Sprintf(pattern, n))
	}
	return []Source{{Name: "rules.yaml", Data: []byte(b.String())}}
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// A text for a warning that nobody gets took seconds for some thousand wildcards.
func TestAWildcardTakesAsMuchWorkToLoadAsAValue(t *testing.T) {
	const n = 3 * maxCovers
	allocations := func(pattern string) float64 {
		sources := many(pattern, upTo(n)...)
		return testing.AllocsPerRun(1, func() {
			if _, warnings, err := Load(sources, Options{}); err != nil || len(warnings) > 0 {
				t.Fatalf("%v, %v", warnings, err)
			}
		})
	}
	values, wildcards := allocations("v%d"), allocations("*v%d")
	if wildcards > 1.5*values {
		t.Errorf("%v allocations for each wildcard, %v for each value", wildcards/n, values/n)
	}
}

func TestADescriptorHasAtMostFortyLimits(t *testing.T) {
	limits := func(n int) string {
		var b strings.Builder
		b.WriteString("domain: edge\ndescriptors:\n- key: a\n  rate_limits:\n")
		for i := range n {
			fmt.Fprintf(&b, "  - {name: n%d, unit: second, requests_per_unit: %d}\n", i, i+1)
		}
		return b.String()
	}
	replaces := func(n int) string {
		return "domain: edge\ndescriptors:\n- {key: a, rate_limit: {unit: second, requests_per_unit: 1, replaces: [" +
			strings.Repeat("{name: other}, ", n) + "]}}\n- {key: b, rate_limit: {name: other, unit: second, requests_per_unit: 1}}\n"
	}
	for name, c := range map[string]struct{ document, want string }{
		"40 limits":   {limits(40), ""},
		"41 limits":   {limits(41), "rules.yaml:5: descriptors[0].rate_limits: has 41 limits, must have at most 40: a request with 100 descriptors would take too many charges"},
		"many limits": {limits(1_000), "rules.yaml:5: descriptors[0].rate_limits: has 1000 limits, must have at most 40: a request with 100 descriptors would take too many charges"},
		"40 replaced": {replaces(40), ""},
		"41 replaced": {replaces(41), "rules.yaml:3: descriptors[0].rate_limit.replaces: has 41 names, must have at most 40"},
		"an unknown unit beside": {
			strings.Replace(limits(41), "unit: second", "unit: fortnight", 1),
			"is not a unit, must be",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Load([]Source{{Name: "rules.yaml", Data: []byte(c.document)}}, Options{})
			if c.want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// Every rule repeats the keys and values above it: a long key over many descriptors filled the
// memory.
func TestTheTextsAboveManyDescriptorsAreBounded(t *testing.T) {
	const bound = 1 << 20
	wide := func(children int) []Source {
		var b strings.Builder
		fmt.Fprintf(&b, "domain: edge\ndescriptors:\n- key: %s\n  descriptors:\n", strings.Repeat("k", 60<<10))
		for i := range children {
			fmt.Fprintf(&b, "  - {key: a%d}\n", i)
		}
		return []Source{{Name: "rules.yaml", Data: []byte(b.String())}}
	}
	if _, _, err := Load(wide(50), Options{MaxBytes: bound}); err != nil {
		t.Errorf("50 descriptors: %v", err)
	}
	_, _, err := Load(wide(5000), Options{MaxBytes: bound})
	if err == nil || strings.Count(err.Error(), "\n") > 0 || !strings.Contains(err.Error(), "repeat too many keys and values of the descriptors above them") {
		t.Errorf("5000 descriptors: %v", err)
	}
}

// A short text can be a large pattern: a repetition in an expression, or many values in any_of.
func TestTheMemoryOfPatternsIsBounded(t *testing.T) {
	const bound = 1 << 20
	for _, match := range []string{`{regex: "(.*a){48}b"}`, "{any_of: [" + strings.Repeat("x, ", 99) + "y]}"} {
		sources := func(n int) []Source {
			var b strings.Builder
			b.WriteString("domain: edge\ndescriptors:\n")
			for i := range n {
				fmt.Fprintf(&b, "- {key: k%d, match: %s}\n", i, match)
			}
			return []Source{{Name: "rules.yaml", Data: []byte(b.String())}}
		}
		if _, _, err := Load(sources(100), Options{MaxBytes: bound}); err != nil {
			t.Errorf("100 of %s: %v", match, err)
		}
		_, _, err := Load(sources(700), Options{MaxBytes: bound})
		if err == nil || strings.Count(err.Error(), "\n") > 0 || !strings.Contains(err.Error(), "patterns take too much memory: with this one more than 4194304 bytes") {
			t.Errorf("700 of %s: %v", match, err)
		}
	}
}

// changed returns the paths of wildcards that another order changes.
func changed(t *testing.T, pattern string, order []int) []string {
	t.Helper()
	older, _, err := Load(many(pattern, upTo(len(order))...), Options{})
	if err != nil {
		t.Fatal(err)
	}
	newer, _, err := Load(many(pattern, order...), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, c := range newer.Since(older) {
		paths = append(append(append(paths, c.Added...), c.Changed...), c.Removed...)
	}
	return paths
}

func TestAnotherOrderOfManyWildcardsIsNoWorkForEachPair(t *testing.T) {
	const n = 3 * maxCovers
	order := upTo(n)
	order[0], order[n-1] = order[n-1], order[0]
	if got := changed(t, "v%d.*", order); len(got) != 0 {
		t.Errorf("two wildcards without a common value changed places: got %d changes, want none", len(got))
	}
	if got := changed(t, "*v%d*", order); len(got) != n {
		t.Errorf("two wildcards changed places, and each has values with all others: got %d changes, want %d", len(got), n)
	}
	slices.Reverse(order[1 : n-1])
	if got := changed(t, "v%d.*", order); len(got) < n-2 {
		t.Errorf("too many pairs to look at: got %d changes, want all that have another place", len(got))
	}
}
