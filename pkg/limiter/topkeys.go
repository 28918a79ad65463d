package limiter

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/top"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// ErrNoTopKeys is the error of [Limiter.TopKeys] without Options.TopKeys.
var ErrNoTopKeys = errors.New("this process tracks no keys")

// TopOrder is an order of keys.
type TopOrder uint8

// The orders.
const (
	ByHits   TopOrder = iota // the keys with the most hits first
	ByDenied                 // the keys with the most denied hits first; keys without any are left out
	ByUsed                   // the keys first that have used the largest part of their limit
)

// The windows of [TopQuery].
const (
	ShortWindow = time.Minute
	LongWindow  = 10 * time.Minute
)

// TopQuery chooses keys. The zero value: the keys of all rules with the most hits in the last
// minute.
type TopQuery struct {
	Domain string        // only this domain; "" for all
	Path   string        // only rules with this Rule.Path, or "override" for overrides without a rule; "" for all
	Order  TopOrder      //
	Window time.Duration // ShortWindow or LongWindow; 0 means ShortWindow
	Most   int           // keys, at least 1; 0 means all tracked keys
}

// Top is the first keys in an order.
type Top struct {
	Keys    []TopKey
	Tracked int           // keys that are tracked now, of all rules
	Covers  time.Duration // the time that the counts cover: at most the window, and a tenth less at times
}

// TopKey is one key, and its counts in a window.
//
// The hits are the hits that requests asked for, denied ones included; probes and refunds are no
// hits. Hits from before the key was tracked may be missing: with the probability 0.95 fewer than
// HitsError and DeniedError. An error of 0 says that no hit is missing. From 262144 hits of a key
// in five seconds on Weir samples: the count then has a standard error of up to 0.2 percent.
type TopKey struct {
	Key      string // readable, see descriptors.AppendKey
	Domain   string
	Path     string            // Rule.Path, or "override"
	Rule     *descriptors.Rule // nil for an override without a rule
	Entries  []Entry           // of a descriptor that counts under the key, without the entry of a holder; nil when Cut
	Override *Override         // of the last request that made the key tracked; nil without one

	Hits, HitsError     uint64
	Denied, DeniedError uint64

	// Limit is the limit now. Used is the part of it that is used, 0 to 1. Used, Remaining and
	// ResetAfter are of now, if Current is true. Else the store did not answer, and Used and Remaining
	// are of the last decision.
	Limit      descriptors.Limit
	Used       float64
	Remaining  uint64
	ResetAfter time.Duration
	Current    bool
	Blocked    time.Duration // the wait until the end of a block, if Current is true; 0: the key is not blocked

	Cut bool // the entries are too long to be kept: Key is only their begin, and Rule and Limit are unknown
}

// TopKeys returns the first tracked keys in an order; equal ones in the order of their text. A key
// that no rule counts any more is left out. The error is [ErrNoTopKeys], or about a window that is
// not kept.
func (l *Limiter) TopKeys(ctx context.Context, q TopQuery) (Top, error) {
	if l.tracking.keys == nil {
		return Top{}, ErrNoTopKeys
	}
	var window top.Window
	switch q.Window {
	case 0, ShortWindow:
	case LongWindow:
		window = top.TenMinutes
	default:
		return Top{}, fmt.Errorf("window: %v: must be %v or %v", q.Window, ShortWindow, LongWindow)
	}
	if q.Most < 0 {
		return Top{}, fmt.Errorf("most: %d: must be at least 0", q.Most)
	}
	found, covers := l.tracking.keys.Top(window)
	out := Top{Tracked: l.tracking.keys.Tracked(), Covers: covers}
	set := l.current.Load()
	var all []candidate
	for i := range found {
		if c, ok := l.candidate(set, &found[i], q); ok {
			all = append(all, c)
		}
	}
	if q.Order == ByUsed { // by now, where the store says it, not by the last decision
		l.look(ctx, all)
	}
	slices.SortFunc(all, func(a, b candidate) int { return compareTop(q.Order, &a.TopKey, &b.TopKey) })
	if q.Most > 0 {
		all = all[:min(len(all), q.Most)]
	}
	if q.Order != ByUsed {
		l.look(ctx, all)
	}
	for i := range all {
		out.Keys = append(out.Keys, all[i].TopKey)
	}
	return out, nil
}

func compareTop(order TopOrder, a, b *TopKey) int {
	byHits := cmp.Or(cmp.Compare(b.Hits, a.Hits), cmp.Compare(a.Key, b.Key))
	switch order {
	case ByDenied:
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), byHits)
	case ByUsed:
		return cmp.Or(cmp.Compare(b.Used, a.Used), byHits)
	default:
		return byHits
	}
}

type candidate struct {
	TopKey

	probe store.Charge // Left has the source
	guard store.Charge // asks about a block; without a Key for a limit without escalate
}

