package top

const (
	// busy is the number of keys in a slice that may try to replace others at the true odds. A try
	// takes about 200 ns. After that the odds of a hit are one in eagerness at most. After each
	// further busy tries the odds halve, for so many doublings of eagerness.
	busy      = 20_000
	eagerness = 32
	doublings = 3

	learning = 16 // tries that move the floor to their scores
)

// Admit counts hits of an untracked key, and tracks the key: in a free place, or perhaps in the
// place of another key. The first maxText bytes of the text are kept.
func (s *Sketch) Admit(h Hit, random *Random, text []byte) {
	if i := s.admit(h, random, text); i >= 0 {
		s.count(i, h, random)
	}
}

// admit is Admit, unless another goroutine was faster: then admit returns the place of the key,
// else -1.
func (s *Sketch) admit(h Hit, random *Random, text []byte) int {
	at := s.place(h.Hash)
	s.lock(at)
	defer s.unlock(at)
	for _, b := range [...]int{at.first, at.second} {
		if i := s.find(b, h.Hash); i >= 0 {
			return i
		}
	}
	first, second := &s.buckets[at.first], &s.buckets[at.second]
	if i := s.freeLocked(at); i >= 0 {
		since := min(first.full, second.full) // before that the key would have found a place
		s.startLocked(i, h, text, max(first.score, second.score), since)
		return -1
	}
	i, score := s.leastLocked(at)
	floor := s.learn(score)
	weight := h.weight()
	h.Group.try()
	if score > floor && !random.wins(floor+weight, score-floor) {
		return -1
	}
	slice, e := s.slice.Load(), &s.buckets[i/ways].entries[i%ways]
	if e.score == 0 { // the other key has come in this slice, too
		score += e.inherited
	}
	s.startLocked(i, h, text, max(score, floor), slice)
	e.inherited = score
	first.full, first.score = slice, score
	second.full, second.score = slice, score
	return -1
}

// lock locks the buckets of a key.
func (s *Sketch) lock(at place) {
	s.buckets[min(at.first, at.second)].mu.Lock()
	if at.first != at.second {
		s.buckets[max(at.first, at.second)].mu.Lock()
	}
}

func (s *Sketch) unlock(at place) {
	s.buckets[at.first].mu.Unlock()
	if at.first != at.second {
		s.buckets[at.second].mu.Unlock()
	}
}

// freeLocked returns a free place in the emptier bucket, or -1.
func (s *Sketch) freeLocked(at place) int {
	best, most := -1, 0
	for _, b := range [...]int{at.first, at.second} {
		place, free := -1, 0
		for i := b * ways; i < (b+1)*ways; i++ {
			if s.heads[i].hash.Load() == 0 {
				place, free = i, free+1
			}
		}
		if free > most {
			best, most = place, free
		}
	}
	return best
}

// leastLocked returns the place with the smallest score, and the score.
func (s *Sketch) leastLocked(at place) (least int, score uint64) {
	least = -1
	for _, b := range [...]int{at.first, at.second} {
		for way := range ways {
			i := b*ways + way
			e, now := &s.buckets[b].entries[way], &s.heads[i]
			of := e.score + e.group.weigh()*(e.carried+now.now.Load()>>32+deniedWeight*now.denied.Load())
			if least < 0 || of < score {
				least, score = i, of
			}
		}
	}
	return least, score
}

// learn moves the floor to a score, and returns the floor before.
func (s *Sketch) learn(score uint64) uint64 {
	floor := s.floor.Load()
	next := floor
	switch {
	case score > floor:
		next += (score - floor + learning - 1) / learning
	case score < floor:
		next -= (floor - score + learning - 1) / learning
	}
	if times := s.tried.Add(1) / busy; times > 0 {
		next = max(next, eagerness<<min(times-1, doublings)-1)
	}
	s.floor.Store(next) // another goroutine's step may be lost
	return floor
}

// startLocked puts a key in a place, with its first hits.
func (s *Sketch) startLocked(i int, h Hit, text []byte, score, since uint64) {
	at, b := &s.heads[i], &s.buckets[i/ways]
	s.clearLocked(i)
	b.entries[i%ways].start(text, h.Group, score, since)
	at.limit.Store(h.Capacity)
	at.now.Store(uint64(h.Remaining))
	if h.Denied {
		at.denied.Store(uint64(h.Hits))
	} else {
		b.entries[i%ways].carried = uint64(h.Hits)
	}
	at.hash.Store(h.Hash)
	s.tags[i/ways].Store(s.tags[i/ways].Load() | tag(h.Hash)<<(i%ways*8))
	if !s.hasRoom(i / ways) {
		b.full, b.score = s.slice.Load(), max(b.score, score)
	}
}

// clearLocked makes a place free. The hits of a goroutine that has found the key before are lost,
// or go to the next key.
func (s *Sketch) clearLocked(i int) {
	at := &s.heads[i]
	at.hash.Store(0)
	s.tags[i/ways].Store(s.tags[i/ways].Load() &^ (0xff << (i % ways * 8)))
	at.now.Store(0)
	at.denied.Store(0)
}

// Rotate ends a slice and begins the next. Keys without a hit in ten minutes are no longer tracked.
func (s *Sketch) Rotate() {
	slice := s.slice.Load()
	var scores, full uint64
	for n := range s.buckets {
		b := &s.buckets[n]
		b.mu.Lock()
		if !s.hasRoom(n) {
			b.full = slice
		}
		least := ^uint64(0)
		for way := range ways {
			i, e := n*ways+way, &b.entries[way]
			if s.heads[i].hash.Load() == 0 {
				continue
			}
			denied := s.heads[i].denied.Swap(0)
			e.end(slice, cell{e.carried + s.heads[i].take() + denied, denied})
			if e.idle() {
				s.clearLocked(i)
			}
			least = min(least, e.score)
		}
		if !s.hasRoom(n) {
			b.score = least
			scores, full = scores+least, full+1
		}
		b.mu.Unlock()
	}
	s.tried.Store(0)
	s.floor.Store(min(s.floor.Load(), scores/max(full, 1)))
	s.slice.Store(slice + 1)
}
