package descriptors

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
)

// naive is a pattern of the slow matcher: its text in a rule file, and its meaning as plain code.
type naive struct {
	text    string
	matches func(value string) bool
	joined  func(value string) string // the text that a matching value counts by; nil: the value itself
}

// drawer draws trees, and descriptors for them.
type drawer struct{ *rand.Rand }

func (r drawer) of(all ...string) string { return all[r.IntN(len(all))] }

func (r drawer) value(key string) string {
	switch key {
	case "ip":
		return r.of("10.0.0.1", "10.0.1.1", "10.1.0.1", "::ffff:10.0.0.7", "2001:db8::1", "2001:db8:1::1", "fe80::1", "192.168.0.1", "ten", "")
	case "method":
		return r.of("GET", "get", "POST", "PUT", "GETX", "")
	}
	path := ""
	for range 1 + r.IntN(3) {
		path += "/" + r.of("a", "b", "7", "8", "v1", "v12", "")
	}
	return path + r.of("", "", "?x=1", "?x=/a", "/")
}

// naiveText is a value as a rule file has it, in any_of or not.
func naiveText(text string) naive {
	return naive{text: fmt.Sprintf("%q", text), matches: func(v string) bool {
		if strings.Contains(text, "*") {
			return expression(text).MatchString(v)
		}
		return v == text
	}}
}

func naivePath(segments []string, counted map[string]bool) naive {
	names := ""
	for _, s := range segments {
		if counted[s] {
			names += strings.Trim(s, "{}") + ","
		}
	}
	text := "/" + strings.Join(segments, "/")
	n := naive{text: fmt.Sprintf("{path: %q}", text)}
	if names != "" {
		n.text = fmt.Sprintf("{path: %q, count_by: [%s]}", text, strings.TrimSuffix(names, ","))
	}
	parts := func(value string) []string {
		value, _, _ = strings.Cut(value, "?")
		return strings.Split(value, "/")
	}
	n.matches = func(value string) bool {
		have := parts(value)
		if len(have) != len(segments)+1 || have[0] != "" {
			return false
		}
		for i, s := range segments {
			if is := have[i+1]; is != s && (s[0] != '{' || is == "") {
				return false
			}
		}
		return true
	}
	n.joined = func(value string) string {
		have, out := parts(value), ""
		for i, s := range segments {
			if counted[s] {
				s = have[i+1]
			}
			out += "/" + s
		}
		return out
	}
	return n
}

func naiveRanges(ranges []string, v4, v6 int) naive {
	n := naive{text: fmt.Sprintf("{cidr: [%q]}", strings.Join(ranges, `", "`))}
	n.text = strings.ReplaceAll(n.text, `\"`, `"`)
	address := func(value string) (netip.Addr, bool) {
		a, err := netip.ParseAddr(value)
		return a.Unmap(), err == nil
	}
	n.matches = func(value string) bool {
		a, ok := address(value)
		for _, r := range ranges {
			if ok && netip.MustParsePrefix(r).Contains(a) {
				return true
			}
		}
		return false
	}
	if v4 == 0 {
		return n
	}
	n.text = strings.TrimSuffix(n.text, "}") + fmt.Sprintf(", group_by: {v4: %d, v6: %d}}", v4, v6)
	n.joined = func(value string) string {
		a, _ := address(value)
		if a.Is4() {
			return netip.PrefixFrom(a, v4).Masked().String()
		}
		return netip.PrefixFrom(a, v6).Masked().String()
	}
	return n
}

func (r drawer) regex() naive {
	all := []naive{
		{text: `"/v[0-9]+"`, matches: func(v string) bool {
			return len(v) > 2 && strings.HasPrefix(v, "/v") && strings.Trim(v[2:], "0123456789") == ""
		}},
		{text: `"^(GET|POST)$"`, matches: func(v string) bool { return v == "GET" || v == "POST" }},
		{text: `"(?i)get"`, matches: func(v string) bool { return strings.EqualFold(v, "get") }},
		{text: `"/[^/]+"`, matches: func(v string) bool { return len(v) > 1 && v[0] == '/' && !strings.Contains(v[1:], "/") }},
		{text: `".*7"`, matches: func(v string) bool { return strings.HasSuffix(v, "7") }},
		{text: `"/a.*"`, matches: func(v string) bool { return strings.HasPrefix(v, "/a") }},
	}
	n := all[r.IntN(len(all))]
	n.text = "{regex: " + n.text + "}"
	return n
}

