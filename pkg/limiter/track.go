package limiter

import (
	"bytes"
	"encoding/binary"

	"github.com/weirproxy/weir/internal/top"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// tracking is the keys with the most hits, see [Limiter.TopKeys].
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
	add := func(c *Counts) {
		of := c.read().Hits // hits without limits count under no key
		groups, hits = append(groups, &c.tracked), append(hits, of[CodeOK]+of[CodeOverLimit]+of[CodeShadowed])
	}
	set := l.current.Load()
	seen := make(map[*Counts]bool, len(set.counts)) // rules with equal paths share counts
	for _, r := range set.rules.All() {
		if c := set.counts[r.ID]; len(r.Limits) > 0 && !seen[c] {
			seen[c] = true
			add(c)
		}
	}
	for _, c := range set.overrides {
		add(c)
	}
	top.Balance(groups, hits)
}

// count counts the charges of a request that the store has decided.
func (t *tracking) count(r *Request, v *Verdict) {
	t.keys.Run()
	for i := range v.charges {
		c, d := &v.charges[i], &v.decisions[i]
		hits := c.Hits
		if c.Hold != nil {
			hits = asked(c)
		}
		hit := top.Hit{Hash: c.Hash, Hits: uint32(max(hits, 0)), Denied: !d.Allowed, Remaining: d.Remaining, Capacity: c.Limit.Capacity()}
		if t.keys.Count(hit, &v.random) {
			continue
		}
		hit.Group = &v.set.countsOf(r, &v.Statuses[c.Rule]).tracked
		if t.keys.Wants(hit, &v.random) {
			v.values = appendTracked(v.values[:0], r, v, i)
			t.keys.Admit(hit, &v.random, v.values)
		}
	}
}

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

// appendTracked appends the text of charge i.
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
