package redisstore

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// batch is transactions that one call of the script applies, one after another. Equal transactions of one charge stand
// together and are sent once, with how often: for the script and for each of the callers that is as if they had come right
// after each other, which requests that wait at the same time may do.
type batch struct {
	until  time.Time // from then on the first of its callers waits no more; zero where nobody waits
	store  *Store
	keys   []string       // of Redis
	places map[string]int // of keys
	key    []byte         // scratch
	states []place        // of keys
	all    []group
	charge int // charges to evaluate, counting those that repeat
}

// place is what is known of one key of a batch.
type place struct {
	algorithm algorithms.Algorithm
	single    int // the last group of single transactions on the key, counted from 1
	raw       string
	kept      kept
	parsed    bool
}

// group is calls that are sent as one transaction, in a list.
type group struct {
	first, last *call
	times       int
}

func newBatch(s *Store) *batch { return &batch{store: s, places: make(map[string]int)} }

// reset makes the batch empty.
func (b *batch) reset() {
	clear(b.places)
	clear(b.keys)
	clear(b.all)
	b.until = time.Time{}
	b.keys, b.states, b.all, b.charge = b.keys[:0], b.states[:0], b.all[:0], 0
}

// add adds a call.
func (b *batch) add(c *call) {
	c.places, c.counters = c.places[:0], c.counters[:0]
	for i := range c.charges {
		place, counter := b.place(&c.charges[i], c.at)
		c.places, c.counters = append(c.places, place), append(c.counters, counter)
	}
	if !c.until.IsZero() && (b.until.IsZero() || c.until.Before(b.until)) {
		b.until = c.until
	}
	c.next = nil
	b.charge += len(c.charges)
	if len(c.charges) == 1 && c.kind != correct && c.charges[0].Limit.Algorithm != algorithms.SlidingWindowLog {
		p := &b.states[c.places[0]]
		if p.single > 0 {
			g := &b.all[p.single-1]
			if g.first.kind == c.kind && alike(&g.first.charges[0], &c.charges[0]) {
				g.last.next, g.last = c, c
				g.times++
				return
			}
		}
		p.single = len(b.all) + 1
	}
	b.all = append(b.all, group{first: c, last: c, times: 1})
}

// takes reports whether a call can go into the batch, too. A correction cannot be played again on the states as they were
// before it, so corrections have batches of their own.
func (b *batch) takes(c *call) bool {
	return len(b.all) == 0 || (b.all[0].first.kind == correct) == (c.kind == correct) && b.charge+len(c.charges) <= maxCharges
}

// maxCharges bounds what one call of the script evaluates, as nobody else is served meanwhile.
const maxCharges = 256

// alike reports whether two charges of one key do the same.
func alike(x, y *store.Charge) bool {
	return x.Hits == y.Hits && x.Limit == y.Limit && x.CountRejected == y.CountRejected && x.Mode == y.Mode
}

// transactions returns how many transactions the batch holds.
func (b *batch) transactions() uint64 {
	n := uint64(0)
	for i := range b.all {
		n += uint64(b.all[i].times)
	}
	return n
}

// end ends all calls of the batch.
func (b *batch) end() {
	for i := range b.all {
		for c := b.all[i].first; c != nil; {
			next := c.next // what comes after it belongs to the caller
			c.next = nil
			c.end()
			c = next
		}
	}
}

// refuse ends all calls of the batch with an error, when they were certainly not applied.
func (b *batch) refuse(err error) {
	for i := range b.all {
		for c := b.all[i].first; c != nil; c = c.next {
			c.refused = true
		}
	}
	b.fail(err)
}

// fail ends all calls of the batch with an error.
func (b *batch) fail(err error) {
	for i := range b.all {
		for c := b.all[i].first; c != nil; c = c.next {
			c.err = err
		}
	}
	b.end()
}

// slot returns the slot of the batch's keys; 0 where there are none.
func (b *batch) slot() uint16 { return b.all[0].first.slot }

// place returns the number of the key that a charge of that instant goes to, and whether it is that of a counter.
func (b *batch) place(c *store.Charge, at algorithms.Instant) (n int, counter bool) {
	b.key, counter = b.store.appendName(b.key[:0], c, at)
	n, known := b.places[string(b.key)]
	if !known {
		n = len(b.keys)
		name := string(b.key)
		b.keys = append(b.keys, name)
		b.places[name] = n
		b.states = append(b.states, place{algorithm: c.Limit.Algorithm})
	}
	return n, counter
}

// request returns what the script is given.
func (b *batch) request(now, deadline int64) []byte {
	r := make([]byte, 0, headerSize+len(b.all)*(9+26))
	r = appendHeader(r, now, deadline)
	for i := range b.all {
		g := &b.all[i]
		c := g.first
		r = appendTransaction(r, c.kind, g.times, len(c.charges))
		for n := range c.charges {
			var fix *correction
			if c.kind == correct {
				fix = c.corrections[n]
			}
			algorithm, capacity := byte(c.charges[n].Limit.Algorithm), c.charges[n].Limit.Capacity()
			if c.counters[n] {
				algorithm, capacity = asCounter, b.store.jitter()
			}
			r = appendCharge(r, c.places[n], &c.charges[n], algorithm, capacity, n > 0 && c.charges[n-1].Rule == c.charges[n].Rule, fix)
		}
	}
	return r
}
