package shared

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func leasable(c *store.Charge) bool {
	return !c.Exact && c.Hold == nil && c.Hits >= 0 && (c.Mode == store.Enforce || c.Mode == store.Shadow) && c.Limit.Requests > 0 &&
		c.Limit.Algorithm.HasState() && (!c.CountRejected || c.Limit.Algorithm.HasWindows())
}

// maxCharges is the most charges of a request that allotments decide, as each is compared with the
// others.
const maxCharges = 16

// repeated reports whether another charge has the key of charge i.
func repeated(charges []store.Charge, i int) bool {
	for n := range charges {
		if n != i && string(charges[n].Key) == string(charges[i].Key) {
			return true
		}
	}
	return false
}

// near decides a request by the allotments of this process, and reports whether it did. Leases
// admit the request if each of its keys has one. Else denials may deny it.
func (s *Store) near(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	leases, denials := s.table.tracked.Load() > 0, s.table.denials.Load() > 0
	switch {
	case !leases && !denials || len(charges) == 0 || store.Holds(charges) || follows(charges):
		return false, false
	case leases && s.spendAll(charges, decisions):
		return true, true
	}
	return false, denials && s.denyAll(charges, decisions)
}

// follows reports whether other processes may use a limit that the limit of a charge replaced. The
// remote store has to be asked then: hits carry over there.
func follows(charges []store.Charge) bool {
	for i := range charges {
		for n := range charges[i].Before {
			if charges[i].Before[n].Both {
				return true
			}
		}
	}
	return false
}

// spendAll decides a request from leases if each of its charges is leased, and reports whether it
// did.
func (s *Store) spendAll(charges []store.Charge, decisions []algorithms.Decision) bool {
	if len(charges) > maxCharges {
		return false
	}
	for i := range charges {
		if !leasable(&charges[i]) || len(charges) > 1 && repeated(charges, i) {
			return false
		}
	}
	now := s.now()
	if len(charges) == 1 {
		_, spent := s.spend(&charges[0], &decisions[0], now)
		return spent
	}
	var from [maxCharges][2]taken
	for i := range charges {
		spent := false
		if from[i], spent = s.spend(&charges[i], &decisions[i], now); !spent {
			for n := range i {
				s.unspend(&charges[n], nil, now, from[n], true)
			}
			return false
		}
	}
	return true
}

// spend decides a charge from the lease of its key, and reports whether that suffices. from says
// which parts of the lease paid.
func (s *Store) spend(c *store.Charge, to *algorithms.Decision, now time.Duration) (from [2]taken, spent bool) {
	sh := s.table.lock(c)
	defer sh.mu.Unlock()
	k := s.leaseLocked(sh, c, now)
	if k == nil {
		return from, false
	}
	if c.Hits == 0 {
		spent = k.held(now) > 0
	} else {
		from, spent = k.spend(now, c.Hits)
	}
	if !spent {
		return from, false
	}
	k.rate.note(now, c.Hits)
	sh.leased++
	*to = k.peek(now, 0)
	k.tell(now, c.Left)
	s.wantLocked(k, now)
	return from, true
}

// tell writes the state of the key, less the hits spent since it was told. to may be nil.
func (k *key) tell(now time.Duration, to *store.State) {
	if to == nil {
		return
	}
	*to = k.told
	to.Now, to.Source = k.instant(now), store.Lease
	to.Take(k.limit, to.Now, -k.held(now), false)
}

// unspend puts back the hits of a charge of a request that was denied, or that was not decided
// here. The result is the decision of the key as the request leaves it.
func (s *Store) unspend(c *store.Charge, to *algorithms.Decision, now time.Duration, from [2]taken, undecided bool) {
	sh := s.table.lock(c)
	defer sh.mu.Unlock()
	k := sh.allotments[string(c.Key)].yes
	if k == nil || k.limit != c.Limit {
		k = &key{name: c.Key, hash: c.Hash, shard: sh} // the lease has ended since
	}
	for i, p := range from {
		if p.hits > 0 && k.unspend(now, p) {
			from[i].hits = 0
		}
	}
	s.giveLocked(k, c.Limit, now, from)
	if k.limit != c.Limit {
		return
	}
	if undecided {
		k.rate.forget(c.Hits)
		sh.leased--
	}
	if to != nil {
		*to = k.peek(now, 0)
	}
	k.tell(now, c.Left)
}

// denyAll decides a request that is known to be denied, and reports whether it did. The charges get
// no state, only its source.
func (s *Store) denyAll(charges []store.Charge, decisions []algorithms.Decision) bool {
	if len(charges) > maxCharges {
		return false
	}
	now := s.now()
	for i := range charges {
		if c := &charges[i]; c.Hits < 0 || len(charges) > 1 && repeated(charges, i) || !s.isDenied(c, now, &decisions[i]) {
			return false
		}
	}
	if store.Admitted(charges, decisions) {
		return false
	}
	for i := range charges {
		c := &charges[i]
		c.TellSource(store.Memory)
		s.leaveDenied(c, now, &decisions[i])
	}
	s.metrics.denied.Add(1)
	return true
}

// isDenied decides a charge by the denial of its key, and reports whether that suffices.
func (s *Store) isDenied(c *store.Charge, now time.Duration, to *algorithms.Decision) bool {
	sh := s.table.lock(c)
	defer sh.mu.Unlock()
	d := sh.allotments[string(c.Key)].no
	return d != nil && d.decide(c, s.instant(d, now), s.maxAge, to)
}

// instant returns the instant by the remote store's clock, for a denial.
func (s *Store) instant(d *denial, now time.Duration) algorithms.Instant {
	if s.clock != nil {
		return s.clock()
	}
	return d.instant(now)
}

// leaveDenied leaves the key of a charge as the denied request does. Hits that count though they
// are denied count here, and later in the remote store. A charge that would have been allowed gets
// the decision of its key without the request.
func (s *Store) leaveDenied(c *store.Charge, now time.Duration, to *algorithms.Decision) {
	looks := to.Allowed && c.Limit.Algorithm.HasState()
	if !c.CountRejected && !looks {
		return
	}
	sh := s.table.lock(c)
	defer sh.mu.Unlock()
	d := sh.allotments[string(c.Key)].no
	switch {
	case d == nil || d.limit != c.Limit: // gone since
		if c.CountRejected {
			s.remote.Later(c, s.remote.Now(algorithms.Limit{}), store.Part{})
		}
	case c.CountRejected:
		at := s.instant(d, now)
		whole := store.Part{Full: at.Add(to.ResetAfter), Mine: 1, Of: 1}
		if c.Limit.Algorithm.HasState() {
			d.state.Take(c.Limit, at, c.Hits, true)
		}
		s.remote.Later(c, at, whole)
	default:
		*to = d.left(c, s.instant(d, now))
	}
}
