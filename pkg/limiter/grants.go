package limiter

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// Gives says how a grant changes a limit.
type Gives uint8

// The changes.
const (
	GivesRequests  Gives = iota + 1 // Grant.Requests and Grant.Burst per period of the limit; 0 requests block the key
	GivesFactor                     // the limit's own numbers times Grant.Factor
	GivesUnlimited                  // every request passes, and no hits are counted
)

// Bounds of a grant.
const (
	MaxFactor      = 1_000_000                 // Grant.Factor
	MaxGrantKey    = 2048                      // bytes of Domain, Entries and Limit
	MaxGrantReason = 500                       // bytes
	MaxGrantBy     = 200                       // bytes
	MaxGrantTime   = 10 * 365 * 24 * time.Hour // from the instant at which it is given until Until
)

// Grant is another limit for one key of one rule, until an instant. A grant that a limiter has must
// not change.
//
// A grant is for a key, and the rule of the key may change. The grant then changes the numbers of
// the new rule. The state of the key goes on under the new numbers, as after a change of the rule.
// Algorithm, period, shadow and quota mode stay the rule's. An override that comes with a request
// has a block, a factor or an unlimited grant too. A number is per period of the rule, so it
// replaces only an override of such a period.
type Grant struct {
	ID      string // unique; not empty
	Domain  string
	Entries []Entry // of a descriptor that counts under the key, with or without the entry that names a holder
	Limit   string  // the name or the label of one limit of the rule, see descriptors.Limit.Label; "" for all its limits

	Gives    Gives
	Requests uint32  // of GivesRequests
	Burst    uint32  // of GivesRequests and token_bucket; 0: in proportion to the rule's
	Factor   float64 // of GivesFactor: more than 0, at most MaxFactor

	Until time.Time // from then on the grant has no effect
	Given time.Time // of two grants for the same limit, the later one counts

	// For people. Decisions do not depend on these.
	Reason, By string
	Rule       string // the path of the rule that the grant was given for
}

// The errors about grants that other errors wrap.
var (
	ErrNotGrantable  = errors.New("there is no limit to change")              // for the entries and the limit of a grant
	ErrInvalidGrant  = errors.New("grant")                                    // with the number, text or time that is out of bounds
	ErrUnknownGrant  = errors.New("there is no such grant")                   // of an ID
	ErrTooManyGrants = errors.New("there are as many grants as there may be") // of all keys
)

// Grantable is the limits that a grant changes.
type Grantable struct {
	Rule   *descriptors.Rule
	Key    string              // of the first of the limits
	Others []string            // the keys of the other limits
	Limits []descriptors.Limit // with the numbers of the grant; the rule's own with GivesUnlimited
}

// Grantable returns the limits that a grant would change under the rules in force. The error wraps
// [ErrNotGrantable] when no rule with a limit matches the entries, or when no limit of the rule has
// the grant's Limit. Other errors wrap [ErrInvalidGrant].
func (l *Limiter) Grantable(g *Grant) (Grantable, error) {
	rule, entries := target(l.current.Load().rules, g)
	if rule == nil && l.current.Load().rules.Domain(g.Domain) == nil {
		return Grantable{}, fmt.Errorf("%w: domain %q has no rules", ErrNotGrantable, g.Domain)
	}
	if rule == nil {
		return Grantable{}, fmt.Errorf("%w: no rule with a limit matches these entries", ErrNotGrantable)
	}
	out := Grantable{Rule: rule}
	var labels []string
	for i := range rule.Limits {
		limit := &rule.Limits[i]
		var own descriptors.Limit // by a table
		if rule.LimitFor(i, entries, &own) {
			limit = &own
		}
		labels = append(labels, limit.Label())
		if !g.isFor(limit) {
			continue
		}
		changed, err := g.change(limit, l.options.MaxLogEntries)
		if err != nil {
			return Grantable{}, err
		}
		if key := string(rule.AppendKey(nil, g.Domain, entries, limit)); out.Key == "" {
			out.Key = key
		} else {
			out.Others = append(out.Others, key)
		}
		out.Limits = append(out.Limits, changed)
	}
	if len(out.Limits) == 0 {
		return Grantable{}, fmt.Errorf("%w: limit: %q: rule %s has the limits %q", ErrNotGrantable, g.Limit, rule.Path, labels)
	}
	if g.Gives == GivesRequests && g.Requests > 0 && differ(out.Limits) {
		return Grantable{}, fmt.Errorf("%w: limit: %q: rule %s has several such limits: must be one of %q, or give a factor",
			ErrInvalidGrant, g.Limit, rule.Path, labels)
	}
	return out, nil
}

