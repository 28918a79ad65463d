package memstore

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// returns is the holders of a shard's rate limits whose hits come back when they run out.
type returns struct {
	line                   // in the order in which they run out
	keys map[uint32]digest // of the states, by record
}

// mostReturns bounds the holders whose hits come back at one touch of a shard, as decisions wait
// for them. The next touch goes on.
const mostReturns = 64

// returnLater makes record n, of a holder that holds hits of the key, one whose hits come back.
func (h *holders) returnLater(n uint32, key digest) {
	if h.back == nil {
		h.back = &returns{keys: make(map[uint32]digest)}
	}
	before := h.placeOf(&h.back.line, h.of(n).until)
	if before != h.back.last {
		h.back.finger = n
	}
	h.insert(&h.back.holderList, n, before)
	h.back.keys[n] = key
}

// returns reports whether the hits of record n come back.
func (h *holders) returns(n uint32) bool {
	if h.back == nil {
		return false
	}
	_, found := h.back.keys[n]
	return found
}

// keepHits makes the hits of record n stay when its holder runs out.
func (h *holders) keepHits(n uint32) {
	if !h.returns(n) {
		return
	}
	if h.back.finger == n {
		h.back.finger = 0
	}
	h.unlink(&h.back.holderList, n)
	delete(h.back.keys, n)
}

// returnLocked notes that the hits of record n come back, if the charge that made the holder says
// so. mu must be held.
func (sh *shard) returnLocked(n uint32, key digest, c *store.Charge) {
	if r := sh.holders.of(n); c.Hold.GivesBack && r.kind() == kindHeld && r.hits > 0 {
		sh.holders.returnLater(n, key)
		sh.nextReturn = sh.holders.of(sh.holders.back.first).until
	}
}

// runOutLocked gives the hits back of holders that have run out, each at the instant from which it
// is not known. mu must be held.
func (s *Store) runOutLocked(sh *shard) {
	h := &sh.holders
	if sh.nextReturn = 0; h.back == nil {
		return
	}
	for range mostReturns {
		n := h.back.first
		if n == 0 || h.of(n).until > sh.latest {
			break
		}
		s.returnHitsLocked(sh, h.back.keys[n], h.of(n))
		h.ranOut++
		h.forget(n)
	}
	if n := h.back.first; n != 0 {
		sh.nextReturn = h.of(n).until
	}
}

// returnHitsLocked gives the hits of a holder back. A key that the store has forgotten stays
// forgotten. mu must be held.
func (s *Store) returnHitsLocked(sh *shard, key digest, r *holderRecord) {
	place, found := sh.table.find(key)
	if !found {
		return
	}
	c := store.Charge{Limit: *sh.limits.of(sh.table.slots[place].limit())}
	v := sh.loadLocked(key, &c.Limit, r.until)
	before := v.heldLocked()
	v.giveBack(&c, algorithms.Effect{Hits: -int64(r.hits), Charged: r.at}, r.until)
	s.metrics.places.Add(int64(v.heldLocked() - before)) // of a log that has shrunk
	sh.commitLocked(s, &v, r.until, &room{})
}