// candidate finds the rule and the limit of a tracked key again, and reports whether the query is
// for the key.
func (l *Limiter) candidate(set *ruleSet, k *top.Key, q TopQuery) (c candidate, ok bool) {
	text, whole := readTracked(k.Text)
	whole = whole && !k.Cut // the cut may be right behind an entry
	if q.Domain != "" && text.domain != q.Domain || q.Order == ByDenied && k.Denied == 0 {
		return c, false
	}
	c.TopKey = TopKey{
		Domain: text.domain, Entries: text.entries, Override: text.override,
		Hits: k.Hits, HitsError: k.HitsError, Denied: k.Denied, DeniedError: k.DeniedError,
		Remaining: uint64(k.Remaining), Used: used(uint64(k.Remaining), uint64(k.Capacity)),
	}
	path := text.path
	if whole {
		found, ok := l.find(set, &text, false)
		if !ok {
			return c, false
		}
		c.Key, c.Rule, c.Limit, c.probe, c.guard = found.Key, found.Rule, found.Limit, found.probe, found.guard
		c.Remaining <<= trackedShift(c.Limit.Capacity())
		if path = overridePath; c.Rule != nil {
			path = c.Rule.Path
		}
	} else {
		c.Cut, c.Key, c.Entries = true, cutKey(&text), nil
	}
	c.Path = path
	return c, q.Path == "" || q.Path == path
}

// find finds the rule, the limit and the charge of a key again, by the rules in force. false: no
// rule counts the key any more, or a grant lets everything pass. With noGrants, grants do not
// count.
func (l *Limiter) find(set *ruleSet, text *trackedKey, noGrants bool) (c candidate, ok bool) {
	v := Verdict{noGrants: noGrants}
	r := &Request{Domain: text.domain, Descriptors: []Descriptor{{Entries: text.entries, Override: text.override}}}
	if l.charges(set, withHolders(set.rules.Domain(r.Domain), r), &v) != nil {
		return c, false
	}
	i := slices.IndexFunc(v.charges, func(c store.Charge) bool { return bytes.HasSuffix(c.Key, []byte(text.suffix)) })
	if i < 0 {
		return c, false
	}
	c.Key, c.Rule, c.Limit, c.probe = string(v.charges[i].Key), v.Statuses[0].Rule, *v.terms[i].limit, v.charges[i]
	c.probe.Hits, c.probe.Hold, c.probe.Left = 0, nil, new(store.State)
	if n := slices.IndexFunc(v.terms, func(t term) bool { return t.guards == int32(i)+1 }); n >= 0 {
		c.guard = v.charges[n]
		c.guard.Left = nil
	}
	return c, true
}

// cutKey is a text for people in place of a key whose end is not known.
func cutKey(k *trackedKey) string {
	var b strings.Builder
	b.WriteString(k.domain)
	for _, e := range k.entries {
		b.WriteString("|" + e.Key + "=" + e.Value)
	}
	return b.String() + "…"
}

func used(remaining, capacity uint64) float64 {
	if remaining >= capacity {
		return 0
	}
	return float64(capacity-remaining) / float64(capacity)
}

// maxLook is the most charges of one look into the store.
const maxLook = 100

// look asks the store for the state of keys now. If the store does not answer, the keys keep the
// values of the last decision.
func (l *Limiter) look(ctx context.Context, all []candidate) {
	var (
		which     []*candidate
		charges   []store.Charge
		decisions [maxLook + 1]algorithms.Decision
	)
	peek := func() bool {
		if err := l.store.Peek(ctx, charges, decisions[:len(charges)]); err != nil {
			return false
		}
		for i, c := range which {
			d := &decisions[i]
			if charges[i].Limit.Algorithm == algorithms.Escalation {
				c.Blocked = offensesOf(d).Blocked
				continue
			}
			c.Remaining, c.ResetAfter, c.Current = d.Remaining, d.ResetAfter, true
			c.Used = used(d.Remaining, c.Limit.Capacity())
		}
		which, charges = which[:0], charges[:0]
		return true
	}
	for i := range all {
		if c := &all[i]; !c.Cut {
			which, charges = append(which, c), append(charges, c.probe)
			if len(c.guard.Key) > 0 {
				which, charges = append(which, c), append(charges, c.guard)
			}
		}
		if len(charges) >= maxLook && !peek() {
			return
		}
	}
	if len(charges) > 0 {
		peek()
	}
}

type tracking struct {
	keys *top.Tracker // nil: nothing is tracked
}

func newTracking(keys int, balance func()) tracking {
	if keys == 0 {
		return tracking{}
	}
	return tracking{top.NewTracker(keys, balance)}
}

