package store

import (
	"crypto/sha256"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Holder names a holder: the first 128 bits of the SHA-256 of its name. Among n names two are the
// same with a probability of about n²/2^129: 1.5e-27 for a million.
type Holder [16]byte

// HolderOf returns the holder of a name.
func HolderOf(name []byte) Holder {
	sum := sha256.Sum256(name)
	return Holder(sum[:16])
}

// Hold makes a charge the begin or the end of a holder. A holder belongs to one state: the same
// holder under another key, algorithm or period is another one. algorithms.Hold has the rules.
//
// The charge of a begin is admitted or denied as others are. The holder holds the hits if the
// charge is allowed and the request is admitted; else the holder is denied. The charge of any other
// phase is always allowed, has no effect on the verdict, and is applied also when the request is
// denied. A transaction applies these charges first, in order; then it decides the rest. Mode and
// CountRejected mean nothing to them.
//
// A charge of HoldPair is the end of its holder if the holder holds under any charge of HoldPair of
// the transaction. Else it begins the holder with Estimate hits. The store says which it was:
// Phase becomes HoldEnd, or stays and Hits of the charge become Estimate. Where a store fails, both
// stay as they are.
//
// Peek evaluates a charge with a holder, and remembers nothing. Reset forgets all holders of a
// state.
type Hold struct {
	Phase  algorithms.HoldPhase
	Holder Holder

	// Estimate is the hits of a charge of HoldPair that begins its holder. Hits of the charge are
	// the cost, if it ends the holder.
	Estimate uint32

	AtMost time.Duration // from the begin on, at least a millisecond: the holder is then forgotten; held hits of Concurrency are free

	// GivesBack says that the hits of a begin come back when AtMost is over without an end. The
	// hits come back once, as algorithms.GiveBack has it; under Concurrency in any case. The next
	// charge or peek of the state with GivesBack finds them back. Of more than 64 holders that run
	// out at once, some may come back at a later one.
	GivesBack bool

	// Was receives the live hold as the charge found it, after a Take or a Peek. A store that
	// cannot tell leaves the zero value.
	Was algorithms.Hold

	// Now receives the instant of a begin by the store's clock, after a Take. A store that cannot
	// tell, or has no room for the holder, leaves the zero value.
	Now algorithms.Instant
}

// IsPair reports whether the charge is of HoldPair: the store has not made it a begin or an end.
func (c *Charge) IsPair() bool { return c.Hold != nil && c.Hold.Phase == algorithms.HoldPair }

// IsEnd reports whether the charge ends a holder, or repairs one. Such a charge is never denied.
func (c *Charge) IsEnd() bool { return c.Hold != nil && !c.Hold.Phase.Begins() }

// Pair makes a charge of HoldPair the end or the begin of its holder. Pair does nothing to any
// other charge. Of a begin, the hits become the estimate.
func (c *Charge) Pair(ends bool) {
	switch {
	case !c.IsPair():
	case ends:
		c.Hold.Phase = algorithms.HoldEnd
	default:
		c.Hits = int64(c.Hold.Estimate)
	}
}

// Pairs finds the ends among the charges of HoldPair of a transaction. The zero value is ready, and
// may be used again.
type Pairs struct{ held map[Holder]bool }

// End makes each charge of HoldPair an end whose holder holds under one of these charges. holds
// reports whether the holder of a charge holds under that charge.
func (p *Pairs) End(charges []Charge, holds func(i int) bool) {
	clear(p.held)
	for i := range charges {
		if c := &charges[i]; c.IsPair() && holds(i) {
			if p.held == nil {
				p.held = make(map[Holder]bool)
			}
			p.held[c.Hold.Holder] = true
		}
	}
	if len(p.held) == 0 {
		return
	}
	for i := range charges {
		if c := &charges[i]; c.Hold != nil && p.held[c.Hold.Holder] {
			c.Pair(true)
		}
	}
}

// Held is a holder that holds hits.
type Held struct {
	Holder Holder
	Hits   uint32
	At     algorithms.Instant // of the begin
	Until  algorithms.Instant // at the latest
}

// Holds reports whether a charge of a transaction has a holder.
func Holds(charges []Charge) bool {
	for i := range charges {
		if charges[i].Hold != nil {
			return true
		}
	}
	return false
}
