package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// takeSeveral applies a transaction whose keys lie in several slots of a cluster, or on several
// servers. The first round trip reserves each part as if the request were admitted, without net
// refunds. Then the verdict is known. A second round trip corrects the parts: mostly nothing for an
// admitted request, while a denied request gives its reservations back. In between, a key has less
// room than it should, never more.
//
// A process that ends between the two round trips leaves the reserved hits taken, as if they had
// been used.
func (s *Store) takeSeveral(
	ctx context.Context, until time.Time, at algorithms.Instant, charges []store.Charge, decisions []algorithms.Decision,
) (bool, error) {
	if err := s.resetGate.begin(ctx, until, charges); err != nil {
		return false, s.unsent(err, charges)
	}
	defer s.resetGate.end(charges)
	parts := s.parts(at, charges)
	if err := s.do(ctx, until, parts...); err != nil {
		s.giveBack(parts)
		return false, s.unanswered(err, parts...)
	}
	collect(parts, decisions)
	admitted, v := store.Admitted(charges, decisions), isAdmitted
	if !admitted {
		v = isDenied
	}
	fixes := make([]*call, len(parts)) // nil where Redis needs no change
	var needed []*call
	for i, c := range parts {
		if fixes[i] = s.settle(c, v); fixes[i] != nil {
			needed = append(needed, fixes[i])
		}
	}
	if err := s.do(ctx, until, needed...); err != nil {
		s.settleLater(needed)
		clear(fixes)
	}
	for i, c := range parts {
		if c.admitted = admitted; !admitted {
			c.look(fixes[i])
		}
	}
	collect(parts, decisions)
	for _, c := range parts {
		for n, i := range c.index {
			s.tell(c, n, &charges[i], &decisions[i])
			c.tellHold(n, &charges[i])
		}
		s.calls.Put(c)
	}
	return admitted, nil
}

// several reports whether the keys of a request may lie at several locations.
func (s *Store) several(at algorithms.Instant, charges []store.Charge) bool {
	if !s.main.cluster && s.seconds == nil {
		return false
	}
	return slices.ContainsFunc(charges[1:], func(c store.Charge) bool { return s.locate(&c, at) != s.locate(&charges[0], at) })
}

// parts returns one call for each location of the keys of a request.
func (s *Store) parts(at algorithms.Instant, charges []store.Charge) []*call {
	var parts []*call
	for i := range charges {
		where := s.locate(&charges[i], at)
		n := slices.IndexFunc(parts, func(c *call) bool { return c.location == where })
		if n < 0 {
			n = len(parts)
			parts = append(parts, s.call(reserve, where, at, nil))
		}
		parts[n].add(&charges[i])
		parts[n].index = append(parts[n].index, i)
	}
	for _, c := range parts {
		c.own()
	}
	return parts
}

// collect writes the decisions of the parts to the places of their charges in the request.
func collect(parts []*call, decisions []algorithms.Decision) {
	for _, c := range parts {
		for n, i := range c.index {
			decisions[i] = c.decisions[n]
		}
	}
}

// giveBack has the outbox give back the reservations of a request that failed. A part without an
// answer may have been applied, and stays as if used. So do the hits of holders that have begun:
// their end corrects the hits, and so does HoldLater.
func (s *Store) giveBack(parts []*call) {
	for _, c := range parts {
		switch {
		case c.ended && c.err == nil:
			if fix := s.settle(c, isUndone); fix != nil {
				s.outbox.send(fix, putCall, time.Now().Add(outboxFor))
			}
			c.status.Store(abandoned) // as if Redis had not applied the part
		case !c.unsent():
			s.outbox.lose(c.size())
		}
	}
}

// settleLater has the outbox send the fixes that were not applied in time.
func (s *Store) settleLater(fixes []*call) {
	for _, c := range fixes {
		switch {
		case c.ended && c.err == nil:
		case c.unsent():
			s.outbox.send(c.copy(), putCall, time.Now().Add(outboxFor))
		default: // Redis may have applied the fix
			s.outbox.lose(c.size())
		}
	}
}