func (r drawer) pattern(depth int) naive {
	switch n := r.IntN(6 + 2*min(1, 2-depth)); n {
	case 0:
		prefix := r.of("/a", "/v", "/", "/a/", "GE", "10.", "*")
		return naive{text: fmt.Sprintf("{prefix: %q}", prefix), matches: func(v string) bool { return strings.HasPrefix(v, prefix) }}
	case 1, 2:
		return r.regex()
	case 3:
		var segments []string
		counted := make(map[string]bool)
		for i := range 1 + r.IntN(3) {
			s := r.of("a", "b", fmt.Sprintf("{n%d}", i))
			segments = append(segments, s)
			if s[0] == '{' && r.IntN(2) == 0 {
				counted[s] = true
			}
		}
		return naivePath(segments, counted)
	case 4, 5:
		var ranges []string
		all := []string{"10.0.0.0/8", "10.0.0.0/24", "10.0.0.1/32", "2001:db8::/32", "2001:db8::/64", "0.0.0.0/0", "fe80::/10", "::/0"}
		for _, i := range r.Perm(len(all))[:1+r.IntN(3)] {
			ranges = append(ranges, all[i])
		}
		if r.IntN(2) == 0 {
			return naiveRanges(ranges, 0, 0)
		}
		return naiveRanges(ranges, 8+r.IntN(25), 32+r.IntN(97))
	case 6:
		of := r.part(depth + 1)
		return naive{text: "{not: " + of.text + "}", matches: func(v string) bool { return !of.matches(v) }}
	default:
		return r.anyOf(depth)
	}
}

func (r drawer) anyOf(depth int) naive {
	var texts []string
	var parts []naive
	for range 1 + r.IntN(3) {
		p := r.part(depth + 1)
		parts, texts = append(parts, p), append(texts, p.text)
	}
	first := func(v string) *naive {
		for i := range parts {
			if parts[i].matches(v) {
				return &parts[i]
			}
		}
		return nil
	}
	n := naive{text: "{any_of: [" + strings.Join(texts, ", ") + "]}", matches: func(v string) bool { return first(v) != nil }}
	for _, p := range parts {
		if p.joined == nil {
			continue
		}
		n.joined = func(v string) string {
			if p := first(v); p.joined != nil {
				return p.joined(v)
			}
			return ""
		}
	}
	return n
}

// part is a pattern in a pattern, or a text.
func (r drawer) part(depth int) naive {
	if r.IntN(2) == 0 {
		return naiveText(r.of("GET", "P*", "10.0.0.1", "/a", "*7", "/v1/*", "*"))
	}
	return r.pattern(depth)
}

// drawn is a descriptor of a drawn tree.
type drawn struct {
	key, value string
	match      *naive
	shared     bool
	below      []drawn
}

func (r drawer) tree(depth int) (all []drawn, document string) {
	seen := make(map[string]bool)
	var items []string
	for range r.IntN(6 - depth) {
		p := drawn{key: r.of("path", "ip", "method")}
		which := ""
		switch r.IntN(5) {
		case 0:
			which = "key alone"
		case 1:
			p.value = r.of(r.value(p.key), "/a*", "10.*", "*T")
			which = p.value
		default:
			m := r.pattern(0)
			p.match, which = &m, m.text
		}
		if seen[p.key+which] || p.value == "" && p.match == nil && which != "key alone" {
			continue
		}
		seen[p.key+which] = true
		item := "{key: " + p.key
		switch {
		case p.match != nil:
			item += ", match: " + p.match.text
		case p.value != "":
			item += fmt.Sprintf(", value: %q", p.value)
		}
		if p.match != nil && p.match.joined == nil && r.IntN(4) == 0 {
			p.shared = true
			item += ", share_threshold: true"
		}
		item += fmt.Sprintf(", rate_limit: {unit: second, requests_per_unit: 1, name: %q}", fmt.Sprint("rule ", r.Uint64()))
		if depth < 1 {
			var below string
			p.below, below = r.tree(depth + 1)
			item += ", descriptors: " + below
		}
		all, items = append(all, p), append(items, item+"}")
	}
	return all, "[" + strings.Join(items, ", ") + "]"
}

