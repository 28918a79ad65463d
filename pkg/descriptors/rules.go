package descriptors

import (
	"cmp"
	"maps"
	"slices"
	"sync"
)

// Rules is the rules of all domains, immutable and safe for concurrent use. The zero value has no
// rules.
type Rules struct {
	domains map[string]*Domain
	only    *Domain // the one of domains, if there is one
	all     []*Rule

	once     sync.Once // for digest
	meanings []meaning // of all
	hash     string
}

// Domain returns the domain of that name, or nil. Names are case-sensitive.
func (r *Rules) Domain(name string) *Domain {
	if r.only != nil && r.only.Name == name { // most programs have one, and a look into the map takes three times as long
		return r.only
	}
	return r.domains[name]
}

// Domains returns all domains, sorted by name.
func (r *Rules) Domains() []*Domain {
	return slices.SortedFunc(maps.Values(r.domains), func(a, b *Domain) int { return cmp.Compare(a.Name, b.Name) })
}

// All returns every node of every domain, with limits or without, in the order of the IDs. Domains
// are sorted by name. Within a domain, the order is that of the document, with the default last.
// The caller must not change the slice.
func (r *Rules) All() []*Rule { return r.all }

// Len returns the length of All: IDs are below it. [Rules.Count] counts the rules in the sense of
// the documentation.
func (r *Rules) Len() int { return len(r.all) }

// Count returns the number of rules in the sense of the documentation: nodes that have limits or
// are unlimited.
func (r *Rules) Count() int {
	n := 0
	for _, rule := range r.all {
		if rule.limiting() {
			n++
		}
	}
	return n
}

// limiting reports whether the node says how much may pass: it has limits or is unlimited.
func (r *Rule) limiting() bool { return len(r.Limits) > 0 || r.Unlimited }

// Hash identifies the meaning of the rules, in 16 hexadecimal digits: the beginning of a SHA-256
// over all nodes and domains, sorted. Names, lines and the order of files do not change the hash.
// The order of descriptors in a document changes the hash only for wildcards, where the order
// decides matches. A new version of this package may give the same rules another hash. The first
// call takes about a microsecond per rule.
func (r *Rules) Hash() string {
	r.once.Do(r.digest)
	return r.hash
}
