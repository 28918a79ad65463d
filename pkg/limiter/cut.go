package limiter

import (
	"bytes"
	"context"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// An estimate above the capacity of its limit is cut to the capacity: the request passes when the
// key has all of its limit. The end of the request charges the true cost. While the limit gains
// hits, several such requests could pass before the first one ends. So each takes the one slot of
// its key.

// cuts reports whether the hits of a begin are an estimate that its limit never has.
func cuts(c *store.Charge) bool {
	return c.Hold != nil && c.Hold.Phase.Begins() && c.Limit.Algorithm != algorithms.Concurrency &&
		c.Limit.Requests > 0 && estimateOf(c) > int64(c.Limit.Capacity())
}

// estimateOf returns the hits that the charge of a begin holds.
func estimateOf(c *store.Charge) int64 {
	if c.IsPair() {
		return int64(c.Hold.Estimate)
	}
	return c.Hits
}

// slotSuffix makes the key of a slot from the key of its limit.
const slotSuffix = "/cut"

// slot returns the charge of the slot of a charge with a holder, but for its Hold.
func (v *Verdict) slot(c *store.Charge) store.Charge {
	from := len(v.keys)
	v.keys = append(append(v.keys, c.Key...), slotSuffix...)
	key := v.keys[from:]
	return store.Charge{
		Key: key, Limit: algorithms.Limit{Algorithm: algorithms.Concurrency, Requests: 1}, Hits: 1,
		Rule: c.Rule, Mode: c.Mode, OnError: c.OnError, Exact: true, Hash: store.HashOf(key),
	}
}

// cut cuts the estimate of the last charge, and adds the charge of its slot.
func (v *Verdict) cut(limit *descriptors.Limit) {
	n := len(v.charges) - 1
	c, t := &v.charges[n], &v.terms[n]
	v.cuts = true
	estimate := uint32(estimateOf(c))
	t.hits = int64(c.Limit.Capacity())
	if c.Hold.Estimate = uint32(t.hits); !c.IsPair() {
		c.Hits = t.hits // of a pair, the cost at its end
	}
	slot := v.slot(c)
	v.parts.holds = append(v.parts.holds, *c.Hold)
	slot.Hold = &v.parts.holds[len(v.parts.holds)-1]
	slot.Hold.Estimate = uint32(slot.Hits)
	v.limits = append(v.limits, descriptors.Limit{
		Limit: slot.Limit, Name: limit.Name, AtMost: limit.AtMost, OnStoreError: limit.OnStoreError, Sharing: descriptors.SharingExact,
	})
	v.charges = append(v.charges, slot)
	v.terms = append(v.terms, term{limit: &v.limits[len(v.limits)-1], hits: 1, hold: int32(len(v.parts.holds)), cut: estimate})
}

// passSlots frees the slots of ends whose keys have a begin in the same request that takes one.
// Ends are the first charges of a transaction.
func (v *Verdict) passSlots() {
	all := len(v.charges)
	for n := range all {
		end := &v.charges[n]
		if end.Hold == nil || end.Hold.Phase != algorithms.HoldEnd {
			continue
		}
		for i := range all {
			if v.terms[i].cut == 0 || end.Hash != v.charges[i-1].Hash || !bytes.Equal(end.Key, v.charges[i-1].Key) {
				continue
			}
			slot := v.slot(end)
			v.parts.holds = append(v.parts.holds, *end.Hold)
			slot.Hits, slot.Hold = 0, &v.parts.holds[len(v.parts.holds)-1]
			v.charges = append(v.charges, slot)
			v.terms = append(v.terms, term{limit: v.terms[i].limit, hold: int32(len(v.parts.holds)), frees: true})
			break // once, for all begins of the key
		}
	}
}

// waitForSlots makes the wait for a slot that is taken the wait for its limit, at least a second.
// An end usually frees the slot long before its at_most.
func (v *Verdict) waitForSlots() {
	for i := range v.charges {
		if d := &v.decisions[i]; v.terms[i].cut > 0 && !d.Allowed {
			d.RetryAfter = min(d.RetryAfter, max(v.decisions[i-1].RetryAfter, time.Second))
		}
	}
}

// frees makes the next transaction of v free slots, and reports whether there are any. An end frees
// the slot of its holder, unless the holder has held less than the limit, or was denied. A begin
// frees its slot again if it holds nothing new: as a repeat, or denied while its request passes.
func (v *Verdict) frees() bool {
	if len(v.parts.holds) == 0 || v.choice.freed {
		return false
	}
	c := &v.choice
	c.charges, c.index, c.holds, c.freed, c.late = c.charges[:0], c.index[:0], c.holds[:0], true, false
	for i := range v.charges {
		charge, t := &v.charges[i], &v.terms[i]
		if t.hold <= 0 || t.cut > 0 || charge.Limit.Algorithm == algorithms.Concurrency {
			continue
		}
		h := &v.parts.holds[t.hold-1]
		phase := h.Phase
		switch {
		case phase.Begins():
			if i+1 == len(v.charges) || v.terms[i+1].cut == 0 || !v.slotOnly(i) {
				continue
			}
			phase = algorithms.HoldEnd
		case charge.Hold == nil: // an end without a price
		case h.Holder == store.Holder{}, h.Was.Status == algorithms.HoldDenied:
			continue
		case h.Was.Status == algorithms.HoldHeld && uint64(h.Was.Hits) < charge.Limit.Capacity():
			continue
		}
		slot := v.slot(charge)
		slot.Hits = 0
		c.charges, c.holds = append(c.charges, slot), append(c.holds, store.Hold{Phase: phase, Holder: h.Holder, AtMost: h.AtMost})
	}
	for i := range c.charges {
		c.charges[i].Hold = &c.holds[i]
	}
	v.teachPairs()
	c.room()
	return len(c.charges) > 0
}

// slotOnly reports whether begin i, after a cut, has its slot and holds nothing new.
func (v *Verdict) slotOnly(i int) bool {
	begin, slot := v.charges[i].Hold, v.charges[i+1].Hold
	took := slot != nil && slot.Was.Status != algorithms.HoldHeld && v.decisions[i+1].Allowed && v.choice.admitted
	return took && (begin == nil || begin.Was.Status == algorithms.HoldHeld || !v.decisions[i].Allowed)
}

// late reports whether a transaction that has failed frees slots, and goes to the store once more.
// Then the end of the request's context does not matter: the store bounds its waits itself.
func (v *Verdict) late() bool {
	again := v.choice.freed && !v.choice.late
	v.choice.late = again
	return again
}

// within returns the context of a further transaction.
func (c *choice) within(ctx context.Context) context.Context {
	if c.late {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// further returns the error of the request for an error of a further transaction. A slot that was
// not freed is free at its at_most. An offense that was not told does not count.
func (v *Verdict) further(err error) error {
	if v.choice.freed || v.choice.telling {
		return nil
	}
	return err
}

// takeFurther takes the next transaction of v.
func (l *Limiter) takeFurther(ctx context.Context, v *Verdict) error {
	c := &v.choice
	_, err := l.take(ctx, v, c.charges, c.decisions)
	if err != nil && v.late() {
		_, err = l.take(c.within(ctx), v, c.charges, c.decisions)
	}
	return err
}

// noticeBegins counts the estimates of an admitted begin that were cut. A begin that was cut and a
// begin without a price get a notice.
func (l *Limiter) noticeBegins(r *Request, v *Verdict, s *DescriptorStatus, c *Counts) {
	for i := s.charge; i < s.charge+s.count; i++ {
		charge := &v.charges[i]
		switch {
		case charge.Hold == nil || !charge.Hold.Phase.Begins():
		case v.unpriced(i):
			usage, _ := descriptors.ParseUsage(s.Rule.Usage(r.Descriptors[charge.Rule].Entries))
			l.giveBegin(r, v, i, Notice{Model: usage.Model})
		case i+1 < s.charge+s.count && v.terms[i+1].cut > 0 && !v.OverLimit && v.decisions[i].Allowed &&
			charge.Hold.Was.Status != algorithms.HoldHeld:
			c.further().holds.cut.Add(1)
			l.giveBegin(r, v, i, Notice{Estimate: uint64(v.terms[i+1].cut), Of: uint64(v.terms[i].hits)})
		}
	}
}

// giveBegin hands over a notice about charge i, which is a begin.
func (l *Limiter) giveBegin(r *Request, v *Verdict, i int, of Notice) {
	if l.options.OnNotice == nil {
		return
	}
	n, charge := of, &v.charges[i] // a copy, so that only a notice that is given takes memory
	n.Domain, n.Rule, n.Key, n.Limit = r.Domain, v.Statuses[charge.Rule].Rule, string(charge.Key), *v.terms[i].limit
	l.options.OnNotice(&n)
}
