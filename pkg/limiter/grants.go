package limiter

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// Gives says how a grant changes a limit.
type Gives uint8

// The changes.
const (
	GivesRequests  Gives = iota + 1 // Grant.Requests and Grant.Burst per period of the limit; 0 requests block the key
	GivesFactor                     // the limit's own numbers times Grant.Factor
	GivesUnlimited                  // every request passes, and no hits are counted
	GivesAdd                        // Grant.Requests more hits in one window, beside other grants; see Limiter.TopUp
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
	Requests uint64  // of GivesRequests and GivesAdd; at most algorithms.MaxCount
	Over     uint64  // of GivesAdd: denied hits that counted beyond the limit. The limit grows by Requests and Over
	Burst    uint32  // of GivesRequests and token_bucket; 0: in proportion to the rule's
	Factor   float64 // of GivesFactor: more than 0, at most MaxFactor

	From  time.Time // of GivesAdd: the start of the window; before that the grant has no effect
	Until time.Time // from then on the grant has no effect; of GivesAdd the end of the window
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
	Before []descriptors.Limit // the limits without the grant; for GivesAdd with all other grants
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
		labels = append(labels, rule.Limits[i].Label())
	}
	if g.ofOnePeriod() && differ(rule.Limits, g) {
		return Grantable{}, fmt.Errorf("%w: limit: %q: rule %s has several such limits: must be one of %q, or give a factor",
			ErrInvalidGrant, g.Limit, rule.Path, labels)
	}
	for i := range rule.Limits {
		limit := &rule.Limits[i]
		var own descriptors.Limit // by a table
		if rule.LimitFor(i, entries, &own) {
			limit = &own
		}
		if !g.isFor(limit) {
			continue
		}
		if limit.Schedule() != nil {
			own, _ = limit.At(l.now())
			limit = &own
		}
		before, changed, err := l.with(g, rule, entries, limit)
		if err != nil {
			return Grantable{}, err
		}
		if key := string(rule.AppendKey(nil, g.Domain, entries, limit)); out.Key == "" {
			out.Key = key
		} else {
			out.Others = append(out.Others, key)
		}
		out.Before, out.Limits = append(out.Before, before), append(out.Limits, changed)
	}
	if len(out.Limits) == 0 {
		return Grantable{}, fmt.Errorf("%w: limit: %q: rule %s has the limits %q", ErrNotGrantable, g.Limit, rule.Path, labels)
	}
	return out, nil
}