// findSlowly is section 4.3 of the semantics, word by word: the chosen descriptors, nil without a
// match.
func findSlowly(all []drawn, entries []Entry) []drawn {
	e := entries[0]
	choose := func(fits func(p drawn) bool) *drawn {
		for i := range all {
			if all[i].key == e.Key && fits(all[i]) {
				return &all[i]
			}
		}
		return nil
	}
	p := choose(func(p drawn) bool { return p.match == nil && p.value != "" && p.value == e.Value })
	if p == nil {
		p = choose(func(p drawn) bool {
			if p.match != nil {
				return p.match.matches(e.Value)
			}
			return strings.Contains(p.value, "*") && expression(p.value).MatchString(e.Value)
		})
	}
	if p == nil {
		p = choose(func(p drawn) bool { return p.match == nil && p.value == "" })
	}
	if p == nil || len(entries) == 1 {
		if p == nil {
			return nil
		}
		return []drawn{*p}
	}
	rest := findSlowly(p.below, entries[1:])
	if rest == nil {
		return nil
	}
	return append([]drawn{*p}, rest...)
}

// naiveKey is the key of a descriptor, but for its limit.
func naiveKey(way []drawn, entries []Entry) string {
	key := "4:edge"
	for i, e := range entries {
		mark, text := ":", e.Value
		if m := way[i].match; m != nil {
			switch joined := m.joined; {
			case way[i].shared:
				mark, text = "~", ""
			case joined != nil && joined(e.Value) != "":
				mark, text = "~", joined(e.Value)
			}
		}
		if text == "" && mark == "~" {
			key += fmt.Sprintf("|%d:%s=~", len(e.Key), e.Key)
			continue
		}
		key += fmt.Sprintf("|%d:%s=%d%s%s", len(e.Key), e.Key, len(text), mark, text)
	}
	return key
}

// Random descriptors meet the same rule, and have the same key, in random trees and in a slow
// matcher. WEIR_TREES sets the number of trees. Another number draws other trees.
func TestPatternsAgreeWithASlowMatcher(t *testing.T) {
	const each = 20
	trees := 5000
	if race.Short() {
		trees /= 10
	}
	if text := os.Getenv("WEIR_TREES"); text != "" {
		trees = must.Get(strconv.Atoi(text))(t)
	}
	r, found, texts := drawer{rand.New(rand.NewPCG(uint64(trees), 2))}, 0, make(map[string]string)
	for range trees {
		all, document := r.tree(0)
		rules := load(t, "domain: edge\ndescriptors: "+document)
		for range each {
			var entries []Entry
			for range 1 + r.IntN(2) {
				key := r.of("path", "ip", "method")
				entries = append(entries, Entry{key, r.value(key)})
			}
			way, rule := findSlowly(all, entries), rules.Domain("edge").Match(entries)
			if (way == nil) != (rule == nil) {
				t.Fatalf("%v: got the rule %v, want one: %t, in\n%s", entries, rule, way != nil, document)
			}
			if rule == nil {
				continue
			}
			found++
			compareWay(t, rule, way, entries, document, texts)
		}
	}
	t.Logf("%d of %d descriptors have a rule", found, trees*each)
	if found < trees {
		t.Errorf("only %d of %d descriptors have a rule", found, trees*each)
	}
}