// balance lets the tracked keys of quiet rules stay beside the ones of busy rules.
func (l *Limiter) balance() {
	var groups []*top.Group
	var hits []uint64
	for _, c := range l.current.Load().counted {
		if more := c.counts.more.Load(); more != nil && (c.rule == nil || len(c.rule.Limits) > 0) {
			of := c.counts.read().Hits // hits without limits count under no key
			groups, hits = append(groups, &more.tracked), append(hits, of[CodeOK]+of[CodeOverLimit]+of[CodeShadowed])
		}
	}
	top.Balance(groups, hits)
}

func (t *tracking) count(r *Request, v *Verdict) {
	t.keys.Run()
	for i := range v.charges {
		c, d := &v.charges[i], &v.decisions[i]
		if v.terms[i].aside() || v.terms[i].part {
			continue
		}
		hits := c.Hits
		if c.Hold != nil {
			hits = asked(c)
		}
		capacity := c.Limit.Capacity()
		shift := trackedShift(capacity)
		hit := top.Hit{
			Hash: c.Hash, Hits: uint32(max(hits, 0)), Denied: !d.Allowed || v.offenses(i).Blocked > 0,
			Remaining: uint32(d.Remaining >> shift), Capacity: uint32(capacity >> shift),
		}
		if t.keys.Count(hit, &v.random) {
			continue
		}
		hit.Group = &v.set.countsOf(r, &v.Statuses[c.Rule]).further().tracked
		if t.keys.Wants(hit, &v.random) {
			v.values = appendTracked(v.values[:0], r, v, i)
			t.keys.Admit(hit, &v.random, v.values)
		}
	}
}

// trackedShift returns the low bits of a limit's numbers that a tracked key does not have: it has
// 32 bits of each.
func trackedShift(capacity uint64) int { return max(0, bits.Len64(capacity)-32) }

// asked returns the hits that the charge of a holder asks for: its estimate at the begin, and the
// hits above it at the end. Free hits are negative.
func asked(c *store.Charge) int64 { return c.Hold.Was.Effect(c.Hold.Phase, c.Limit, c.Hits).Hits }

// trackedKey is the text of a tracked key: all that finds the key, its rule and its limit again.
type trackedKey struct {
	domain, path string
	suffix       string // the end of the store's key, which differs between the limits of a rule
	override     *Override
	entries      []Entry
}

func appendTracked(dst []byte, r *Request, v *Verdict, i int) []byte {
	c := &v.charges[i]
	s, d := &v.Statuses[c.Rule], &r.Descriptors[c.Rule]
	dst = appendSized(dst, r.Domain)
	if s.Rule != nil {
		dst = appendSized(dst, s.Rule.Path)
	} else {
		dst = appendSized(dst, overridePath)
	}
	dst = appendSized(dst, c.Key[bytes.LastIndexByte(c.Key, '#'):])
	if o := d.Override; s.Overridden {
		dst = binary.AppendUvarint(append(dst, 1), uint64(o.Requests))
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(o.Unit)), uint64(o.Multiplier))
	} else {
		dst = append(dst, 0)
	}
	for _, e := range s.Rule.WithoutHolder(d.Entries) {
		dst = appendSized(appendSized(dst, e.Key), e.Value)
	}
	return dst
}

func appendSized[T string | []byte](dst []byte, text T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// readTracked reads the text of a key. whole is false, and there may be too few entries, when the
// end of the text was cut off.
func readTracked(text []byte) (k trackedKey, whole bool) {
	whole = true
	number := func() uint64 {
		n, size := binary.Uvarint(text)
		if size <= 0 {
			whole, text = false, nil
			return 0
		}
		text = text[size:]
		return n
	}
	sized := func() string {
		n := number()
		if n > uint64(len(text)) {
			whole, n = false, uint64(len(text))
		}
		s := string(text[:n])
		text = text[n:]
		return s
	}
	k.domain, k.path, k.suffix = sized(), sized(), sized()
	if number() == 1 {
		k.override = &Override{Requests: uint32(number()), Unit: descriptors.Unit(number()), Multiplier: uint32(number())}
	}
	for len(text) > 0 {
		k.entries = append(k.entries, Entry{Key: sized(), Value: sized()})
	}
	return k, whole
}

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
	parts := make(map[countedName][]float64)
	keys, _ := l.tracking.keys.Top(top.Minute)
	for i := range keys {
		text, _ := readTracked(keys[i].Text)
		of := countedName{text.domain, text.path}
		parts[of] = append(parts[of], used(uint64(keys[i].Remaining), uint64(keys[i].Capacity)))
	}
	var all []RuleUsed
	for _, c := range l.current.Load().counted {
		name := c.name()
		some := parts[name]
		if len(some) == 0 {
			continue
		}
		slices.Sort(some)
		rank := int(math.Ceil(0.99 * float64(len(some))))
		all = append(all, RuleUsed{name.domain, name.path, len(some), some[len(some)-1], some[rank-1]})
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
