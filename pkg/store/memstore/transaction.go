package memstore

import (
	"cmp"
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// transaction is the scratch memory of a request of several charges, reused.
type transaction struct {
	refs   []ref
	order  []int   // indices of refs, by shard and digest
	views  []view  // one for each distinct key, in that order
	shards []int   // the distinct shards, ascending
	begins []begin // of charges that begin a holder, in order
	named  []int32 // a hash table of begins by key and holder: the last one of each bucket, plus one
	passed int     // begins that were passed to find earlier ones of the same holder
	wants  []want  // of views that need places: first the new keys, in the order of views
}

// ref says which key a charge goes to.
type ref struct {
	key   digest
	shard int
	view  int
	begin int // of the transaction's begins; -1: none
}

// takeSeveral applies a transaction of any number of charges. All shards of the transaction stay locked
// from the first read to the last write. The order of locking is ascending, so no two transactions
// wait for each other.
func (s *Store) takeSeveral(charges []store.Charge, decisions []algorithms.Decision) (admitted bool) {
	t, _ := s.scratch.Get().(*transaction)
	defer s.scratch.Put(t)
	t.plan(s, charges)
	var r room
	for first := true; ; first = false {
		now, full := t.lock(s), r.full
		if first {
			t.endLocked(s, charges, decisions, now)
		}
		admitted = t.decide(s, charges, decisions, now, &r)
		places := t.wantLocked(s, &r, now)
		if r.full != full {
			t.unlock(s)
			continue
		}
		if crowded := t.crowdedLocked(s); crowded >= 0 {
			t.unlock(s)
			r.spare(t.wants...)
			if !s.evict(&r, crowded) {
				r.refuse(true)
			}
			continue
		}
		if !s.claim(&r, places) {
			t.unlock(s)
			s.makeRoom(&r, t.wants...)
			continue
		}
		if !t.claimHoldsLocked(s, &r, charges, decisions, admitted, now) {
			t.unlock(s)
			s.makeRoomForHolds(&r, len(t.begins))
			continue
		}
		for i := range t.views {
			if v := &t.views[i]; !v.grows() || !r.full {
				v.shard.commitLocked(s, v, now, &r)
			}
		}
		t.rememberLocked(s, &r, charges, decisions, admitted, now)
		t.unlock(s)
		s.giveBack(&r)
		clear(t.views) // releases logs
		return admitted
	}
}

// wantLocked finds the places that views need, and returns their sum.
func (t *transaction) wantLocked(s *Store, r *room, now algorithms.Instant) (places int) {
	t.wants = t.wants[:0]
	for _, adds := range []bool{true, false} {
		for i := range t.views {
			v := &t.views[i]
			if v.found == adds || v.found && v.log == nil {
				continue // of another pass, or a key that never needs a further place
			}
			if w := r.wantLocked(s, v, now); w.places > 0 {
				t.wants = append(t.wants, w)
				places += w.places
			}
		}
	}
	return places
}

// crowdedLocked returns a shard that cannot number all its new keys, or -1.
func (t *transaction) crowdedLocked(s *Store) int {
	last, n := -1, 0
	for i := range t.wants {
		if !t.wants[i].adds {
			break
		}
		shard := s.shardNumber(t.wants[i].key)
		if n++; shard != last {
			last, n = shard, 1
		}
		if n > s.shards[shard].roomLocked() {
			return shard
		}
	}
	return -1
}

// plan finds the distinct keys of the charges and the shards they lie in.
func (t *transaction) plan(s *Store, charges []store.Charge) {
	t.refs, t.order, t.views, t.shards = t.refs[:0], t.order[:0], t.views[:0], t.shards[:0]
	for i := range charges {
		key := s.digest(&charges[i])
		t.refs = append(t.refs, ref{key: key, shard: s.shardNumber(key), begin: -1})
		t.order = append(t.order, i)
	}
	slices.SortFunc(t.order, func(i, j int) int {
		a, b := &t.refs[i], &t.refs[j]
		return cmp.Or(cmp.Compare(a.shard, b.shard), cmp.Compare(a.key.hi, b.key.hi), cmp.Compare(a.key.lo, b.key.lo))
	})
	for n, i := range t.order {
		if n == 0 || t.refs[i].key != t.refs[t.order[n-1]].key {
			t.views = append(t.views, view{})
		}
		t.refs[i].view = len(t.views) - 1
		if shard := t.refs[i].shard; len(t.shards) == 0 || t.shards[len(t.shards)-1] != shard {
			t.shards = append(t.shards, shard)
		}
	}
}

// lock locks the shards and returns the instant of the transaction, at or after the latest of each
// shard.
func (t *transaction) lock(s *Store) algorithms.Instant {
	for _, shard := range t.shards {
		s.shards[shard].mu.Lock()
	}
	c := s.clock.Load() // one for all shards
	now := c.now()
	for _, shard := range t.shards {
		now = max(now, s.shards[shard].instantOfLocked(s, c))
	}
	for _, shard := range t.shards {
		s.shards[shard].latest = now
	}
	return now
}

func (t *transaction) unlock(s *Store) {
	for _, shard := range t.shards {
		s.shards[shard].mu.Unlock()
	}
}

// load fills the views with the keys' states.
func (t *transaction) load(s *Store, charges []store.Charge, now algorithms.Instant) {
	for n, i := range t.order {
		if n == 0 || t.refs[i].view != t.refs[t.order[n-1]].view {
			r := &t.refs[i]
			t.views[r.view] = view{}
			t.views[r.view].loadLocked(&s.shards[r.shard], r.key, &charges[i].Limit, now)
		}
	}
}

// decide evaluates the charges as package store says, but for ends of holders. The views then have
// the states to commit. In a full room a new key is not remembered, and Options.OnFull decides its
// charges.
func (t *transaction) decide(
	s *Store, charges []store.Charge, decisions []algorithms.Decision, now algorithms.Instant, r *room,
) (admitted bool) {
	t.load(s, charges, now)
	t.begins = t.begins[:0]
	for i := range charges {
		c, v := &charges[i], &t.views[t.refs[i].view]
		switch {
		case c.Hold == nil:
			decisions[i] = v.take(c, c.Hits, now, c.CountRejected)
		case c.Hold.Phase == algorithms.HoldBegin:
			decisions[i] = t.begin(s, charges, decisions, i, now, r.holdFull)
		default:
			continue
		}
		if r.full && v.grows() {
			s.full(&decisions[i], now)
		}
	}
	if store.Admitted(charges, decisions) {
		return true
	}
	t.load(s, charges, now)
	for i := range charges {
		c, v := &charges[i], &t.views[t.refs[i].view]
		hits, counts := c.Hits, c.CountRejected
		switch {
		case c.Hold == nil:
		case c.Hold.Phase != algorithms.HoldBegin:
			continue
		default:
			b := &t.begins[t.refs[i].begin]
			hits = b.hits
			asks := c.Hits <= 0 && b.was.Status != algorithms.HoldHeld
			counts = counts && (hits > 0 || asks) && c.Limit.Algorithm != algorithms.Concurrency
		}
		if !counts {
			hits = 0
		}
		d := v.take(c, hits, now, counts)
		if !counts {
			d.Allowed, d.RetryAfter = true, 0
		}
		if decisions[i].Allowed {
			decisions[i] = d
		} else {
			v.denied = v.denied.after(&c.Limit, c.Hits, false)
		}
	}
	return false
}
