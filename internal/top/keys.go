package top

// Window is a time to look back.
type Window uint8

// The windows.
const (
	Minute Window = iota
	TenMinutes
)

// slices returns the slices of a window that have ended. last is the last slice that has ended.
func (w Window) slices(last uint64) uint64 {
	if w == TenMinutes {
		return minutes*perMinute + last%perMinute
	}
	return perMinute - 1
}

// Key is a tracked key.
//
// The counts are of hits that were seen. Of more than exactHits in a slice the further ones are
// sampled, with a standard error of less than 0.2 percent. Hits from before the key became tracked
// may be missing. With the probability 0.95 fewer than HitsError hits and DeniedError denied hits
// are missing; 0: none is. Hits that race with the replacement of a key may be lost, or count for
// the other key; that is rare.
type Key struct {
	Hash                uint64
	Text                []byte // the first 512 bytes; belongs to the caller
	Cut                 bool   // the text was longer
	Hits, HitsError     uint64 // in the window, denied ones included
	Denied, DeniedError uint64 // in the window
	Remaining           uint32 // by the last decision
	Capacity            uint32 // of the limit of the last decision
}

// Keys returns the tracked keys with hits in a window, in no order.
func (s *Sketch) Keys(w Window) []Key {
	var all []Key
	for n := range s.buckets {
		b := &s.buckets[n]
		b.mu.Lock()
		last := s.slice.Load() - 1
		for way := range ways {
			i, e := n*ways+way, &b.entries[way]
			hash := s.heads[i].hash.Load()
			if hash == 0 {
				continue
			}
			word, denied := s.heads[i].now.Load(), s.heads[i].denied.Load()
			now := cell{e.carried + word>>32 + denied, denied}
			sum, missing := e.window(w, last)
			if sum.add(now); sum.hits == 0 {
				continue
			}
			all = append(all, Key{
				Hash: hash, Text: append([]byte(nil), e.text...), Cut: e.cut,
				Hits: sum.hits, HitsError: missing.hits, Denied: sum.denied, DeniedError: missing.denied,
				Remaining: uint32(word), Capacity: s.heads[i].limit.Load(),
			})
		}
		b.mu.Unlock()
	}
	return all
}

// Tracked returns the number of tracked keys.
func (s *Sketch) Tracked() int {
	n := 0
	for i := range s.heads {
		if s.heads[i].hash.Load() != 0 {
			n++
		}
	}
	return n
}
