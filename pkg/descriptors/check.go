package descriptors

import (
	"slices"
	"strings"
)

// maxCovers bounds the wildcards of one key that a new sibling is compared with.
const maxCovers = 1000

// checkReach warns when earlier siblings match everything that a new sibling with this value
// matches.
func (t *tree) checkReach(at value, b *branch, value string, rule *Rule) {
	if value != "" && !strings.Contains(value, "*") {
		return
	}
	// A key without a value comes after all its wildcards, wherever it stands.
	if value != "" && strings.Trim(value, "*") == "" && b.rest != nil && (b.rest.rule.Holds() || !rule.Holds()) {
		t.warn(at, at.line, "matches every value, so that the key without a value%s is never reached", line(", in line %d,", b.rest.rule.Line))
	}
	for _, w := range b.wildcards[:min(len(b.wildcards), maxCovers)] {
		earlier := w.node.rule
		pattern := quote(earlier.Levels[len(earlier.Levels)-1].Value)
		where := t.where("", earlier)
		switch {
		case earlier.Holds() && !rule.Holds(): // descriptors without a holder pass the earlier one by
		case value == "" && w.matches("*"):
			t.warn(at, at.line, "is never reached without a value: %s%s matches every value", pattern, where)
			return
		case value != "" && w.matches(value):
			t.warn(at, at.line, "is reached by its own text only: every other value that it matches goes to %s%s, which comes first",
				pattern, where)
			return
		}
	}
}

// where returns a text and the position of a rule; "" when the position is unknown.
func (t *tree) where(text string, r *Rule) string {
	if r.File != t.file {
		return text + " at " + position(r.File, r.Line)
	}
	return line(text+" in line %d", r.Line)
}

// checkFlags warns about shadow_mode or quota_mode on a descriptor without limits, above limits
// without that flag. The author may expect the flag to apply to the limits below.
func (t *tree) checkFlags(fs fields, rule *Rule, below []*Rule) {
	_, one := fs.get("rate_limit")
	_, many := fs.get("rate_limits")
	check := func(key string, is func(*Rule) bool) {
		without := func(r *Rule) bool { return len(r.Limits) > 0 && !is(r) }
		if i := slices.IndexFunc(below, without); i >= 0 && is(rule) && !one && !many {
			at, _ := fs.get(key)
			t.warn(at, at.line, "has no effect: it counts for the descriptor's own limits, not for those below it%s", line(", as in line %d", below[i].Line))
		}
	}
	check("shadow_mode", func(r *Rule) bool { return r.Shadow })
	check("quota_mode", func(r *Rule) bool { return r.Quota })
}

// checkBlanks warns about blanks around a text that requests must equal.
func (t *tree) checkBlanks(at value, text string) {
	if plain := strings.TrimSpace(text); plain != text {
		t.warn(at, at.line, "has blanks around it, which a request must send too: probably %s is meant", quote(plain))
	}
}

// checkValue warns about a value that looks like an address range or a regular expression: only `*`
// has a meaning in a value.
func (t *tree) checkValue(at value, l Level) {
	t.checkBlanks(at, l.Value)
	switch {
	case looksLikeRange(l.Value) && l.Key != maskedAddress:
		t.warn(at, at.line, "is compared as text, so that no address in the range matches: Envoy's action masked_remote_address "+
			"sends the range of a client under the key %s", maskedAddress)
	case looksLikeRegex(l.Value):
		t.warn(at, at.line, "is compared as text, not as a regular expression: only `*` stands for other text. Envoy can match "+
			"the expression, in an action header_value_match or in a route, and send a plain value")
	}
}

// maskedAddress is the key of Envoy's action masked_remote_address. Its values are ranges such as
// 10.0.0.0/8.
const maskedAddress = "masked_remote_address"

// looksLikeRange reports whether a value is a range of addresses, such as 10.0.0.0/8.
func looksLikeRange(value string) bool {
	address, bits, ok := strings.Cut(value, "/")
	return ok && bits != "" && len(bits) <= 3 && strings.Trim(bits, "0123456789") == "" &&
		strings.Trim(address, "0123456789abcdefABCDEF.:") == "" && (strings.Count(address, ".") == 3 || strings.Count(address, ":") > 1)
}

// looksLikeRegex reports whether a value has a part that is frequent in regular expressions and
// rare elsewhere.
func looksLikeRegex(value string) bool {
	parts := []string{`\d`, `\w`, `\s`, `\.`, `\/`, "/.*", ".+", "]+", ")+", "[0-9", "[a-z", "[A-Z", "[^", "(?"}
	return strings.HasPrefix(value, "^") || len(value) > 1 && strings.HasSuffix(value, "$") ||
		slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(value, p) })
}

// checkReplaces warns about names that no limit of the domain has.
func (t *tree) checkReplaces() {
	for _, x := range t.replaces {
		if !t.names[x.name] {
			t.warn(x.at, x.at.line, "no limit of this domain has the name %s, so this replaces nothing", quote(x.name))
		}
	}
}
