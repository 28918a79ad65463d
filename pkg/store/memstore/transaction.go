package memstore

import (
	"cmp"
	"math/bits"
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
	costs  []cost  // of pairs that have not ended
	pairs  store.Pairs
	wants  []want // of views that need places: first the new keys, in the order of views
}

// cost is the hits of a charge of HoldPair, if the charge ends its holder.
type cost struct {
	charge int
	hits   int64
}

// ref says which key a charge goes to.
type ref struct {
	key   digest
	shard int
	view  int
	begin int // of the transaction's begins; -1: none
}

// takeSeveral applies a transaction of any number of charges. All shards of the transaction stay
// locked from the first read to the last write. The order of locking is ascending, so no two
// transactions wait for each other.
func (s *Store) takeSeveral(charges []store.Charge, decisions []algorithms.Decision) (admitted bool) {
	t, _ := s.scratch.Get().(*transaction)
	defer s.scratch.Put(t)
	t.plan(s, charges)
	carries := carries(charges)
	if carries {
		t.planFormers(s, charges)
	}
	var r room
	for first := true; ; first = false {
		now, full := t.lock(s), r.full
		if first && carries {
			s.carryLocked(charges, now, false)
		}
		t.endLocked(s, charges, decisions, now, first)
		admitted = t.decide(s, charges, decisions, now, &r)
		places := t.wantLocked(s, &r, now)
		if r.full != full {
			t.unlock(s)
			continue
		}
		if crowded := t.crowdedLocked(s); crowded >= 0 {
			r.spare(t.wants...)
			if !s.evictLocked(&r, crowded, now) {
				r.refuse(true)
			}
			t.unlock(s)
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
		if carries {
			s.carryLocked(charges, now, true)
		}
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
		sh := &s.shards[shard]
		if sh.latest = now; sh.nextReturn != 0 && sh.nextReturn <= now {
			s.runOutLocked(sh)
		}
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
			decisions[i] = v.take(c, c.Hits, now, algorithms.Counting(c.CountRejected))
		case c.Hold.Phase.Begins():
			decisions[i] = t.begin(s, charges, decisions, i, now, r.holdFull)
		default:
			continue
		}
		if r.full && v.grows() {
			s.full(c, &decisions[i], now)
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
		case !c.Hold.Phase.Begins():
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
		d := v.take(c, hits, now, algorithms.Counting(counts))
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

// endLocked applies the charges of holders that are no begins, in order, once. If the transaction
// then waits for room, other transactions can see these before the rest: ends depend on nothing
// that the rest could change. A pair that has not ended may end then. The transaction's shards must
// be locked.
func (t *transaction) endLocked(s *Store, charges []store.Charge, decisions []algorithms.Decision, now algorithms.Instant, first bool) {
	if first {
		t.costs = t.costs[:0]
		for i := range charges {
			if charges[i].IsPair() {
				t.costs = append(t.costs, cost{i, charges[i].Hits})
			}
		}
	}
	for _, of := range t.costs {
		if c := &charges[of.charge]; c.IsPair() {
			c.Hits = of.hits
		}
	}
	if len(t.costs) > 0 {
		t.pairs.End(charges, func(i int) bool {
			return s.shards[t.refs[i].shard].holdsLocked(t.refs[i].key, &charges[i], now)
		})
	}
	end := func(i int) {
		if c := &charges[i]; c.IsEnd() {
			s.endLocked(&s.shards[t.refs[i].shard], t.refs[i].key, c, &decisions[i], now)
		}
	}
	if first {
		for i := range charges {
			end(i)
		}
	} else {
		for _, of := range t.costs {
			end(of.charge)
		}
	}
	t.costs = slices.DeleteFunc(t.costs, func(of cost) bool {
		charges[of.charge].Pair(false)
		return !charges[of.charge].IsPair()
	})
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
			b.was = earlier.was.After(e.Hold.Phase, e.Limit, now, e.Hits, e.Hold.AtMost, decisions[earlier.charge].Allowed)
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

// deniedHits is the hits of a key's last denied charge in one byte: five bits of an exponent and
// three of a mantissa. Up to 16 hits are exact. More hits are rounded up, by less than an eighth.
// So a key counts as denied a little longer, and never too short. The zero value is one hit, which
// also stands for a key that was never denied.
type deniedHits uint8

const deniedBits = 8

// deniedHitsOf returns the hits, at least 1 and at most algorithms.MaxHits, rounded up.
func deniedHitsOf(hits uint64) deniedHits {
	n := hits - 1
	if n < 8 {
		return deniedHits(n)
	}
	shift := bits.Len64(n) - 4
	rounded := (n + 1<<shift - 1) >> shift // 8 to 16
	return deniedHits(uint64(shift)<<3 + rounded)
}

// hits returns the smallest number of hits that the byte stands for.
func (h deniedHits) hits() uint64 {
	if h < 8 {
		return uint64(h) + 1
	}
	return uint64(h&7|8)<<(h>>3-1) + 1
}

// of returns the hits for which a key under the limit counts as denied. More hits than the capacity
// never pass. For them the key counts as denied until the key is full.
func (h deniedHits) of(l *algorithms.Limit) uint64 { return min(h.hits(), l.Capacity()) }

// after returns the denied hits after a charge. A denied charge replaces them. A charge of at least
// as many hits that passes clears them. A ban denies with a state and without, so its denials do
// not count.
func (h deniedHits) after(l *algorithms.Limit, hits int64, allowed bool) deniedHits {
	switch {
	case hits <= 0 || l.Requests == 0:
		return h
	case !allowed:
		return deniedHitsOf(min(uint64(hits), l.Capacity(), algorithms.MaxHits))
	case uint64(hits) >= h.hits():
		return 0
	default:
		return h
	}
}
