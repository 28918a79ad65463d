package descriptors

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"math"
	"slices"
)

// meaning identifies all that a node means, except its place among wildcards.
type meaning [sha256.Size]byte

func (r *Rules) digest() {
	r.meanings = make([]meaning, len(r.all))
	ranked := make([]meaning, len(r.all))
	var text []byte
	for i, rule := range r.all {
		text = rule.appendMeaning(text[:0])
		r.meanings[i] = sha256.Sum256(text)
		ranked[i] = r.meanings[i]
		if rule.rank > 0 {
			ranked[i] = sha256.Sum256(binary.AppendUvarint(text, uint64(rule.rank)))
		}
	}
	slices.SortFunc(ranked, func(a, b meaning) int { return bytes.Compare(a[:], b[:]) })
	hash := sha256.New()
	for _, m := range ranked {
		_, _ = hash.Write(m[:]) // a hash never fails
	}
	for _, d := range r.Domains() { // a domain without rules decides overrides, too
		_, _ = hash.Write(appendSized(text[:0], d.Name))
	}
	r.hash = hex.EncodeToString(hash.Sum(nil)[:8])
}

func appendSized(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

func appendFlags(dst []byte, flags ...bool) []byte {
	for _, is := range flags {
		if is {
			dst = append(dst, 1)
		} else {
			dst = append(dst, 0)
		}
	}
	return dst
}

// Change is the difference between older and newer rules of one domain. The texts are paths,
// sorted, of rules in the sense of [Rules.Count]. A domain that comes or goes without such rules
// has one text in place of a path.
type Change struct {
	Domain  string
	Added   []string
	Changed []string
	Removed []string
}

// noRules stands for a domain that has no rules, in a Change.
const noRules = "(domain without rules)"

// Since returns the domains whose rules differ from the rules of an older set, sorted by name. A
// rule that comes or goes does not change the others, even if it takes requests from a later
// wildcard.
func (r *Rules) Since(older *Rules) (changes []Change) {
	was, is, moved := older.byPath(), r.byPath(), r.movedSince(older)
	domains := slices.AppendSeq(slices.Collect(maps.Keys(was)), maps.Keys(is))
	slices.Sort(domains)
	for _, domain := range slices.Compact(domains) {
		c := Change{Domain: domain}
		if _, known := was[domain]; !known && len(is[domain]) == 0 {
			c.Added = append(c.Added, noRules)
		}
		if _, known := is[domain]; !known && len(was[domain]) == 0 {
			c.Removed = append(c.Removed, noRules)
		}
		for path, meaning := range is[domain] {
			if before, ok := was[domain][path]; !ok {
				c.Added = append(c.Added, path)
			} else if before != meaning || moved[domain][path] {
				c.Changed = append(c.Changed, path)
			}
		}
		for path := range was[domain] {
			if _, ok := is[domain][path]; !ok {
				c.Removed = append(c.Removed, path)
			}
		}
		slices.Sort(c.Added)
		slices.Sort(c.Changed)
		slices.Sort(c.Removed)
		if len(c.Added)+len(c.Changed)+len(c.Removed) > 0 {
			changes = append(changes, c)
		}
	}
	return changes
}

// byPath returns the meanings of the rules by domain and path. Two rules may have one path: a=b
// alone, and a with the value b. The order of such rules does not matter.
func (r *Rules) byPath() map[string]map[string]string {
	r.once.Do(r.digest)
	all := make(map[string]map[string]string, len(r.domains))
	for name := range r.domains {
		all[name] = make(map[string]string)
	}
	order := make([]int, len(r.all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return bytes.Compare(r.meanings[a][:], r.meanings[b][:]) })
	for _, i := range order {
		if rule := r.all[i]; rule.limiting() {
			all[rule.Domain][rule.Path] += string(r.meanings[i][:])
		}
	}
	return all
}

// movedSince returns the rules that another order of wildcards affects, by domain and path.
func (r *Rules) movedSince(older *Rules) map[string]map[string]bool {
	moved := make(map[string]map[string]bool)
	for name, is := range r.domains {
		if was := older.domains[name]; was != nil {
			moved[name] = make(map[string]bool)
			is.root.movedSince(&was.root, moved[name])
		}
	}
	return moved
}

// movedSince adds to moved the paths of rules at or below patterns that have changed places. Two
// patterns have changed places if the same value can match both, and the other one now comes
// first.
func (n *node) movedSince(older *node, moved map[string]bool) {
	for key, is := range n.keys {
		was := older.keys[key]
		if was == nil {
			continue
		}
		for child := range is.nodes {
			levels := child.rule.Levels
			if before := was.find(&levels[len(levels)-1]); before != nil {
				child.movedSince(before, moved)
			}
		}
		for _, p := range displaced(is.patterns, was) {
			p.node.addPaths(moved)
		}
	}
}

// displaced returns the patterns that have changed places with another one since an older branch.
// The work is an insertion sort: a step for each pair that has changed places. After maxCovers
// steps for each wildcard, displaced does not look any more whether the same value can match both.
func displaced(patterns []pattern, older *branch) (all []*pattern) {
	var common []*pattern
	var ranks []int // in the older set
	for i := range patterns {
		if before := older.find(patterns[i].level()); before != nil {
			common, ranks = append(common, &patterns[i]), append(ranks, int(before.rule.rank))
		}
	}
	var sorted []int                    // indexes, by their ranks
	places := make([]bool, len(common)) // changed
	for i, steps := 0, maxCovers*len(common); i < len(common); i++ {
		at := len(sorted)
		for ; at > 0 && ranks[sorted[at-1]] > ranks[i]; at-- {
			j := sorted[at-1]
			if common[i].overlaps(common[j].program) {
				places[i], places[j] = true, true
			}
			if steps--; steps < 0 {
				return outOfOrder(common, ranks)
			}
		}
		sorted = slices.Insert(sorted, at, i)
	}
	for i := range common {
		if places[i] {
			all = append(all, common[i])
		}
	}
	return all
}

// outOfOrder returns the patterns with a larger rank before them or a smaller one after them.
func outOfOrder(all []*pattern, ranks []int) (some []*pattern) {
	smallest := make([]int, len(ranks)+1) // from here on
	smallest[len(ranks)] = math.MaxInt
	for i := len(ranks) - 1; i >= 0; i-- {
		smallest[i] = min(ranks[i], smallest[i+1])
	}
	largest := 0
	for i, rank := range ranks {
		if largest > rank || smallest[i+1] < rank {
			some = append(some, all[i])
		}
		largest = max(largest, rank)
	}
	return some
}

func (n *node) addPaths(to map[string]bool) {
	to[n.rule.Path] = true
	for _, b := range n.keys {
		for child := range b.nodes {
			child.addPaths(to)
		}
	}
}
