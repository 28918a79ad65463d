package algorithms

import (
	"math"
	"time"
)

// Hold is the memory of one holder under one limit: a request with a name that holds hits from its
// begin to its end. The zero value is a holder that is not known.
type Hold struct {
	Status HoldStatus
	Hits   uint32  // held, of HoldHeld; else 0
	At     Instant // of the begin, of HoldHeld: the hits were charged then
	Until  Instant // from this instant on the holder is not known
}

// HoldStatus is the last event in the life of a holder.
type HoldStatus uint8

// The statuses. A store may forget a denied or an ended holder sooner than Until; both only protect
// against repeats.
const (
	HoldUnknown HoldStatus = iota
	HoldHeld               // the begin was admitted
	HoldDenied             // the begin was denied
	HoldEnded              // the end has come
)

// HoldPhase is a point in the life of a holder at which a charge comes. The numbers may be stored
// and never change.
type HoldPhase uint8

// The phases. HoldBegun and HoldCancel repair a store that did not answer in time; a request has
// the others.
const (
	HoldBegin  HoldPhase = iota + 1 // asks for hits, and holds the hits if the request is admitted
	HoldEnd                         // says the true cost
	HoldBegun                       // a begin that was admitted elsewhere: the hits are charged, and may exceed the limit
	HoldCancel                      // ends a holder that holds, at no cost; does nothing to any other
)

// HoldPair is the end of a holder that holds, and the begin of any other. A store makes it HoldEnd,
// or leaves it as a begin. Such a begin holds also 0 hits, but for Concurrency. So the next charge
// of the holder is its end. 5 is a phase of package redisstore.
const HoldPair HoldPhase = 6

// Begins reports whether a charge of the phase begins a holder: a HoldPair does until a store has
// made it an end.
func (p HoldPhase) Begins() bool { return p == HoldBegin || p == HoldPair }

// Effect is the work of a charge with a holder on the key of its limit.
type Effect struct {
	Hits    int64   // to take; negative hits are given back
	Forced  bool    // take the hits even beyond the limit, see Owe, and allow the charge
	Charged Instant // of negative hits: the instant at which the hits were taken, see GiveBack
}

// Excess returns the treatment of the hits that do not fit: forced hits are owed.
func (e Effect) Excess(countRejected bool) Excess {
	if e.Forced {
		return Owe
	}
	return Counting(countRejected)
}

// Live returns the hold as now finds it: the zero value from Until on.
func (h Hold) Live(now Instant) Hold {
	if h.Until <= now {
		return Hold{}
	}
	return h
}

// Effect returns the work of a charge of the phase with these hits at instant now, for a holder
// whose live hold is h.
//
// A begin takes its hits, and nothing if the holder holds already. An end takes the difference
// between its hits and the held hits. The end of a holder that is not known takes all hits under a
// rate limit. An end with negative hits counts as an end with 0, and does nothing to a holder that
// is not known. Under Concurrency an end gives the held hits back, and its own hits mean nothing.
func (h Hold) Effect(p HoldPhase, l Limit, hits int64) Effect {
	hits = min(max(hits, -MaxHits), MaxHits)
	held := h.Status == HoldHeld
	switch {
	case p.Begins() && held:
		return Effect{Forced: true}
	case p.Begins():
		return Effect{Hits: max(hits, 0)}
	case p == HoldBegun && !held && h.Status != HoldEnded:
		return Effect{Hits: max(hits, 0), Forced: true}
	case p == HoldEnd && !held && l.Algorithm != Concurrency && h.Status == HoldUnknown:
		return Effect{Hits: max(hits, 0), Forced: true}
	case p == HoldCancel && held, p == HoldEnd && held && l.Algorithm == Concurrency:
		return Effect{Hits: -int64(h.Hits), Forced: true, Charged: h.At}
	case p == HoldEnd && held:
		return Effect{Hits: max(hits, 0) - int64(h.Hits), Forced: true, Charged: h.At}
	}
	return Effect{Forced: true}
}

// After returns the hold after a charge of the phase at instant now. passed says that the charge
// was allowed and the request admitted. A new holder is known for atMost. Under Concurrency only a
// holder that holds is remembered, as no other changes a decision.
func (h Hold) After(p HoldPhase, l Limit, now Instant, hits int64, atMost time.Duration, passed bool) Hold {
	next := h
	switch held := h.Status == HoldHeld; {
	case p.Begins() && (held || hits <= 0 && (p == HoldBegin || l.Algorithm == Concurrency)):
	case p.Begins() && passed, p == HoldBegun && !held && h.Status != HoldEnded && hits > 0:
		next = Hold{Status: HoldHeld, Hits: uint32(min(max(hits, 0), math.MaxUint32)), At: now, Until: now.Add(atMost)}
	case p.Begins():
		next = Hold{Status: HoldDenied, Until: now.Add(atMost)}
	case p == HoldCancel && held:
		next = Hold{Status: HoldDenied, Until: h.Until}
	case p == HoldEnd && held:
		next = Hold{Status: HoldEnded, Until: h.Until}
	case p == HoldEnd && h.Status == HoldUnknown && hits >= 0:
		next = Hold{Status: HoldEnded, Until: now.Add(atMost)}
	}
	if l.Algorithm == Concurrency && next.Status != HoldHeld {
		return Hold{}
	}
	return next
}
