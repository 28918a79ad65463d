package limiter

import (
	"crypto/rand"
	"math"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// holder is the part of a descriptor about a holder.
type holder struct {
	phase algorithms.HoldPhase // 0: the rule has no holders
	id    store.Holder
	hits  int64 // of the charges
}

// holder returns the holder of a descriptor, and changes the hits of the status where a holder
// gives them another meaning.
//
// Negative hits at a begin count as 0. A begin without a name holds namelessly until the hold runs
// out. An end without a name does nothing, as the end of a holder that nobody has begun, with
// negative hits.
func (v *Verdict) holder(s *DescriptorStatus, d *Descriptor) holder {
	phase, name := s.Rule.Holder(d.Entries)
	switch {
	case phase == 0:
		return holder{}
	case phase == algorithms.HoldBegin:
		s.Hits = max(s.Hits, 0)
	case name == "":
		s.Hits = 0
		return holder{phase: phase, hits: -1}
	}
	h := holder{phase: phase, hits: s.Hits}
	if name == "" {
		_, _ = rand.Read(h.id[:]) // which never fails
		return h
	}
	v.name = append(v.name[:0], name...)
	h.id = store.HolderOf(v.name)
	return h
}

// charged returns the hits that the descriptor of a holder has charged: the difference to the held
// hits, at an end. Slots that become free are no hits.
func (s *DescriptorStatus) charged() int64 {
	switch {
	case s.Hold.Phase == algorithms.HoldBegin && s.Hold.Was.Status == algorithms.HoldHeld:
		return 0
	case s.Hold.Phase == algorithms.HoldBegin:
		return s.Hits
	case s.Limit.Algorithm == algorithms.Concurrency:
		return 0
	}
	return s.Hold.Was.Effect(s.Hold.Phase, s.Limit.Limit, s.Hits).Hits
}

// holdCounts counts the holders of a rule.
type holdCounts struct {
	begun, repeated, ended, released, unseen atomic.Uint64
	estimate, cost                           atomic.Uint64 // hits
	held                                     held
}

// HoldTally is the number of holders of a rule since the start, by their first limit with holders.
type HoldTally struct {
	Begun    uint64 // begins that were admitted
	Repeated uint64 // begins of a holder that held already
	Ended    uint64 // ends of a holder that held
	Released uint64 // holders that held until an operator released them
	Unseen   uint64 // ends of a holder that was not known. Concurrency does not remember denied holders: their ends are counted here

	// Of the ended holders, by their first rate limit: the hits at the begins, and the hits at the
	// ends.
	Estimate, Cost uint64

	// Of the begun holders: the number that holds now, and the number that has run out. A holder that
	// runs out counts as held a little longer: up to a tenth of its time, and until the second call of
	// Holds. Held falls at an end whose begin another process counted, also below 0. Both are 0 if the
	// store does not tell the instants.
	Held   int64
	RanOut uint64
}

// add counts a holder, and sets Held. v is the verdict of the store.
func (c *holdCounts) add(v *Verdict, s *DescriptorStatus) {
	s.Held = s.Hold.Was.Hits
	first := s.charge
	for v.charges[first].Hold != s.Hold {
		first++
	}
	switch was := s.Hold.Was.Status; {
	case s.Hold.Phase == algorithms.HoldBegin && was == algorithms.HoldHeld:
		c.repeated.Add(1)
	case s.Hold.Phase == algorithms.HoldBegin:
		if s.Hits > 0 && !v.OverLimit && v.decisions[first].Allowed {
			s.Held = uint32(min(s.Hits, math.MaxUint32))
			c.begun.Add(1)
			if s.Hold.Now != 0 {
				c.held.begin(s.Hold.Now, s.Hold.AtMost)
			}
		}
	case was == algorithms.HoldUnknown && v.charges[first].Hits >= 0:
		c.unseen.Add(1)
	case was == algorithms.HoldHeld:
		c.ended.Add(1)
		c.held.end(s.Hold.Was)
	}
	if s.Hold.Phase != algorithms.HoldEnd {
		return
	}
	for i := first; i < s.charge+s.count; i++ {
		charge := &v.charges[i]
		if charge.Hold == nil || charge.Limit.Algorithm == algorithms.Concurrency {
			continue
		}
		if charge.Hold.Was.Status == algorithms.HoldHeld {
			c.estimate.Add(uint64(charge.Hold.Was.Hits))
			c.cost.Add(uint64(max(charge.Hits, 0)))
		}
		return
	}
}

// Holds returns the counts of the holders of the rule. now is the instant of the call.
func (c *Counts) Holds(now time.Time) HoldTally {
	held, ranOut := c.holds.held.read(now)
	return HoldTally{
		Begun: c.holds.begun.Load(), Repeated: c.holds.repeated.Load(), Ended: c.holds.ended.Load(), Unseen: c.holds.unseen.Load(),
		Released: c.holds.released.Load(), Estimate: c.holds.estimate.Load(), Cost: c.holds.cost.Load(),
		Held: held, RanOut: ranOut,
	}
}
