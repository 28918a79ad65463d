package leased

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// spendAll decides a request from leases if each of its charges is leased, and reports whether it
// did.
func (s *Store) spendAll(charges []store.Charge, decisions []algorithms.Decision) bool {
	if s.keys.Load() == 0 || len(charges) == 0 || len(charges) > maxCharges {
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
	var from [maxCharges][2]part
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
// which grants paid.
func (s *Store) spend(c *store.Charge, to *algorithms.Decision, now time.Duration) (from [2]part, spent bool) {
	sh, _ := s.spot(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k := s.findLocked(sh, c, now)
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
	k.spent = now
	sh.leased++
	*to = k.answer(now)
	if c.Left != nil {
		k.tell(now, c.Left)
	}
	s.wantLocked(k, now)
	return from, true
}

// tell writes the state of the key: the last one that was told, less the hits spent since.
func (k *key) tell(now time.Duration, to *store.State) {
	*to = k.told
	to.Now, to.Source = k.instant(now), store.Lease
	to.Take(k.limit, to.Now, -k.held(now), false)
}

// unspend puts back the hits of a charge of a request that was denied, or that was not decided
// here. The result is the decision of the key as the request leaves it.
func (s *Store) unspend(c *store.Charge, to *algorithms.Decision, now time.Duration, from [2]part, undecided bool) {
	sh, _ := s.spot(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k := sh.keys[string(c.Key)]
	if k == nil || k.limit != c.Limit {
		k = &key{name: c.Key, shard: sh} // the lease has ended since
	}
	for _, p := range from {
		if p.hits > 0 && !k.unspend(now, p) {
			s.giveLocked(k, c.Limit, now, p)
		}
	}
	if k.limit != c.Limit {
		return
	}
	if undecided {
		k.rate.forget(c.Hits)
		sh.leased--
	}
	if to != nil {
		*to = k.answer(now)
	}
	if c.Left != nil {
		k.tell(now, c.Left)
	}
}

// peek gives a charge the decision of a lease, and reports whether the lease suffices. A lease that
// does not goes back.
func (s *Store) peek(c *store.Charge, to *algorithms.Decision) bool {
	if !leasable(c) {
		return false
	}
	now := s.now()
	sh, _ := s.spot(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k := s.findLocked(sh, c, now)
	if k == nil || k.first.left == 0 {
		return false
	}
	if held := k.held(now); held == 0 || held < c.Hits {
		back := k.release()
		s.giveLocked(k, k.limit, now, back[:]...)
		return false
	}
	*to = k.peek(now, c.Hits)
	c.TellSource(store.Lease)
	return true
}

// longLate is a lateness after which no key waits for the shared store that has just spent a lease.
const longLate = 2 * time.Millisecond

// without decides a request without the shared store while that owes an answer for longer than
// usual, if one of the keys is leased. The request does not wait for the store then.
func (s *Store) without(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	if s.options.Without == nil || s.options.Late == nil || s.keys.Load() == 0 {
		return false, false
	}
	late := s.options.Late()
	if late == 0 {
		return false, false
	}
	for i := range charges {
		if !s.waits(&charges[i], late) {
			continue
		}
		s.metrics.without.Add(1)
		admitted, err := s.options.Without(charges, decisions)
		return admitted, err == nil
	}
	return false, false
}

// waits reports whether the key of a charge is asked often and would have to wait. The key waits
// for a grant, or has waited for an answer in vain, or, after longLate, has just spent a lease. A
// key that is close to its limit has no lease, and the shared store should decide about it.
func (s *Store) waits(c *store.Charge, late time.Duration) bool {
	sh, _ := s.spot(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k := sh.keys[string(c.Key)]
	return k != nil && leasable(c) && k.limit == c.Limit && (k.asked > 0 || k.vain || late > longLate && k.spent > 0 && s.now()-k.spent < slot)
}
