package store

import (
	"fmt"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// State is the state of a key as a store left it. A caller can go on from a state. It can deny from
// memory, continue a count while the store is away, or spend hits that it took in advance. The zero
// value says that the store told nothing.
type State struct {
	Now   algorithms.Instant // of the transaction, by the store's clock; never 0 in a state that was told
	Limit algorithms.Limit   // of the key's last charge; zero for an idle key
	State algorithms.State   // goes with Limit; zero for an idle key. An algorithm without [algorithms.Algorithm.HasState] has SetOwn here

	// Source says how the charge was decided. The store that decides sets Source, also if it tells
	// nothing else.
	Source Source
}

// Source says how a charge was decided.
type Source uint8

// The sources. The zero value says that the store did not tell its source.
const (
	Asked   Source = iota + 1 // a shared store was asked, and answered
	Lease                     // hits that this process took from the shared store in advance
	Memory                    // the memory of an earlier denial
	Without                   // the shared store was not asked, or did not answer
	NoRoom                    // the policy of a store that is full, and does not remember the key
)

// String returns the source in a word; "" for the zero value.
func (s Source) String() string {
	names := [...]string{"", "asked", "leased", "remembered", "without", "full"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("source(%d)", uint8(s))
}

// TellSource sets the source in the Left of a charge, which may be nil.
func (c *Charge) TellSource(s Source) {
	if c.Left != nil {
		*c.Left = State{Source: s}
	}
}

// TellNoRoom sets the source of a charge that a full store has decided, unless a source is known.
func (c *Charge) TellNoRoom() {
	if c.Left != nil && c.Left.Source == 0 {
		c.Left.Source = NoRoom
	}
}

// SetOwn says which hits of a key without a state are of this process, for [Local.Continue].
func (s *State) SetOwn(own algorithms.OwnHits) {
	s.State = algorithms.StateOf(0, own.Hits, uint64(own.Price))
}

// Own returns the hits of SetOwn. The state must be of a key without a state.
func (s *State) Own() algorithms.OwnHits {
	_, hits, price := s.State.Parts()
	return algorithms.OwnHits{Hits: hits, Price: uint32(price)}
}

// TellTo passes the state on to the Left of a caller, which may be nil, if a store has told
// something.
func (s *State) TellTo(left *State) {
	if left != nil && (s.Now != 0 || s.Source != 0) {
		*left = *s
	}
}

// Take takes hits from the state, as the store would at instant now if no other hits came. The
// algorithm must have a state.
func (s *State) Take(l algorithms.Limit, now algorithms.Instant, hits int64, countRejected bool) algorithms.Decision {
	var d algorithms.Decision
	if s.Limit.Algorithm == 0 || s.Limit == l {
		s.Limit = l
		s.State, d = algorithms.Take(l, s.State, now, hits, countRejected)
	} else {
		s.State, s.Limit, d = algorithms.TakeAs(s.Limit, l, s.State, now, hits, algorithms.Counting(countRejected))
	}
	return d
}

// Unanswered is the Err of a [Transaction] that may still be decided elsewhere. Either the store
// has certainly not applied the transaction, or the outcome is not certain yet. Find it with
// [errors.AsType].
type Unanswered interface {
	error

	// Answered reports whether a shard has answered its part of the request, see [Remote.Shard].
	Answered(shard int) bool

	// Instead says which hits of the request were applied elsewhere: hits[i] of charges[i], 0 for
	// none, negative for a refund. The store then charges the difference between these hits and the
	// hits that it has applied itself. [Remote.Later] says how: also above the limit, and in the
	// window of the hits only. A negative difference gives hits back. If the store
	// cannot learn the outcome, it charges the hits that are more than 0, which may count twice, and
	// gives nothing back. The hits of a charge with a Hold mean nothing here: such a charge is for
	// [Remote.HoldLater].
	//
	// len(hits) must be the number of the charges, and so must len(parts) unless parts is nil. Instead
	// keeps neither hits nor parts nor charges, and does not wait. Call Instead at most once, from any
	// goroutine. Without the call the store leaves the request as it finds it.
	Instead(hits []int64, parts []Part)
}

// Part says how a process has decided hits of a bucket without the remote store. The hits took the
// gain of a part of the limit, Mine of each Of hits, from the instant Full on. At that instant the
// bucket would have been full without the hits of this process. The zero value says nothing: the
// bucket may have been empty before.
type Part struct {
	Full     algorithms.Instant // by the clock of [State].Now
	Mine, Of uint32             // Mine is at most Of
}
