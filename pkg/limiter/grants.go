package limiter

import (
	"cmp"
	"hash/maphash"
	"iter"
	"maps"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// grantTable finds the grants of a key: a hash table whose readers take no lock. One goroutine at a
// time may change it. The rules that it was made for stay the same.
//
// A digest of 128 bits stands for a key. The bytes of the key would lie elsewhere in memory. A look
// at them takes longer than the second hash.
type grantTable struct {
	seeds   [2]maphash.Seed                             // clients cannot foresee the digest
	places  atomic.Pointer[[]atomic.Pointer[keyGrants]] // the number of places is a power of two
	entries atomic.Int64                                // keys with grants
}

// keyGrants is the grants of one key. Immutable, but for next: a new one takes the place of the old
// one.
type keyGrants struct {
	hash, second uint64   // of the key's descriptors.Limit.Base
	grants       []*Grant // at least one, by byPrecedence
	next         atomic.Pointer[keyGrants]
}

// fewestPlaces is the number of places of an empty table.
const fewestPlaces = 16

func newGrantTable() *grantTable {
	t := &grantTable{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	t.resize(fewestPlaces)
	return t
}

// any reports whether there are grants at all.
func (t *grantTable) any() bool { return t.entries.Load() > 0 }

// find returns the grants of a key, or nil.
func (t *grantTable) find(base []byte) *keyGrants {
	hash := maphash.Bytes(t.seeds[0], base)
	places := *t.places.Load()
	for k := places[hash&uint64(len(places)-1)].Load(); k != nil; k = k.next.Load() {
		if k.hash == hash && k.second == maphash.Bytes(t.seeds[1], base) {
			return k
		}
	}
	return nil
}

// set puts the grants of a key in place of the earlier ones; no grants remove the key.
func (t *grantTable) set(base string, grants []*Grant) {
	hash, second := maphash.String(t.seeds[0], base), maphash.String(t.seeds[1], base)
	places := *t.places.Load()
	at := &places[hash&uint64(len(places)-1)]
	was := at.Load()
	for was != nil && (was.hash != hash || was.second != second) {
		at = &was.next
		was = at.Load()
	}
	if len(grants) == 0 {
		if was != nil {
			at.Store(was.next.Load())
			t.entries.Add(-1)
		}
		return
	}
	k := &keyGrants{hash: hash, second: second, grants: grants}
	if was != nil {
		k.next.Store(was.next.Load())
		at.Store(k)
		return
	}
	at.Store(k)
	if t.entries.Add(1) > int64(len(places)) {
		t.resize(4 * len(places))
	}
}

// resize gives the table another number of places. Readers go on with the places before.
func (t *grantTable) resize(n int) {
	places := make([]atomic.Pointer[keyGrants], n)
	if was := t.places.Load(); was != nil {
		for i := range *was {
			for k := (*was)[i].Load(); k != nil; k = k.next.Load() {
				at := &places[k.hash&uint64(n-1)]
				moved := &keyGrants{hash: k.hash, second: k.second, grants: k.grants}
				moved.next.Store(at.Load())
				at.Store(moved)
			}
		}
	}
	t.places.Store(&places)
}

// byPrecedence sorts the grants of a key: of two grants for a limit the first one in force counts.
// A block of all limits comes before a grant for one limit, as it stops somebody. The order is the
// same in each process.
func byPrecedence(a, b *Grant) int {
	rank := func(g *Grant) int {
		switch {
		case g.Limit == "" && g.Gives == GivesRequests && g.Requests == 0:
			return 0
		case g.Limit != "":
			return 1
		default:
			return 2
		}
	}
	return cmp.Or(rank(a)-rank(b), b.Given.Compare(a.Given), cmp.Compare(b.ID, a.ID))
}

// baseOf returns the base of the key of a grant under some rules; false when the rules have no
// limit for the grant.
func baseOf(rules *descriptors.Rules, g *Grant) (string, bool) {
	rule, entries := target(rules, g)
	if rule == nil {
		return "", false
	}
	limit := &rule.Limits[0]
	return string(limit.Base(rule.AppendKey(nil, g.Domain, entries, limit))), true
}

// placeLocked returns a table of all grants under some rules. setting must be held.
func (l *Limiter) placeLocked(rules *descriptors.Rules) *grantTable {
	byKey := make(map[string][]*Grant, len(l.grants))
	for _, g := range l.grants {
		if base, ok := baseOf(rules, g); ok {
			byKey[base] = append(byKey[base], g)
		}
	}
	t := newGrantTable()
	if len(byKey) > fewestPlaces {
		t.resize(1 << bits.Len(uint(len(byKey))))
	}
	for base, grants := range byKey {
		slices.SortFunc(grants, byPrecedence)
		t.set(base, grants)
	}
	return t
}

// manyGrants is a number of changes from which on a new table costs less than the changes, if they
// are a quarter of all grants.
const manyGrants = 64

// ChangeGrants ends the grants with these IDs and then puts other grants in force, each in place of
// an earlier one of the same ID. The change is complete for every request that begins after
// ChangeGrants returns. A request that runs meanwhile may see a part of the change, but of a key
// always the old grants or the new ones.
func (l *Limiter) ChangeGrants(end []string, put []*Grant) {
	l.setting.Lock()
	defer l.setting.Unlock()
	was := l.current.Load()
	if n := len(end) + len(put); n >= manyGrants && 4*n >= len(l.grants) {
		for _, id := range end {
			delete(l.grants, id)
		}
		for _, g := range put {
			l.grants[g.ID] = g
		}
		next := *was
		next.grants = l.placeLocked(was.rules)
		l.current.Store(&next)
		return
	}
	changed := make(map[string][]*Grant) // by base
	change := func(g *Grant, to func(grants []*Grant) []*Grant) {
		base, ok := baseOf(was.rules, g)
		if !ok {
			return
		}
		grants, again := changed[base]
		if k := was.grants.find([]byte(base)); k != nil && !again {
			grants = slices.Clone(k.grants)
		}
		changed[base] = to(grants)
	}
	drop := func(id string) {
		if g := l.grants[id]; g != nil {
			change(g, func(grants []*Grant) []*Grant {
				return slices.DeleteFunc(grants, func(other *Grant) bool { return other == g })
			})
			delete(l.grants, id)
		}
	}
	for _, id := range end {
		drop(id)
	}
	for _, g := range put {
		drop(g.ID)
		l.grants[g.ID] = g
		change(g, func(grants []*Grant) []*Grant { return append(grants, g) })
	}
	for base, grants := range changed {
		slices.SortFunc(grants, byPrecedence)
		was.grants.set(base, grants)
	}
}

// Grants returns all grants that the limiter has, in no order, also without a rule, and after their
// end.
func (l *Limiter) Grants() iter.Seq[*Grant] {
	l.setting.Lock()
	all := slices.Collect(maps.Values(l.grants))
	l.setting.Unlock()
	return slices.Values(all)
}
