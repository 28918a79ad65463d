package limiter

import (
	"math"
	"slices"

	"github.com/weirproxy/weir/internal/top"
)

// RuleUsed is the parts of a rule's limits that tracked keys have used, 0 to 1, by the last
// decision about each. The keys have had a hit in the last minute. A key of several limits counts
// once for each.
type RuleUsed struct {
	Domain  string
	Path    string  // Rule.Path, or "override"
	Keys    int     // at least 1
	Highest float64 // of the keys
	P99     float64 // 99 of 100 keys have used at most this part, by the nearest-rank method
}

// Used returns the used parts of each rule with such keys, in no order. Without Options.TopKeys the
// result is nil. Used asks no store.
func (l *Limiter) Used() []RuleUsed {
	if l.tracking.keys == nil {
		return nil
	}
	type rule struct{ domain, path string }
	set := l.current.Load()
	current := make(map[rule]bool)
	for _, r := range set.rules.All() {
		current[rule{r.Domain, r.Path}] = true
	}
	for domain := range set.overrides {
		current[rule{domain, overridePath}] = true
	}
	parts := make(map[rule][]float64)
	keys, _ := l.tracking.keys.Top(top.Minute)
	for i := range keys {
		text, _ := readTracked(keys[i].Text)
		if of := (rule{text.domain, text.path}); current[of] {
			parts[of] = append(parts[of], used(keys[i].Remaining, keys[i].Capacity))
		}
	}
	var all []RuleUsed
	for of, some := range parts {
		slices.Sort(some)
		rank := int(math.Ceil(0.99 * float64(len(some))))
		all = append(all, RuleUsed{of.domain, of.path, len(some), some[len(some)-1], some[rank-1]})
	}
	return all
}

// TrackedKeys returns the number of keys that are tracked now, see Options.TopKeys.
func (l *Limiter) TrackedKeys() int {
	if l.tracking.keys == nil {
		return 0
	}
	return l.tracking.keys.Tracked()
}