// differ reports whether a grant is for limits of several labels.
func differ(limits []descriptors.Limit, g *Grant) bool {
	first := ""
	return slices.ContainsFunc(limits, func(l descriptors.Limit) bool {
		if !g.isFor(&l) {
			return false
		}
		first = cmp.Or(first, l.Label())
		return l.Label() != first
	})
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

// ofOnePeriod reports whether the grant has a number, which is for one period.
func (g *Grant) ofOnePeriod() bool {
	return g.Gives == GivesAdd || g.Gives == GivesRequests && g.Requests > 0
}

// suitsOverride reports whether a grant counts for an override of a limit of the rule.
func (g *Grant) suitsOverride(rule *descriptors.Rule, override *descriptors.Limit) bool {
	return !g.ofOnePeriod() || slices.ContainsFunc(rule.Limits, func(own descriptors.Limit) bool {
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
	case GivesUnlimited:
	case GivesRequests:
		if g.Requests > algorithms.MaxCount {
			wrong("requests: %d: must be at most %d", g.Requests, uint64(algorithms.MaxCount))
		}
	case GivesFactor:
		if !(g.Factor > 0 && g.Factor <= MaxFactor) {
			wrong("factor: %v: must be more than 0 and at most %d; 0 requests block a key", g.Factor, MaxFactor)
		}
	case GivesAdd:
		if g.Requests == 0 {
			wrong("add: 0: must be at least 1")
		}
		if max(g.Requests, g.Over) > algorithms.MaxCount {
			wrong("add: %d: must be at most %d", g.Requests, uint64(algorithms.MaxCount))
		}
	default:
		wrong("must give requests, a factor, unlimited, or hits to add")
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

func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// change returns the limit with the numbers of the grant, held within the bounds of the algorithm.
// The error says which number is out of bounds.
func (g *Grant) change(limit *descriptors.Limit) (changed descriptors.Limit, err error) {
	changed = *limit
	most, requests := limit.Most(), limit.PerPeriod()
	switch g.Gives {
	case GivesRequests:
		requests = g.Requests
		if limit.Algorithm != algorithms.TokenBucket && g.Burst != 0 {
			err = fmt.Errorf("%w: burst: %d: only token_bucket has a burst, and %s counts the key", ErrInvalidGrant, g.Burst, limit.Label())
		}
		if limit.Burst != 0 {
			changed.Burst = proportion(limit.Burst, uint32(min(g.Requests, algorithms.MaxHits)), limit.Requests)
		}
		if limit.Algorithm == algorithms.TokenBucket && g.Burst != 0 {
			changed.Burst = g.Burst
		}
	case GivesFactor:
		requests, changed.Burst = times(requests, g.Factor, limit.Algorithm.MostPerPeriod()), uint32(times(uint64(limit.Burst), g.Factor, math.MaxUint32))
	case GivesUnlimited, GivesAdd:
	}
	if requests == 0 {
		changed.Burst = 0
	}
	if requests > most {
		err = cmp.Or(err, fmt.Errorf("%w: requests: %d: must be at most %d for %s", ErrInvalidGrant, requests, most, limit.Label()))
	}
	changed.SetPerPeriod(min(requests, most))
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

// times returns n*f, rounded to the nearest number, at least 1 and at most most; 0 for n = 0. n and
// most are at most 2^53.
func times(n uint64, f float64, most uint64) uint64 {
	if n == 0 {
		return 0
	}
	return uint64(min(max(math.Round(float64(n)*f), 1), float64(most)))
}

// granted returns the grants in force for a charge under a key.
func (l *Limiter) granted(v *Verdict, s *DescriptorStatus, limit *descriptors.Limit, key []byte) inForce {
	if s.Rule == nil || v.noGrants || !v.set.grants.any() || l.options.Now == nil {
		return inForce{}
	}
	found := v.set.grants.find(limit.Base(key))
	if len(found) == 0 {
		return inForce{}
	}
	of := limit
	if !s.Overridden {
		of = nil
	}
	return forceOf(found, limit, l.options.Now(), s.Rule, of)
}

// grantShards is the number of parts of a grantTable. A change copies the parts that it is about.
const grantShards = 1024

// grantTable finds the grants of a key. Readers take no lock. One goroutine at a time may change
// the table. The rules that it was made for stay the same.
type grantTable struct {
	seed   maphash.Seed // clients cannot foresee the shard of a key
	keys   atomic.Int64 // with grants
	shards [grantShards]atomic.Pointer[keyGrants]
}

// keyGrants is the grants of keys, by descriptors.Limit.Base: at least one of each, by
// byPrecedence. A keyGrants in a table never changes.
type keyGrants map[string][]*Grant

func newGrantTable() *grantTable { return &grantTable{seed: maphash.MakeSeed()} }

func (t *grantTable) any() bool { return t.keys.Load() > 0 }

func (t *grantTable) find(base []byte) []*Grant {
	return t.load(maphash.Bytes(t.seed, base) % grantShards)[string(base)]
}

func (t *grantTable) load(shard uint64) keyGrants {
	if all := t.shards[shard].Load(); all != nil {
		return *all
	}
	return nil
}

// change puts the grants of keys in place of the earlier ones; no grants remove a key.
func (t *grantTable) change(changed keyGrants) {
	next := make(map[uint64]keyGrants) // by shard
	for base, grants := range changed {
		shard := maphash.String(t.seed, base) % grantShards
		all := next[shard]
		if all == nil {
			all = maps.Clone(t.load(shard))
			if all == nil {
				all = make(keyGrants)
			}
			next[shard] = all
		}
		slices.SortFunc(grants, byPrecedence)
		if all[base] = grants; len(grants) == 0 {
			delete(all, base)
		}
	}
	for shard, all := range next {
		more := len(all) - len(t.load(shard))
		t.shards[shard].Store(&all)
		t.keys.Add(int64(more))
	}
}

// byPrecedence sorts the grants of a key: of two grants for a limit the first one in force counts.
// Grants that add hits come last, and all of them count.
// A block of all limits comes before a grant for one limit, as it stops somebody. The order is the
// same in each process.
func byPrecedence(a, b *Grant) int {
	rank := func(g *Grant) int {
		switch {
		case g.Gives == GivesAdd:
			return 3
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
	all := make(keyGrants, len(l.grants))
	for _, g := range l.grants {
		if base, ok := baseOf(rules, g); ok {
			all[base] = append(all[base], g)
		}
	}
	t := newGrantTable()
	t.change(all)
	return t
}

// ChangeGrants ends the grants with these IDs and then puts other grants in force, each in place of
// an earlier one of the same ID. The change is complete for every request that begins after
// ChangeGrants returns. A request that runs meanwhile may see a part of the change, but of a key
// always the old grants or the new ones.
func (l *Limiter) ChangeGrants(end []string, put []*Grant) {
	l.setting.Lock()
	defer l.setting.Unlock()
	set, changed := l.current.Load(), make(keyGrants)
	change := func(g *Grant, to func(grants []*Grant) []*Grant) {
		base, ok := baseOf(set.rules, g)
		if !ok {
			return
		}
		grants, again := changed[base]
		if !again {
			grants = slices.Clone(set.grants.find([]byte(base)))
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
	set.grants.change(changed)
}

// Grants returns all grants that the limiter has, in no order, also without a rule, and after their
// end.
func (l *Limiter) Grants() iter.Seq[*Grant] {
	l.setting.Lock()
	all := slices.Collect(maps.Values(l.grants))
	l.setting.Unlock()
	return slices.Values(all)
}