// compareWay compares the levels and the key of a rule with the chosen descriptors. texts has the
// texts of patterns as rules have them.
func compareWay(t *testing.T, rule *Rule, way []drawn, entries []Entry, document string, texts map[string]string) {
	t.Helper()
	for i, p := range way {
		l := rule.Levels[i]
		isSame := l.Value == p.value
		if p.match != nil {
			if texts[p.match.text] == "" {
				texts[p.match.text] = must.Get(canonical(p.match.text))(t)
			}
			isSame = l.Match != nil && l.Match.String() == texts[p.match.text]
		}
		if l.Key != p.key || !isSame {
			t.Fatalf("%v: entry %d: got %q %q, want %q %q %v, in\n%s", entries, i, l.Key, l.Value, p.key, p.value, p.match, document)
		}
	}
	want, got := naiveKey(way, entries), rule.AppendKey(nil, "edge", entries, &rule.Limits[0])
	base := string(KeyBase(got))
	for i, p := range way { // the text of a shared pattern is the pattern
		if l := rule.Levels[i]; p.shared {
			want = strings.Replace(want, "=~", fmt.Sprintf("=%d~%s", len(l.Value), l.Value), 1)
		}
	}
	if base != want {
		t.Fatalf("%v: got the key %s, want %s, in\n%s", entries, base, want, document)
	}
}

// canonical is the text of a pattern as the tree writes it: the text of the tree's own pattern.
func canonical(text string) (string, error) {
	rules, _, err := Load([]Source{{Data: []byte("{domain: d, descriptors: [{key: k, match: " + text + "}]}")}}, Options{})
	if err != nil {
		return "", fmt.Errorf("%s: %w", text, err)
	}
	return rules.All()[0].Levels[0].Match.String(), nil
}

// The text of a pattern is YAML and means the pattern.
func TestTextOfAPatternMeansThePattern(t *testing.T) {
	r := drawer{rand.New(rand.NewPCG(3, 4))}
	for range 5000 {
		n := r.pattern(0)
		once := must.Get(canonical(n.text))(t)
		if twice := must.Get(canonical(once))(t); twice != once {
			t.Fatalf("%s is written as %s, which is written as %s", n.text, once, twice)
		}
	}
	for _, text := range []string{"true", "1.10", "a: b", "a'b\"c", `\d`, "x ", "", "null", "#", "ä", "a\tb", "- a", "*", "a:", "@", "`"} {
		m := newPrefix("p" + text)
		if text != "" {
			m = newPrefix(text)
		}
		if got := must.Get(canonical(m.String()))(t); got != m.String() {
			t.Errorf("%q is written as %s and read as %s", text, m, got)
		}
	}
}

// Each pattern, its key and its metric work without memory of their own.
func TestPatternsDoNotAllocate(t *testing.T) {
	rules := load(t, `
domain: edge
descriptors:
  - {key: a, match: {any_of: [GET, {prefix: /p}, {regex: "/r[0-9]+(/x)?"}, {not: "/*"}]}, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: a, match: {path: "/t/{id}/u/{user}", count_by: id}, detailed_metric: true, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: b, match: {cidr: [10.0.0.0/8, "2001:db8::/32"], group_by: {v4: 24}}, detailed_metric: true, rate_limit: {unit: second, requests_per_unit: 1}}
`)
	buffer := make([]byte, 0, 256)
	for _, e := range []Entry{{"a", "GET"}, {"a", "/p"}, {"a", "/r12/x"}, {"a", "x"}, {"a", "/t/1/u/2?x"}, {"b", "10.1.2.3"}, {"b", "2001:db8::1"}} {
		entries := []Entry{e}
		got := testing.AllocsPerRun(1000, func() {
			r := rules.Domain("edge").Match(entries)
			buffer = r.AppendKey(buffer[:0], r.Domain, entries, &r.Limits[0])
			buffer = r.AppendMetricValue(buffer[:0], entries)
		})
		if got != 0 {
			t.Errorf("%v: got %v allocations, want 0", e, got)
		}
	}
}

