package descriptors

import (
	"slices"
	"strings"
)

// maxCovers bounds how many wildcards of one key a new sibling is compared with.
const maxCovers = 1000

// checkReach warns when earlier siblings leave nothing for a value that is about to be added to them.
func (t *tree) checkReach(at value, b *branch, value string) {
	if value != "" && !strings.Contains(value, "*") {
		return
	}
	// A key without a value comes after all its wildcards, wherever it stands.
	if value != "" && strings.Trim(value, "*") == "" && b.rest != nil {
		t.warn(at, at.line, "matches every value, so that the key without a value%s is never reached", line(", in line %d,", b.rest.rule.Line))
	}
	for _, w := range b.wildcards[:min(len(b.wildcards), maxCovers)] {
		earlier := w.node.rule
		pattern := quote(earlier.levels[len(earlier.levels)-1].value)
		where := line(" in line %d", earlier.Line)
		if earlier.File != t.file {
			where = " at " + position(earlier.File, earlier.Line)
		}
		switch {
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

// checkFlags warns when shadow_mode or quota_mode is set on a rule without limits while limits below it do without: who
// writes that may expect it to count for them.
func (t *tree) checkFlags(fs fields, rule *Rule, below []*Rule) {
	if _, one := fs.get("rate_limit"); one {
		return
	}
	if _, many := fs.get("rate_limits"); many {
		return
	}
	check := func(key string, is func(*Rule) bool) {
		without := func(r *Rule) bool { return len(r.Limits) > 0 && !is(r) }
		if i := slices.IndexFunc(below, without); i >= 0 && is(rule) {
			at, _ := fs.get(key)
			t.warn(at, at.line, "has no effect: it counts for the descriptor's own limits, not for those below it%s", line(", as in line %d", below[i].Line))
		}
	}
	check("shadow_mode", func(r *Rule) bool { return r.Shadow })
	check("quota_mode", func(r *Rule) bool { return r.Quota })
}

// checkReplaces warns about names that replace nothing.
func (t *tree) checkReplaces() {
	for _, x := range t.replaces {
		if !t.names[x.name] {
			t.warn(x.at, x.at.line, "no limit of this domain has the name %s, so this replaces nothing", quote(x.name))
		}
	}
}
