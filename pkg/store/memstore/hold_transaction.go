package memstore

import (
	"math/bits"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// endLocked applies the charges of holders that are no begins, in order. If the transaction then
// waits for room, other transactions can see these before the rest: ends depend on nothing that the
// rest could change. The transaction's shards must be locked.
func (t *transaction) endLocked(s *Store, charges []store.Charge, decisions []algorithms.Decision, now algorithms.Instant) {
	for i := range charges {
		if c := &charges[i]; c.Hold != nil && c.Hold.Phase != algorithms.HoldBegin {
			s.endLocked(&s.shards[t.refs[i].shard], t.refs[i].key, c, &decisions[i], now)
		}
	}
}

// begin evaluates charge i, which begins a holder, on top of its view. refused says that there is
// no room for further holders.
func (t *transaction) begin(
	s *Store, charges []store.Charge, decisions []algorithms.Decision, i int, now algorithms.Instant, refused bool,
) algorithms.Decision {
	c, v := &charges[i], &t.views[t.refs[i].view]
	b := begin{charge: i, refused: refused}
	b.record, b.was = v.shard.holders.lookup(v.key.tag(), &c.Hold.Holder, now)
	if len(t.begins) == 0 {
		t.named = append(t.named[:0], make([]int32, 1<<bits.Len(uint(len(charges))))...)
	}
	bucket := &t.named[v.key.tag().hash(&c.Hold.Holder)&uint64(len(t.named)-1)]
	b.below = *bucket
	for n := *bucket; n != 0; n = t.begins[n-1].below { // the newest first: its hold counts. A refused one has no hold
		earlier := &t.begins[n-1]
		e := &charges[earlier.charge]
		t.passed++
		if t.refs[earlier.charge].view != t.refs[i].view || e.Hold.Holder != c.Hold.Holder {
			continue
		}
		if !earlier.refused {
			b.was = earlier.was.After(algorithms.HoldBegin, e.Limit, now, e.Hits, e.Hold.AtMost, decisions[earlier.charge].Allowed)
			b.again = b.was != algorithms.Hold{}
		}
		break
	}
	d := s.decideBegin(v, &b, c, now)
	t.refs[i].begin = len(t.begins)
	t.begins = append(t.begins, b)
	*bucket = int32(len(t.begins))
	return d
}

// claimHoldsLocked claims the places of new holders. claimHoldsLocked reports false if other shards
// must forget holders. The transaction's shards must be locked.
func (t *transaction) claimHoldsLocked(
	s *Store, r *room, charges []store.Charge, decisions []algorithms.Decision, admitted bool, now algorithms.Instant,
) bool {
	n := 0
	for i := range t.begins {
		if b := &t.begins[i]; b.adds(&charges[b.charge], admitted && decisions[b.charge].Allowed, now) {
			n++
		}
	}
	for !s.claimHolds(r, n) {
		made := false
		for i := 0; i < len(t.shards) && !made; i++ {
			made = s.shards[t.shards[i]].holders.makeRoom(now)
		}
		if !made {
			return false
		}
	}
	return true
}

// rememberLocked remembers the holders of all begins, after the views were committed. The
// transaction's shards must be locked.
func (t *transaction) rememberLocked(
	s *Store, r *room, charges []store.Charge, decisions []algorithms.Decision, admitted bool, now algorithms.Instant,
) {
	for i := range t.begins {
		b := &t.begins[i]
		c, v := &charges[b.charge], &t.views[t.refs[b.charge].view]
		// A begin before can have added the same holder, and the room for another one can have taken the
		// record.
		b.record, b.was = v.shard.holders.lookup(v.key.tag(), &c.Hold.Holder, now)
		s.rememberHolderLocked(v, b, c, admitted && decisions[b.charge].Allowed, now, r)
	}
}
