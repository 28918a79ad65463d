package store

import "github.com/weirproxy/weir/pkg/algorithms"

// State is the state of a key as a store left it. A caller can go on from a state: deny from memory, continue a count while the store
// is away, or spend hits that it took in advance. The zero value says that the store told nothing.
type State struct {
	Now   algorithms.Instant // of the transaction, by the store's clock; never 0 in a state that was told
	Limit algorithms.Limit   // of the key's last charge; zero for an idle key
	State algorithms.State   // goes with Limit; zero for an idle key, and for an algorithm without [algorithms.Algorithm.HasState]
}

// Take takes hits from the state, as the store would at instant now if no other hits came. The algorithm must have a state.
func (s *State) Take(l algorithms.Limit, now algorithms.Instant, hits int64, countRejected bool) algorithms.Decision {
	var d algorithms.Decision
	if s.Limit.Algorithm == 0 || s.Limit == l {
		s.Limit = l
		s.State, d = algorithms.Take(l, s.State, now, hits, countRejected)
	} else {
		s.State, s.Limit, d = algorithms.TakeAs(s.Limit, l, s.State, now, hits, countRejected)
	}
	return d
}

// Outbox is a store that also charges hits that were decided elsewhere, from memory or while the store was away. All methods are safe
// for concurrent use.
type Outbox interface {
	// Later charges c.Hits to the key of c as at an earlier instant of the store's clock, also hits above the limit, and returns at
	// once. Only Key, Limit and Hits of c count. The outbox adds up the hits of a key and sends the sum after a moment, but before any
	// later Take, Peek or Reset of that key. Hits that cannot be charged in time, and hits above the outbox's bounds, are dropped and
	// counted in metrics.
	Later(c *Charge, at algorithms.Instant)
}

// Forgetter is a store that answers some requests from its memory of earlier answers. A limiter calls Forget when rules change, so
// that no answer comes from the rules before. A store in front of a Forgetter should be a Forgetter and pass the call on.
type Forgetter interface {
	Store

	// Forget makes the store ask again for each key. Forget drops no counts, and no hits that wait to be sent.
	Forget()
}
