package redisstore

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// hold is the holder of a charge of a call.
type hold struct {
	store.Hold

	since        int64 // Unix microseconds: of phase release the begin that is undone, of a correction the instant of the event; 0: now
	record, book int   // places of the keys in the batch

	// From the script's answer.
	at      int64 // Unix microseconds: instant of the charge
	asked   int64 // hits of the charge
	decided added // of a list
	begun   bool  // the charge made the holder hold hits
}

// release is a phase of corrections only: a holder that has held hits since an instant is denied.
// Under Concurrency its hits are free.
const release algorithms.HoldPhase = 5

// ownHolds copies the holders of the charges.
func (c *call) ownHolds() {
	c.holds = slices.Grow(c.holds[:0], len(c.charges))[:len(c.charges)]
	for i := range c.charges {
		charge := &c.charges[i]
		c.holds[i] = hold{}
		if charge.Hold != nil {
			c.holds[i].Hold = *charge.Hold
		}
		if charge.Limit.Algorithm == algorithms.Concurrency && c.holds[i].Phase == 0 {
			c.holds[i].Phase, charge.Hits = algorithms.HoldBegin, 0 // asks
			charge.Hold = &c.holds[i].Hold
		}
		if charge.Limit.Algorithm == algorithms.Concurrency || c.holds[i].Phase > algorithms.HoldBegin {
			charge.CountRejected = false
		}
	}
	c.pointHolds()
}

// pointHolds points the charges to the call's own holders.
func (c *call) pointHolds() {
	for i := range c.holds {
		if c.charges[i].Hold != nil {
			c.charges[i].Hold = &c.holds[i].Hold
		}
	}
}

// alone reports whether a call needs a run of the script of its own. A list that gets hits back is
// written before the end of the script. If the script then fails for another call, both would be
// applied again.
func (c *call) alone() bool {
	return c.holding && slices.ContainsFunc(c.charges, func(charge store.Charge) bool {
		return charge.Hold != nil && charge.Limit.Algorithm == algorithms.SlidingWindowLog
	})
}

// lone reports whether a call is one begin or one end, under a limit without a list. Redis applies
// it at its own instant.
func (c *call) lone() bool {
	return c.holding && c.action == take && len(c.charges) == 1 && c.charges[0].Limit.Algorithm != algorithms.SlidingWindowLog &&
		(c.holds[0].Phase == algorithms.HoldBegin || c.holds[0].Phase == algorithms.HoldEnd)
}

// held reports whether charge i has a holder. A correction of the hits only has a Hold without a
// phase.
func (c *call) held(i int) bool { return c.holding && c.holds[i].Phase != 0 }

// ends reports whether charge i has a holder and is no begin.
func (c *call) ends(i int) bool { return c.held(i) && c.holds[i].Phase != algorithms.HoldBegin }

// tellHold writes the holder of charge n, as Redis found it, to the caller's charge.
func (c *call) tellHold(n int, charge *store.Charge) {
	if charge.Hold != nil {
		charge.Hold.Was, charge.Hold.Now = c.holds[n].Was, instant(uint64(c.holds[n].at))
	}
}

// placeHolds gives the keys of a call's holders places.
func (b *batch) placeHolds(c *call) {
	for i := range c.charges {
		charge, h := &c.charges[i], &c.holds[i]
		if !c.held(i) {
			continue
		}
		b.key = b.server.appendBook(b.key[:0], charge)
		h.book = b.placeOfKey()
		h.record = h.book
		if charge.Limit.Algorithm != algorithms.Concurrency {
			b.key = appendHolder(b.key, h.Holder)
			h.record = b.placeOfKey()
		}
	}
}

// appendHold adds the holder of charge i to a request.
func (c *call) appendHold(b []byte, i int) []byte {
	if !c.held(i) {
		return b
	}
	h, name := &c.holds[i], c.holds[i].Holder
	if c.charges[i].Limit.Algorithm != algorithms.Concurrency {
		binary.LittleEndian.PutUint32(name[:], rand.Uint32()) // of a new book
	}
	from := int64(0)
	if c.counters[i] {
		from = int64(window(c.charges[i].Limit.Period, c.at)) / int64(Granularity)
	}
	if c.ends(i) {
		b[16] |= isEnding
	} else {
		b[16] |= isBegun
	}
	b = append(b, byte(h.Phase))
	b = binary.LittleEndian.AppendUint32(b, uint32(h.record)+1)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.book)+1)
	atMost := min(max(h.AtMost, 0), algorithms.MaxPeriod)
	b = appendInt(b, int64((atMost+Granularity-1)/Granularity), 8)
	b = appendInt(b, h.since, 8)
	b = appendInt(b, from, 8)
	return append(b, name[:]...)
}

