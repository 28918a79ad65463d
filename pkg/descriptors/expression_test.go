package descriptors

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
)

// checkExpression compares the program of an expression, if it has one, with package regexp.
func checkExpression(t *testing.T, expression string, values ...string) (isSimple bool, matching int) {
	t.Helper()
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return false, 0
	}
	p := newExpression(parsed)
	if p == "" {
		return false, 0
	}
	slow := must.Get(regexp.Compile(`\A(?:` + parsed.String() + `)\z`))(t)
	for _, value := range values {
		want := slow.MatchString(value)
		if got := p.test(value); got != verdictOf(want) && len(value) <= maxRegexValue {
			t.Fatalf("%q and the value %q: got the verdict %d, want a match: %t", expression, value, got, want)
		}
		if want {
			matching++
		}
	}
	return true, matching
}

func (r drawer) expression(depth int) string {
	var b strings.Builder
	b.WriteString(r.of("", "", "", "", "^", "(?i)", "(?s)", "(?U)", "(?m)^"))
	for range 1 + r.IntN(4) {
		atom := r.of("/", "a", "ab", "/v", "7", ".", `\.`, `\d`, `\w`, `\W`, "[^/]", "[a-c]", "[^a]", "[/7]", "[é]", "é", "[^é]", "\ufffd", "[[:alpha:]]",
			`\pL`, `[\x00-\x{10ffff}]`, `[^\x00-\x{10ffff}]`, `\x{80}`, `[a\x{80}-\x{10ffff}]`, "|", `\b`, "K", "$")
		if depth > 0 && r.IntN(4) == 0 {
			atom = r.of("(", "(?:", "(?i:", "(?P<x>") + r.expression(depth-1) + ")"
		}
		b.WriteString(atom + r.of("", "", "", "*", "+", "?", "{2}", "{0}", "{1,2}", "{2,}", "+?"))
	}
	b.WriteString(r.of("", "", "", "$", `\z`, ".*"))
	return b.String()
}

// Random simple expressions match the values that package regexp matches. Some values have
// characters beyond ASCII, and bytes that are no characters.
func TestSimpleExpressionsMatchAsPackageRegexpDoes(t *testing.T) {
	const expressions, each = 40_000, 20
	r, simple, matching := drawer{rand.New(rand.NewPCG(5, 6))}, 0, 0
	for range expressions {
		values := make([]string, each)
		for i := range values {
			for range r.IntN(6) {
				values[i] += r.of("/", "a", "b", "ab", "/v", "7", "77", ".", "k", "K", "\u212a", "é", "\ufffd", "\n", "\xc3", "\xa9", "\xff", "\x80", "\U0010ffff", "\x00")
			}
		}
		isSimple, n := checkExpression(t, r.expression(2), values...)
		if matching += n; isSimple {
			simple++
		}
	}
	t.Logf("%d of %d expressions are simple, and match %d of %d values", simple, expressions, matching, simple*each)
	if simple < expressions/20 || matching < simple {
		t.Errorf("%d expressions are simple, and match %d values: too few", simple, matching)
	}
}

func TestUsualExpressionsAreSimple(t *testing.T) {
	for expression, want := range map[string]bool{
		"/v[0-9]+": true, `^/api/v\d+/.*$`: true, "/users/([^/]+)/orders": true, "abc": true, "a{2,3}b?": true, "[0-9a-f]{8}": true, "": true,
		`\/a\/[^?]*`: true, "/[^/]+/[^/]+": true, "(?s).*": true,
		".*7": false, "GET|POST": false, "(?i)get": false, "é+": false, "[^/]{3}": false, "a*a": false, "a?b?a": false, `a\b`: false, "(ab)+": false,
	} {
		parsed := must.Get(syntax.Parse(expression, syntax.Perl))(t)
		if got := newExpression(parsed) != ""; got != want {
			t.Errorf("%q: got a program: %t, want %t", expression, got, want)
		}
	}
}

// FuzzExpression compares any expression with package regexp.
func FuzzExpression(f *testing.F) {
	r := drawer{rand.New(rand.NewPCG(7, 8))}
	for range 50 {
		f.Add(r.expression(1), r.value("path"))
	}
	f.Fuzz(func(t *testing.T, expression, value string) {
		if len(expression) <= maxRegexBytes {
			checkExpression(t, expression, value)
		}
	})
}

// Steps of any kind in one another have the verdict that the patterns have one by one.
func TestProgramOfAPatternHasTheVerdictOfItsParts(t *testing.T) {
	if got := newWildcard("**"); got != anything {
		t.Fatalf("got the program %q for any value, want %q", got, anything)
	}
	long := strings.Repeat("7", maxRegexValue)
	for _, c := range []struct {
		match, value string
		want         verdict
	}{
		{`{regex: "/a[0-9]*"}`, "/a" + long[2:], yes},
		{`{regex: "/a[0-9]*"}`, "/a" + long[1:], maybe},
		{`{regex: "/a[0-9]*"}`, "/b" + long, no},
		{`{not: {regex: "/a[0-9]*"}}`, "/a" + long, maybe},
		{`{any_of: [{regex: "/a[0-9]*"}, {prefix: /a}]}`, "/a" + long, yes},
		{`{any_of: [{regex: "/a[0-9]*"}, {regex: "(/|a)*"}]}`, "/a/a", yes},
		{`{any_of: [{not: "*"}, {not: {not: "a*c*"}}]}`, "abcd", yes},
		{`{any_of: ["", {not: {cidr: [10.0.0.0/8]}}]}`, "", yes},
		{`{cidr: [0.0.0.0/0]}`, "", no},
		{`{any_of: ["", a]}`, "b", no},
		{`{not: {cidr: [10.0.0.0/8, "::/0"]}}`, "11.0.0.1", yes},
		{`{path: "/a/{b}"}`, "/a?/b", no},
		{`{path: "/a/{b}"}`, "/a/b?/c", yes},
	} {
		rules := load(t, fmt.Sprintf("{domain: d, descriptors: [{key: k, match: %s}]}", c.match))
		if got := rules.All()[0].Levels[0].Match.test(c.value); got != c.want {
			t.Errorf("%s and a value of %d bytes: got the verdict %d, want %d", c.match, len(c.value), got, c.want)
		}
	}
}