// differ reports whether one number cannot be meant for all of the limits.
func differ(limits []descriptors.Limit) bool {
	return slices.ContainsFunc(limits, func(l descriptors.Limit) bool { return l.Label() != limits[0].Label() })
}

// target returns the rule with limits that counts the entries of a grant, nil for none, and the
// entries without a holder.
func target(rules *descriptors.Rules, g *Grant) (*descriptors.Rule, []Entry) {
	d := rules.Domain(g.Domain)
	if d == nil || len(g.Entries) == 0 {
		return nil, nil
	}
	rule := d.Match(g.Entries)
	if rule == nil || rule.Holds() {
		if holds := d.MatchHolders(g.Entries); holds != nil {
			rule = holds
		}
	}
	if rule == nil {
		rule = d.Default
	}
	if rule == nil || rule.Unlimited || len(rule.Limits) == 0 {
		return nil, nil
	}
	return rule, rule.WithoutHolder(g.Entries)
}

func (g *Grant) isFor(limit *descriptors.Limit) bool {
	return g.Limit == "" || g.Limit == limit.Name || g.Limit == limit.Label()
}

// suitsOverride reports whether a grant counts for an override of a limit of the rule.
func (g *Grant) suitsOverride(rule *descriptors.Rule, override *descriptors.Limit) bool {
	return g.Gives != GivesRequests || g.Requests == 0 || slices.ContainsFunc(rule.Limits, func(own descriptors.Limit) bool {
		return own.Period == override.Period && g.isFor(&own)
	})
}

