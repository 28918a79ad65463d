package descriptors

import "strings"

// node is one descriptor of a document: what it says, and where the next entry leads. The root of a domain has no rule.
type node struct {
	rule *Rule
	keys map[string]*branch // by key of the next entry; nil at a leaf
}

// branch is the sibling descriptors of one key.
type branch struct {
	exact     map[string]*node // by value; a wildcard stands here under its own text too, so that this text finds it first
	wildcards []wildcard       // in file order
	rest      *node            // the descriptor without a value; nil when there is none
}

// wildcard is a value with at least one `*`, each of which stands for zero or more characters.
type wildcard struct {
	prefix string   // up to the first `*`
	middle []string // between two `*`, none empty
	suffix string   // from the last `*`
	least  int      // length of the shortest value that matches
	node   *node
}

// Match returns the rule of the descriptor with these entries, nil when there is none (and for no entries); it does not
// fall back to [Domain.Default]. A rule without limits means that the descriptor is known and not limited.
//
// Entry by entry from the root of the tree the node is chosen that has the exact key and value, else the first wildcard of
// the key in file order that the value matches, else the key without a value. Only the chosen node is entered: there is no
// way back from it. Keys and values are compared byte by byte; a `*` in a key is a plain character. The rule is that of
// the node where the entries end. Match does not allocate, and its cost does not depend on the number of rules, the
// wildcards of one key under one parent excepted.
func (d *Domain) Match(entries []Entry) *Rule {
	n := &d.root
	for i := range entries {
		if n = n.next(entries[i].Key, entries[i].Value); n == nil {
			return nil
		}
	}
	return n.rule
}

// next returns the node that an entry leads to, nil when there is none.
func (n *node) next(key, value string) *node {
	b := n.keys[key]
	if b == nil {
		return nil
	}
	if m := b.exact[value]; m != nil {
		return m
	}
	for i := range b.wildcards {
		if b.wildcards[i].matches(value) {
			return b.wildcards[i].node
		}
	}
	return b.rest
}

// branchOf returns the branch of a key, made where there is none.
func (n *node) branchOf(key string) *branch {
	b := n.keys[key]
	if b == nil {
		b = new(branch)
		if n.keys == nil {
			n.keys = make(map[string]*branch)
		}
		n.keys[key] = b
	}
	return b
}

// find returns the node that was added for a value as configured ("" for none), nil when there is none.
func (b *branch) find(value string) *node {
	if value == "" {
		return b.rest
	}
	return b.exact[value]
}

// add adds the node of a value as configured; "" is the key alone.
func (b *branch) add(value string, n *node) {
	if value == "" {
		b.rest = n
		return
	}
	if b.exact == nil {
		b.exact = make(map[string]*node)
	}
	b.exact[value] = n
	if strings.Contains(value, "*") {
		w := newWildcard(value)
		w.node = n
		b.wildcards = append(b.wildcards, w)
	}
}

// newWildcard splits a pattern, which holds at least one `*`.
func newWildcard(pattern string) wildcard {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	w := wildcard{prefix: parts[0], suffix: parts[last]}
	for _, p := range parts[1:last] {
		if p != "" {
			w.middle = append(w.middle, p)
		}
	}
	for _, p := range parts {
		w.least += len(p)
	}
	return w
}

// matches reports whether the value is one that the pattern stands for. Prefix and suffix are anchored, what is between
// them is looked for from left to right: each part taken at its leftmost place leaves the most for the others, so that
// no other choice need be tried.
//
// Given the text of another pattern it reports whether every value of that pattern is also one of w: a `*` in the text
// is in no part of w, so only a `*` of w can stand for it.
func (w *wildcard) matches(value string) bool {
	if len(value) < w.least || !strings.HasPrefix(value, w.prefix) || !strings.HasSuffix(value, w.suffix) {
		return false
	}
	value = value[len(w.prefix) : len(value)-len(w.suffix)]
	for _, part := range w.middle {
		i := strings.Index(value, part)
		if i < 0 {
			return false
		}
		value = value[i+len(part):]
	}
	return true
}