// As many and as slow expressions as a key may have take a bounded time for the longest value.
// A whole match stays one where the text of an expression opens something that nothing closes.
func TestAnExpressionIsAnchoredWhateverItsTextOpens(t *testing.T) {
	for expression, values := range map[string][2]string{ // one that matches, and one that does not
		`\Qa(b`:        {"a(b", "a(bc"},
		`(?i)ab|\Qc|d`: {"AB", "c"},
		`a|b`:          {"b", "ab"},
		`(?m)^a$`:      {"a", "a\na"},
		`(?s)a.`:       {"a\n", "a"},
	} {
		rules := load(t, fmt.Sprintf("{domain: d, descriptors: [{key: k, match: {regex: '%s'}, rate_limit: {unit: day, requests_per_unit: 1}}]}", expression))
		for i, want := range []bool{true, false} {
			if got := rules.Domain("d").Match([]Entry{{"k", values[i]}}) != nil; got != want {
				t.Errorf("%s and the value %q: got a match: %t, want %t", expression, values[i], got, want)
			}
		}
	}
}

func TestHostileExpressionsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: edge\ndescriptors:\n")
	for i := range maxRegexTotal / maxRegexSize {
		fmt.Fprintf(&b, "- {key: a, match: {regex: \"(?:[a-f]|[b-g]|[a-z])*(?:.*a){80}[yz]%d\"}}\n", i)
	}
	rules := load(t, b.String())
	entries := []Entry{{"a", strings.Repeat("a", maxRegexValue)}}
	begin := time.Now()
	if got := rules.Domain("edge").Match(entries); got != nil {
		t.Fatalf("got %v, want no match", got)
	}
	took := time.Since(begin)
	t.Logf("%d expressions and a value of %d bytes: %v", maxRegexTotal/maxRegexSize, maxRegexValue, took)
	if took > 10*time.Second { // a tenth of a second on an idle machine
		t.Errorf("took %v", took)
	}
	entries[0].Value += "a"
	begin = time.Now()
	rules.Domain("edge").Match(entries)
	if took := time.Since(begin); took > time.Second {
		t.Errorf("a longer value took %v, want no expression to look at it", took)
	}
	got := messages(t, Source{Name: "r.yaml", Data: []byte(b.String() + "- {key: a, match: {regex: \"a{200}\"}}\n")})
	if len(got) != 1 || !strings.Contains(got[0], "one regular expression too many") {
		t.Errorf("got %q, want a mistake about the bound", got)
	}
}

// A value too long for an expression meets a limit, by the expression and by its not, and is not
// free by either. Patterns without an expression decide for each length.
func TestLongValueDoesNotSlipPastALimit(t *testing.T) {
	const limit, free = "rate_limit: {unit: second, requests_per_unit: 1}", "rate_limit: {unlimited: true}"
	for _, c := range []struct{ match, rule, short, long string }{
		{`{regex: "/x.*[0-9]"}`, limit, "a", `a={regex: '/x.*[0-9]'}`},
		{`{regex: "/y.*[0-9]"}`, limit, "a", "a"},
		{`{regex: "/x.*"}`, free, "a={regex: /x.*}", "a"},
		{`{not: {regex: ".*x"}}`, limit, "a", "a={not: {regex: '.*x'}}"},
		{`{not: {regex: ".*[0-9]"}}`, free, "a={not: {regex: '.*[0-9]'}}", "a"},
		{`{not: {regex: ".*[0-9]"}}`, "quota_mode: true", "a={not: {regex: '.*[0-9]'}}", "a"},
		{`{any_of: [{regex: "[0-9]*"}, {prefix: /x}]}`, free, "a={any_of: [{regex: '[0-9]*'}, {prefix: /x}]}", "a={any_of: [{regex: '[0-9]*'}, {prefix: /x}]}"},
		{`{any_of: [{regex: "[0-9]*"}, {path: "/{id}"}]}`, limit, "a={any_of: [{regex: '[0-9]*'}, {path: '/{id}'}]}", "a={any_of: [{regex: '[0-9]*'}, {path: '/{id}'}]}"},
		{`{any_of: [{regex: "[0-9]*"}, {path: "/y/{id}"}]}`, limit, "a", "a={any_of: [{regex: '[0-9]*'}, {path: '/y/{id}'}]}"},
		{`{not: {any_of: [{regex: "[0-9]*"}, "/x*"]}}`, limit, "a", "a"},
	} {
		rules := load(t, "domain: edge\ndescriptors:\n- {key: a, match: "+c.match+", "+c.rule+"}\n- {key: a, "+limit+"}\n")
		for n, want := range map[int]string{maxRegexValue: c.short, maxRegexValue + 1: c.long} {
			entries := []Entry{{"a", "/" + strings.Repeat("x", n-1)}}
			got := rules.Domain("edge").Match(entries)
			if got == nil || strings.ReplaceAll(got.Path, `"`, "'") != want {
				t.Errorf("%s, %s, %d bytes: got %v, want %s", c.match, c.rule, n, got, want)
				continue
			}
			if steps := rules.Domain("edge").Trace(entries); got.Levels[0].Match != nil && len(steps) != 1 {
				t.Errorf("%s, %d bytes: got the steps %v, want one", c.match, n, steps)
			}
			if len(got.Limits) > 0 && KeyBase(got.AppendKey(nil, "edge", entries, &got.Limits[0])) == nil {
				t.Errorf("%s, %d bytes: the key is no key", c.match, n)
			}
		}
	}
}