// Validate returns all mistakes in a grant that is given at an instant, joined, or nil. The errors
// wrap [ErrInvalidGrant].
func (g *Grant) Validate(now time.Time) error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalidGrant}, args...)...))
	}
	if g.Domain == "" {
		wrong("domain: must not be empty")
	}
	if len(g.Entries) == 0 {
		wrong("entries: must not be empty")
	}
	size := len(g.Domain) + len(g.Limit)
	for _, e := range g.Entries {
		if size += len(e.Key) + len(e.Value); e.Key == "" {
			wrong("entries: a key is empty, must not be")
		}
	}
	if size > MaxGrantKey {
		wrong("domain, entries and limit: %d bytes, must be at most %d together", size, MaxGrantKey)
	}
	switch g.Gives {
	case GivesRequests, GivesUnlimited:
	case GivesFactor:
		if !(g.Factor > 0 && g.Factor <= MaxFactor) {
			wrong("factor: %v: must be more than 0 and at most %d; 0 requests block a key", g.Factor, MaxFactor)
		}
	default:
		wrong("must give requests, a factor, or unlimited")
	}
	if g.Burst != 0 && (g.Gives != GivesRequests || g.Requests == 0) {
		wrong("burst: %d: goes with requests only, and not with a block", g.Burst)
	}
	if !g.Until.After(now) || g.Until.Sub(now) > MaxGrantTime {
		wrong("until: %s: must be later than now (%s), and at most 10 years later",
			g.Until.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	if n := len(g.Reason); n == 0 || n > MaxGrantReason {
		wrong("reason: %d bytes, must be 1 to %d", n, MaxGrantReason)
	}
	if n := len(g.By); n > MaxGrantBy {
		wrong("by: %d bytes, must be at most %d", n, MaxGrantBy)
	}
	if !printable(g.Reason) || !printable(g.By) {
		wrong("reason and by: must have printable characters and spaces only")
	}
	return errors.Join(errs...)
}

// printable reports whether a text has no line breaks, no control characters, and no characters
// that change how others are shown.
func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// change returns the limit with the numbers of the grant, held within the bounds of the algorithm.
// The error says which number is out of bounds.
func (g *Grant) change(limit *descriptors.Limit, maxLogEntries uint32) (changed descriptors.Limit, err error) {
	changed = *limit
	most := uint32(math.MaxUint32)
	switch limit.Algorithm {
	case algorithms.SlidingWindowLog:
		most = maxLogEntries
	case algorithms.TokenBucketInteger:
		most = uint32(min(uint64(limit.Period), math.MaxUint32))
	default:
	}
	switch g.Gives {
	case GivesRequests:
		changed.Requests = g.Requests
		if limit.Algorithm != algorithms.TokenBucket && g.Burst != 0 {
			err = fmt.Errorf("%w: burst: %d: only token_bucket has a burst, and %s counts the key", ErrInvalidGrant, g.Burst, limit.Label())
		}
		if limit.Burst != 0 {
			changed.Burst = proportion(limit.Burst, g.Requests, limit.Requests)
		}
		if limit.Algorithm == algorithms.TokenBucket && g.Burst != 0 {
			changed.Burst = g.Burst
		}
	case GivesFactor:
		changed.Requests, changed.Burst = times(limit.Requests, g.Factor), times(limit.Burst, g.Factor)
	case GivesUnlimited:
	}
	if changed.Requests == 0 {
		changed.Burst = 0
	}
	if changed.Requests > most {
		err = cmp.Or(err, fmt.Errorf("%w: requests: %d: must be at most %d for %s", ErrInvalidGrant, changed.Requests, most, limit.Label()))
		changed.Requests = most
	}
	return changed, err
}

// proportion returns n*x/y, rounded to the nearest number, at least 1 and at most the largest one;
// x for y = 0.
func proportion(n, x, y uint32) uint32 {
	if y == 0 {
		return x
	}
	quotient := (uint64(n)*uint64(x) + uint64(y)/2) / uint64(y) // less than 2^64
	return uint32(min(max(quotient, 1), math.MaxUint32))
}

// times returns n*f, rounded to the nearest number, at least 1 and at most the largest one; 0 for n
// = 0.
func times(n uint32, f float64) uint32 {
	if n == 0 {
		return 0
	}
	return uint32(min(max(math.Round(float64(n)*f), 1), math.MaxUint32))
}

// granted returns the grant in force for a charge under a key, or nil.
func (l *Limiter) granted(set *ruleSet, limit *descriptors.Limit, key []byte) *Grant {
	found := set.grants.find(limit.Base(key))
	if found == nil || l.options.Now == nil {
		return nil
	}
	now := l.options.Now()
	for _, g := range found.grants {
		if g.isFor(limit) && now.Before(g.Until) {
			return g
		}
	}
	return nil
}

// addGranted adds a charge of descriptor i under the numbers of a grant, and no charge where the
// grant lets everything pass. The end of a holder then costs nothing, and gives back the held hits.
func (l *Limiter) addGranted(
	v *Verdict, i int, limit *descriptors.Limit, g *Grant, key []byte, mode store.Mode, holder holder,
) {
	s := &v.Statuses[i]
	if s.Grant == nil {
		s.Grant = g
	}
	if g.Gives == GivesUnlimited {
		if holder.phase != algorithms.HoldEnd || limit.AtMost == 0 {
			return
		}
		holder.hits = min(holder.hits, 0)
	} else {
		changed, _ := g.change(limit, l.options.MaxLogEntries) // within the bounds, also after a change of the rule
		v.limits = append(v.limits, changed)
		limit = &v.limits[len(v.limits)-1]
	}
	for len(v.granted) < len(v.charges) {
		v.granted = append(v.granted, nil)
	}
	v.granted = append(v.granted, g)
	l.add(v, i, limit, key, mode, holder)
}

func (v *Verdict) grantOf(n int) *Grant {
	if n < len(v.granted) {
		return v.granted[n]
	}
	return nil
}

// counted ends the charges of descriptor i. A quota without a charge, because of a grant, asks
// about 0 hits: it is a quota with room.
func (l *Limiter) counted(r *Request, i int, v *Verdict, mode store.Mode) {
	s := &v.Statuses[i]
	if s.count = len(v.charges) - s.charge; s.count > 0 {
		return
	}
	if s.Grant == nil {
		s.Outcome = Replaced
		return
	}
	s.Outcome, s.Limit = Unlimited, nil
	if mode == store.Quota || mode == store.ShadowQuota {
		limit, from := &s.Rule.Limits[0], len(v.keys)
		v.keys = s.Rule.AppendKey(v.keys, r.Domain, r.Descriptors[i].Entries, limit)
		v.charges = append(v.charges, store.Charge{Key: v.keys[from:], Limit: limit.Limit, Rule: i, Mode: store.ShadowQuota})
		v.charged = append(v.charged, limit)
	}
}

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

const fewestPlaces = 16

func newGrantTable() *grantTable {
	t := &grantTable{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	t.resize(fewestPlaces)
	return t
}

// any reports whether there are grants at all.
func (t *grantTable) any() bool { return t.entries.Load() > 0 }

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