// readList reads the decision about the list of charge i, and the hits that a reservation has
// added.
func (c *call) readList(i int, r *reader) (in added) {
	if c.holding {
		return c.holds[i].decided // which playHolds has read
	}
	c.decisions[i], in = r.decision()
	return in
}

// playHolds reads the holders of a transaction, and applies all charges of holders but the begins.
// Afterwards each of these charges is a probe.
func (b *batch) playHolds(c *call, r *reader) error {
	for i := range c.charges {
		h := &c.holds[i]
		if !c.charges[i].Limit.Algorithm.HasState() {
			c.decisions[i], h.decided = r.decision()
		}
		if c.held(i) {
			h.read(r)
		}
	}
	for i := range c.charges {
		charge, h := &c.charges[i], &c.holds[i]
		h.asked = charge.Hits
		if !c.held(i) {
			continue
		}
		e := h.Was.Effect(h.Phase, charge.Limit, charge.Hits)
		charge.Hits = e.Hits
		if !c.ends(i) {
			charge.CountRejected = charge.CountRejected && !e.Forced
			continue
		}
		charge.Hits = 0
		if !charge.Limit.Algorithm.HasState() {
			continue
		}
		k, err := b.state(c, i)
		if err != nil {
			return err
		}
		was := *k
		c.decisions[i] = c.force(i, k, e)
		if c.action == peek {
			*k = was
		}
	}
	return nil
}

// read reads a holder.
func (h *hold) read(r *reader) {
	h.Was = algorithms.Hold{
		Status: algorithms.HoldStatus(r.uint(1)), Hits: uint32(r.uint(4)), At: instant(r.uint(8)), Until: instant(r.uint(8)),
	}
	h.at = int64(r.uint(8))
}

// force applies an effect to the state of the key of charge i, and returns the decision, which
// allows the charge.
func (c *call) force(i int, k *kept, e algorithms.Effect) algorithms.Decision {
	l, now := c.charges[i].Limit, c.now
	if c.counters[i] {
		now = k.enter(l, c.at, now)
	}
	if e.Hits < 0 {
		k.state, k.limit = algorithms.GiveBack(k.limit, l, k.state, e.Charged, now, uint32(-e.Hits))
	}
	d := k.take(l, now, max(e.Hits, 0), true)
	d.Allowed, d.RetryAfter = true, 0
	return d
}

// free allows the begin of a holder that holds already.
func (c *call) free(i int) {
	if c.held(i) && c.holds[i].Was.Status == algorithms.HoldHeld {
		c.decisions[i].Allowed, c.decisions[i].RetryAfter = true, 0
	}
}

// begun reports whether charge i of a reservation made a holder hold hits. Call findNew before.
func (c *call) begun(i int) bool { return c.holding && c.holds[i].begun }

// findNew notes which charges of a reservation made a holder hold hits.
func (c *call) findNew() {
	for i := range c.holds {
		h := &c.holds[i]
		h.begun = c.held(i) && !c.ends(i) && h.Was.Status != algorithms.HoldHeld && c.charges[i].Hits > 0 && c.allowed(i)
	}
}

// release adds to a fix of a request that is denied that the new holders are denied, and probes of
// their slots. A release has the hits that the fix gives back: if the holder has ended meanwhile,
// they have come back already.
func (c *call) release(fix *call, v verdict) {
	if v != isDenied || !c.holding {
		return
	}
	freed := false
	for i := range c.holds {
		if c.holds[i].begun {
			charge := c.charges[i]
			if charge.Rule = i; c.counts(i) || charge.Limit.Algorithm == algorithms.Concurrency {
				charge.Hits = 0
			}
			fix.add(&charge)
			fix.charges[len(fix.charges)-1].Hold = &store.Hold{Phase: release, Holder: c.holds[i].Holder, AtMost: c.holds[i].AtMost}
			fix.corrections = append(fix.corrections, nil)
			freed = freed || charge.Limit.Algorithm == algorithms.Concurrency
		}
	}
	if !freed {
		return
	}
	for i := range c.charges {
		if charge := c.charges[i]; charge.Limit.Algorithm == algorithms.Concurrency && !c.ends(i) {
			charge.Hits, charge.Rule, charge.Hold = 0, i, nil
			fix.add(&charge)
			fix.corrections = append(fix.corrections, nil)
		}
	}
}

// nameReleases tells a fix which begins it undoes. Call it after own.
func (c *call) nameReleases(fix *call) {
	for n := range fix.holds {
		if h := &fix.holds[n]; h.Phase == release {
			h.since = c.holds[fix.charges[n].Rule].at
		}
	}
}

// withoutHolder returns the Hold of a correction of the hits only. A Hold without a phase still
// decides on the name of a counter in a cluster.
func withoutHolder(h *store.Hold) *store.Hold {
	if h == nil {
		return nil
	}
	return new(store.Hold)
}
