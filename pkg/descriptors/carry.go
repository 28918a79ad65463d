package descriptors

import (
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Followed is a limit of newer rules, and the limit of older rules that it replaced.
type Followed struct {
	Rule  *Rule
	Limit int // index in Rule.Limits

	From      *Rule // of the older rules; nil: the counts of the limit start anew
	FromLimit int   // index in From.Limits
	Same      bool  // both limits have the same counts in the store
}

// Follow returns the limits of r whose rule has had limits in an older set, in the order of
// [Rules.All]. A rule is the same rule if domain, keys, values and share_threshold are equal.
// Within a rule a limit follows the one with the same counts: with its algorithm and period. Else
// it follows the one of its name, else the next one in the order of the rule. Counts of concurrency
// do not carry over to another algorithm, and no other counts carry over to concurrency.
func (r *Rules) Follow(older *Rules) (all []Followed) {
	type place struct{ domain, path string } // two rules may have one path
	were := make(map[place][]*Rule)
	for _, rule := range older.all {
		if len(rule.Limits) > 0 {
			at := place{rule.Domain, rule.Path}
			were[at] = append(were[at], rule)
		}
	}
	for _, rule := range r.all {
		same := were[place{rule.Domain, rule.Path}]
		if i := slices.IndexFunc(same, rule.sameLevels); i >= 0 {
			all = rule.follow(same[i], all)
			continue
		}
		for n := range rule.Limits {
			if len(same) > 0 {
				all = append(all, Followed{Rule: rule, Limit: n})
			}
		}
	}
	return all
}

// sameLevels reports whether a descriptor has the same part of its key under both rules.
func (r *Rule) sameLevels(other *Rule) bool {
	return slices.EqualFunc(r.Levels, other.Levels, func(a, b Level) bool {
		return a.Key == b.Key && a.Value == b.Value && (a.Match == nil) == (b.Match == nil) && a.ShareThreshold == b.ShareThreshold
	})
}

// follow adds the limits of a rule that follows an older one.
func (r *Rule) follow(older *Rule, all []Followed) []Followed {
	first := len(all)
	taken := make([]bool, len(older.Limits))
	for n := range r.Limits {
		all = append(all, Followed{Rule: r, Limit: n})
	}
	passes := []func(was, is *Limit) bool{
		func(was, is *Limit) bool { return was.suffix == is.suffix },
		func(was, is *Limit) bool { return was.Name == is.Name && is.Name != "" },
		func(was, is *Limit) bool { return true },
	}
	for _, follows := range passes {
		for n := range r.Limits {
			f, is := &all[first+n], &r.Limits[n]
			for i := range older.Limits {
				was := &older.Limits[i]
				if f.From != nil || taken[i] || !follows(was, is) {
					continue
				}
				if same := was.suffix == is.suffix; same || carries(was) && carries(is) {
					f.From, f.FromLimit, taken[i] = older, i, true
					f.Same = same && was.tableMeaning() == is.tableMeaning()
				}
			}
		}
	}
	return all
}

func carries(l *Limit) bool { return l.Algorithm != algorithms.Concurrency }

// tableMeaning returns the meaning of the table of the limit. A table may give a customer another
// period.
func (l *Limit) tableMeaning() (m meaning) {
	if l.tabled != nil {
		m = l.tabled.meaning
	}
	return m
}

// AppendKeyOf appends the key of the same descriptor under another limit. key is the key under l.
func (l *Limit) AppendKeyOf(dst, key []byte, other *Limit) []byte {
	return append(append(dst, l.Base(key)...), other.suffix...)
}

// Carried returns the number of limits that take over used hits of another algorithm or period.
// anew names the limits that start anew.
func Carried(all []Followed) (over int, anew []string) {
	for _, f := range all {
		switch limit := &f.Rule.Limits[f.Limit]; {
		case f.From == nil:
			anew = append(anew, f.Rule.Domain+" "+f.Rule.Path+" "+limit.Label())
		case !f.Same:
			over++
		}
	}
	return over, anew
}