// A descriptor without limits leads a long value to the limits below it.
func TestLongValueMeetsTheLimitsBelow(t *testing.T) {
	rules := load(t, `
domain: edge
descriptors:
  - key: a
    match: {regex: ".*y"}
    descriptors: [{key: b, rate_limit: {unit: second, requests_per_unit: 1}}]
`)
	long := Entry{"a", strings.Repeat("x", maxRegexValue+1)}
	if got := rules.Domain("edge").Match([]Entry{long, {"b", "1"}}); got == nil || len(got.Limits) != 1 {
		t.Errorf("got %v, want the limit below", got)
	}
	if got := rules.Domain("edge").Match([]Entry{long}); got != nil {
		t.Errorf("got %v, want no match with a rule without limits", got)
	}
}

// FuzzPath: a template matches as a split path does, and the counted text has the variables.
func FuzzPath(f *testing.F) {
	for _, s := range [][2]string{
		{"/api/{id}/orders", "/api/7/orders?x=1"},
		{"/", "/"},
		{"/{a}", "/"},
		{"/{a}/{b}", "/1/2/3"},
		{"/a//{b}", "/a//1"},
		{"/{a}/", "/x/"},
		{"/{a", "/{a"},
		{"/a/*", "/a/b"},
		{"/{a}/{a}", "/1/1"},
		{"a", "a"},
		{"/a?b", "/a?b"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, text, path string) {
		made, mistake := newTemplate(text)
		if (made == nil) == (mistake == "") {
			t.Fatalf("%q: got the template %v and the mistake %q", text, made, mistake)
		}
		if made == nil {
			return
		}
		var segments []string
		counted := make(map[string]bool)
		for s := range strings.SplitSeq(text[1:], "/") {
			if segments = append(segments, s); strings.HasPrefix(s, "{") {
				counted[s] = len(counted)%2 == 0
			}
		}
		for i, name := range made.names {
			made.counted[i] = counted["{"+name+"}"]
		}
		want := path != "" && path[0] == '/'
		plain, _, _ := strings.Cut(path, "?")
		have := strings.Split(plain, "/")
		want = want && len(have) == len(segments)+1
		joined := ""
		for i := 0; want && i < len(segments); i++ {
			s := segments[i]
			isVariable := strings.HasPrefix(s, "{")
			want = s == have[i+1] || isVariable && have[i+1] != ""
			if counted[s] {
				s = have[i+1]
			}
			joined += "/" + s
		}
		if got := made.program().test(path) == yes; got != want {
			t.Fatalf("%q matches %q: got %t, want %t", text, path, got, want)
		}
		if !want {
			return
		}
		if got := string(made.appendCounted(nil, path)); got != joined {
			t.Errorf("%q counts %q by %q, want %q", text, path, got, joined)
		}
		if made.why(path) == "" && len(made.names) > 0 || !made.covers(made) {
			t.Errorf("%q has no reason to match %q, or does not cover itself", text, path)
		}
	})
}

