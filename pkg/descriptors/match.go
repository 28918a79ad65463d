package descriptors

import "strings"

// node is a descriptor: its rule, and the nodes of the next entry. A domain's root has no rule.
type node struct {
	rule *Rule
	keys map[string]*branch // by key of the next entry; nil at a leaf

	// Most nodes have one key, and a look into the map takes three times as long as a comparison.
	only *branch // of the only key; nil when there are more keys, or none
	key  string  // of only
}

// branch is the sibling descriptors of one key.
type branch struct {
	exact    map[string]*node // by value; a wildcard too, by its own text, so that this text finds the wildcard first
	patterns []pattern        // in file order
	openings []opening        // of the patterns
	rest     *node            // the descriptor without a value; may be nil

	matchers  map[string]*node // the patterns that have match, by its text
	regexSize int              // instructions of all regular expressions
}

// pattern is a wildcard, or a match, and the node that its values lead to.
type pattern struct {
	program
	match *Matcher // nil for a wildcard
	node  *node
}

// opening is bits that the first eight bytes of all values of a pattern have. Most patterns are
// passed by without another look at their memory.
type opening struct{ bytes, mask uint64 }

// newOpening returns the opening of the texts with this prefix.
func newOpening(text string) opening {
	if len(text) >= 8 {
		return opening{
			uint64(text[0]) | uint64(text[1])<<8 | uint64(text[2])<<16 | uint64(text[3])<<24 |
				uint64(text[4])<<32 | uint64(text[5])<<40 | uint64(text[6])<<48 | uint64(text[7])<<56, ^uint64(0),
		}
	}
	var o opening
	for i := range len(text) {
		o.bytes |= uint64(text[i]) << (8 * i)
		o.mask = o.mask<<8 | 0xff
	}
	return o
}

// and returns the bits that two openings have.
func (o opening) and(p opening) opening {
	mask := o.mask & p.mask &^ (o.bytes ^ p.bytes)
	return opening{o.bytes & mask, mask}
}

// Match returns the rule of the descriptor with these entries, nil without a match or without
// entries. Match does not fall back to [Domain.Default]. A rule without limits means that the
// descriptor is known and not limited.
//
// The search enters one node per entry, from the root of the tree: the exact key and value. Else
// the first wildcard or match of the key in file order that the value matches, else the key without
// a value. The search never goes back. The node of the last entry has the rule. Keys and values are
// compared byte by byte; a `*` in a key is a plain character. Match does not allocate. The
// cost depends on the number of patterns of one key under one parent, not on the number of rules.
//
// A rule with Begin and End matches only descriptors with one more entry, the last, with one of
// these keys. The last entry of any other descriptor passes such a rule by, and may lead to a
// sibling. The entry of [UsageKey] may stand before that last one, and must if the rule is priced.
func (d *Domain) Match(entries []Entry) *Rule {
	n := &d.root
	for i := range entries {
		last := i == len(entries)-1
		if n.rule.Holds() && n.rule.ends(entries[i:]) {
			return n.rule
		}
		if n = n.next(entries[i].Key, entries[i].Value, last); n == nil {
			return nil
		}
	}
	return n.rule
}

// MatchHolders returns the rule that [Domain.Match] finds for these entries and one more that names
// a holder. The entries may have that one already. MatchHolders returns nil for a rule without
// holders.
func (d *Domain) MatchHolders(entries []Entry) *Rule {
	if r := d.Match(entries); r.Holds() {
		return r
	}
	n := &d.root
	for i := range entries {
		if n.rule.Holds() && entries[i].Key == UsageKey {
			break
		}
		if n = n.next(entries[i].Key, entries[i].Value, false); n == nil {
			return nil
		}
	}
	if n.rule.Holds() {
		return n.rule
	}
	return nil
}

