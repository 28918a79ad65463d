package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// part is the charges of a request that one call can be about.
type part struct {
	call  *call
	index []int // of the charges in the request
}

// takeParts applies a transaction whose keys lie in several slots of a cluster, or on several servers. Each part is reserved at once as if the
// request were admitted, all parts together in one round trip; what would give a key back more than it takes is left out. Then
// the verdict is known, and a second round trip sets right what is not as it should be: nothing, mostly, when the request is
// admitted; what a denied one has reserved is given back. In between a key has less room than it should, never more.
//
// A process that ends between the two leaves the reserved hits taken, as if they had been used.
func (s *Store) takeParts(
	ctx context.Context, parts []part, charges []store.Charge, decisions []algorithms.Decision, atMost time.Duration,
) (bool, error) {
	until := time.Now().Add(atMost)
	calls := make([]*call, len(parts))
	for i := range parts {
		calls[i] = parts[i].call
		s.denials.begin(calls[i])
	}
	if err := s.doAll(ctx, calls, until); err != nil {
		s.giveBack(parts)
		return false, err
	}
	tell(parts, decisions)
	passed, v := store.Admitted(charges, decisions), isAdmitted
	if !passed {
		v = isDenied
	}
	fixes := make([]*call, len(parts)) // nil where nothing is to be set right
	calls = calls[:0]
	for i := range parts {
		if fixes[i] = s.settle(parts[i].call, v); fixes[i] != nil {
			calls = append(calls, fixes[i])
		}
	}
	if err := s.doAll(ctx, calls, until); err != nil {
		s.unsettled(calls)
		clear(fixes)
	}
	for i := range parts {
		c := parts[i].call
		if c.admitted = passed; !passed {
			c.left(fixes[i])
		}
		s.denials.learn(c)
	}
	tell(parts, decisions)
	for i := range parts {
		s.calls.Put(parts[i].call)
	}
	return passed, nil
}

// parts returns the parts of a request.
func (s *Store) parts(at algorithms.Instant, charges []store.Charge) []part {
	var parts []part
	for i := range charges {
		where := s.locate(&charges[i], at)
		n := slices.IndexFunc(parts, func(p part) bool { return p.call.location == where })
		if n < 0 {
			n = len(parts)
			parts = append(parts, part{call: s.call(reserve, where, at, nil)})
		}
		parts[n].call.add(&charges[i])
		parts[n].index = append(parts[n].index, i)
	}
	for i := range parts {
		parts[i].call.own()
	}
	return parts
}

// tell writes the decisions of the parts where the request wants them.
func tell(parts []part, decisions []algorithms.Decision) {
	for i := range parts {
		for n, at := range parts[i].index {
			decisions[at] = parts[i].call.decisions[n]
		}
	}
}

// giveBack gives back, later, what those parts have reserved that were reserved, when others could not be. A call that its
// caller has left is not looked at: what it has done, if anything, stays as if it had been used.
func (s *Store) giveBack(parts []part) {
	for i := range parts {
		c := parts[i].call
		if !c.ended || c.err != nil {
			if !c.unsent() {
				s.counts.lostHits.Add(c.size())
			}
			continue
		}
		if fix := s.settle(c, isUndone); fix != nil {
			s.later(fix)
		}
	}
}

// unsettled has those calls made later that were not made now, when the verdict is known though Redis did not set right in
// time what it should.
func (s *Store) unsettled(fixes []*call) {
	for _, c := range fixes {
		switch {
		case c.ended && c.err == nil:
		case c.unsent():
			s.later(c.copy())
		default: // it may have been made
			s.counts.lostHits.Add(c.size())
		}
	}
}