// FuzzRanges: any file of ranges is a set or has mistakes with their lines.
func FuzzRanges(f *testing.F) {
	for _, text := range []string{"10.0.0.0/8\n# a comment\n\n2001:db8::1 ; another\n", "10.0.0.1-9", "\xff\xfe", "", "\xef\xbb\xbf10.0.0.1", "10.0.0.1/8\r\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		table := NewTable("rules.txt", data)
		if err := table.Err(); err == nil && table.Len() == 0 {
			t.Fatalf("got %d ranges and %v", table.Len(), err)
		}
		for _, e := range table.mistakes {
			if !strings.HasPrefix(e.Error(), "rules.txt:") {
				t.Errorf("%q has no position", e.Error())
			}
		}
	})
}

func TestRangesComeFromAFile(t *testing.T) {
	const document = `
domain: edge
descriptors:
  - {key: ip, match: {not: {cidr_file: ranges.txt}}, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: ip, match: {cidr_file: ranges.txt, group_by: {v4: 16}}, rate_limit: {unit: second, requests_per_unit: 2}}
`
	read := func(text string) (*Rules, []string) {
		rules, warnings, err := Load([]Source{withTables(document, map[string]string{"ranges.txt": text})}, Options{})
		var got []string
		for _, w := range warnings {
			got = append(got, w.String())
		}
		if err != nil {
			got = append(got, err.Error())
		}
		return rules, got
	}
	rules, warned := read("# office\n10.0.0.1/8\n2001:db8::1 ; a host\n\n")
	if len(warned) != 1 || !strings.Contains(warned[0], "ranges.txt:2: warning: has bits beyond the prefix, which do not count: the range is 10.0.0.0/8") {
		t.Errorf("got %q, want one warning", warned)
	}
	for value, want := range map[string]string{
		"10.1.2.3": `ip={cidr_file: ranges.txt, group_by: {v4: 16, v6: 128}}`, "2001:db8::1": `ip={cidr_file: ranges.txt, group_by: {v4: 16, v6: 128}}`,
		"11.1.2.3": `ip={not: {cidr_file: ranges.txt}}`, "x": `ip={not: {cidr_file: ranges.txt}}`,
	} {
		if got := rules.Domain("edge").Match([]Entry{{"ip", value}}); got == nil || got.Path != want {
			t.Errorf("%s: got %v, want %s", value, got, want)
		}
	}
	same, _ := read("2001:db8::1\n10.0.0.0/8")
	other, _ := read("2001:db8::1\n10.0.0.0/9")
	if same.Hash() != rules.Hash() || other.Hash() == rules.Hash() || len(other.Since(rules)) != 1 {
		t.Errorf("got the hashes %s, %s, %s: the order of ranges does not count, a range does", rules.Hash(), same.Hash(), other.Hash())
	}
	for text, want := range map[string]string{
		"":                          "ranges.txt:1: has no ranges, must have at least one, such as 10.0.0.0/8",
		"10.0.0.0/8\n1.2.3":         `ranges.txt:2: is "1.2.3", must be a range such as 10.0.0.0/8 or 2001:db8::/32, or an address`,
		"1.2.3.4-1.2.3.9":           `ranges.txt:1: is "1.2.3.4-1.2.3.9", must be a range such as 10.0.0.0/8 or 2001:db8::/32, or an address: from-to is written as several ranges`,
		"\xff\xfe1\x000\x00":        "ranges.txt:1: is UTF-16, must be UTF-8",
		"fe80::1%eth0":              `ranges.txt:1: is "fe80::1%eth0", must be a range such as 10.0.0.0/8 or 2001:db8::/32, or an address`,
		"value,requests_per_unit\n": `ranges.txt:1: is "value,requests_per_unit", must be a range such as 10.0.0.0/8 or 2001:db8::/32, or an address`,
	} {
		if _, got := read(text); len(got) != 1 || got[0] != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