// next returns the node that an entry leads to, or nil: a last entry leads to none with holders.
func (n *node) next(key, value string, last bool) *node {
	b := n.only
	if b == nil || n.key != key {
		b = n.keys[key]
	}
	if b == nil {
		return nil
	}
	if m := b.exact[value]; m != nil && !(last && m.rule.Holds()) {
		return m
	}
	first := newOpening(value).bytes
	for i := range b.openings {
		if o := &b.openings[i]; first&o.mask != o.bytes {
			continue
		}
		p := &b.patterns[i]
		verdict := p.test(value)
		if verdict == maybe {
			verdict = p.decide(value, last)
		}
		if verdict == yes && !(last && p.node.rule.Holds()) {
			return p.node
		}
	}
	if b.rest != nil && last && b.rest.rule.Holds() {
		return nil
	}
	return b.rest
}

// decide returns the verdict of a match on a value. A value that may match goes to a rule with
// limits, and passes a rule without limits by. No length of a value frees it from limits.
func (p *pattern) decide(value string, last bool) verdict {
	v := p.match.test(value)
	if v == maybe {
		v = verdictOf(len(p.node.rule.Limits) > 0 || !last && p.node.keys != nil)
	}
	return v
}

// branchOf returns the branch of a key, and makes a missing one.
func (n *node) branchOf(key string) *branch {
	b := n.keys[key]
	if b == nil {
		b = new(branch)
		if n.keys == nil {
			n.keys = make(map[string]*branch)
		}
		n.keys[key] = b
		n.key, n.only = key, b
		if len(n.keys) > 1 {
			n.only = nil
		}
	}
	return b
}

// find returns the node of a level as configured, or nil.
func (b *branch) find(l *Level) *node {
	switch {
	case l.Match != nil:
		return b.matchers[l.Value]
	case l.Value == "":
		return b.rest
	default:
		return b.exact[l.Value]
	}
}

// add adds the node of a level as configured.
func (b *branch) add(l *Level, n *node) {
	if l.Match == nil && l.Value == "" {
		b.rest = n
		return
	}
	nodes := &b.exact
	if l.Match != nil {
		nodes = &b.matchers
	}
	if *nodes == nil {
		*nodes = make(map[string]*node)
	}
	(*nodes)[l.Value] = n
	p := pattern{node: n}
	switch {
	case l.Match != nil:
		p.program, p.match = l.Match.program, l.Match
	case strings.Contains(l.Value, "*"):
		p.program = newWildcard(l.Value)
	default:
		return
	}
	b.patterns, b.openings = append(b.patterns, p), append(b.openings, p.matcher().opening())
	n.rule.rank = int32(len(b.patterns))
}

// nodes yields the nodes of all values and patterns, a wildcard once.
func (b *branch) nodes(yield func(*node) bool) {
	if b.rest != nil && !yield(b.rest) {
		return
	}
	for _, some := range [...]map[string]*node{b.exact, b.matchers} {
		for _, n := range some {
			if !yield(n) {
				return
			}
		}
	}
}

// matcher returns the pattern by itself.
func (p *pattern) matcher() *Matcher {
	if p.match != nil {
		return p.match
	}
	return &Matcher{kind: wildcardMatcher, value: p.level().Value, program: p.program}
}

// level returns the level of the pattern as configured.
func (p *pattern) level() *Level {
	levels := p.node.rule.Levels
	return &levels[len(levels)-1]
}

// matcher returns the match of the last level; nil without.
func (n *node) matcher() *Matcher { return n.rule.Levels[len(n.rule.Levels)-1].Match }

// shown returns the pattern for a message.
func (p *pattern) shown() string {
	if l := p.level(); p.match == nil || len(l.Value) > maxShown {
		return quote(l.Value)
	}
	return p.level().Value
}

// covers reports whether the pattern surely matches every value that a level matches.
func (p *pattern) covers(l *Level) bool {
	switch {
	case l.Match != nil:
		return p.matcher().covers(l.Match)
	case l.Value == "":
		return p.program == anything
	case p.match != nil:
		return p.match.covers(newTextMatcher(l.Value))
	default:
		return p.test(l.Value) == yes
	}
}
