package shared

import "github.com/weirproxy/weir/pkg/algorithms"

// returned is hits to be given back as of an instant.
type returned struct {
	hits int64
	at   algorithms.Instant
	was  uint64 // deficit of a bucket at that instant without the hits, in 1/Period hit; 0: not known
}

// giveBack puts the hits of grants into the outbox.
func (s *simulation) giveBack(h *simulatedSidecar, number int, parts [2]taken) {
	for _, p := range parts {
		if p.hits > 0 {
			s.returnedHits += p.hits
			s.later(&h.keys[number], returned{hits: p.hits, at: p.at})
		}
	}
}

// later puts hits into the outbox. Hits of the same window join, as of the earlier instant.
func (s *simulation) later(k *heldKey, more returned) {
	period := algorithms.Instant(k.lease.limit.Period)
	for i := range k.outbox {
		if r := &k.outbox[i]; r.at/period == more.at/period && r.was+more.was == 0 {
			r.hits += more.hits
			if s.mistake == mergeAtTheLatest {
				r.at = max(r.at, more.at)
			} else {
				r.at = min(r.at, more.at)
			}
			return
		}
	}
	k.outbox = append(k.outbox, more)
}

// flush sends the hits of a key in the outbox.
func (s *simulation) flush(h *simulatedSidecar, number int) {
	k := &h.keys[number]
	for _, r := range k.outbox {
		for range s.times(r) {
			c := s.newCall()
			*c = simulatedCall{kind: returnCall, key: number, hits: r.hits, at: r.at, was: r.was}
			s.put(h, c)
		}
	}
	k.outbox = k.outbox[:0]
}

// times returns how often hits are given back.
func (s *simulation) times(returned) int {
	if s.mistake == returnTwice {
		return 2
	}
	return 1
}
