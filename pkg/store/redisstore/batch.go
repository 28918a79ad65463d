package redisstore

import (
	"time"
	"unsafe"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// batch is transactions that one run of the script applies, one after another. Equal transactions
// of one charge form a group, sent once with their number. So they are applied right after each
// other, which is a valid order for requests that wait at the same time.
type batch struct {
	until   time.Time // when the first of the callers stops to wait; zero if nobody waits
	last    time.Time // when the last of the callers stops to wait
	server  *server
	keys    []string       // names in Redis
	places  map[string]int // of keys in keys and states
	key     []byte         // scratch
	names   names          // memory of keys
	states  []keyState
	all     []group
	charges int    // of all transactions
	count   uint64 // of transactions
}

// keyState is a key of a batch. raw, kept and parsed are set from the script's answer.
type keyState struct {
	single int // the last group of single transactions on the key, counted from 1
	raw    string
	kept   kept
	parsed bool
}

// group is a list of calls that are sent as one transaction.
type group struct {
	first, last *call
	times       int
}

// names makes texts that share memory. The memory is not used again: a command may hold a text for
// longer than the batch.
type names struct{ free []byte }

// namesSize is the memory that is taken at once, in bytes: names of some fifty keys.
const namesSize = 4 << 10

func (n *names) add(name []byte) string {
	if len(name) > cap(n.free)-len(n.free) {
		n.free = make([]byte, 0, max(namesSize, len(name)))
	}
	from := len(n.free)
	n.free = append(n.free, name...)
	return unsafe.String(unsafe.SliceData(n.free[from:]), len(name))
}

func newBatch(s *server) *batch { return &batch{server: s, places: make(map[string]int)} }

// reset makes the batch empty.
func (b *batch) reset() {
	clear(b.places)
	clear(b.keys)
	clear(b.all)
	b.until, b.last = time.Time{}, time.Time{}
	b.keys, b.states, b.all, b.charges, b.count = b.keys[:0], b.states[:0], b.all[:0], 0, 0
}

// add adds a call.
func (b *batch) add(c *call) {
	c.places, c.counters = c.places[:0], c.counters[:0]
	for i := range c.charges {
		place, counter := b.place(&c.charges[i], c.at)
		c.places, c.counters = append(c.places, place), append(c.counters, counter)
	}
	if c.holding {
		b.placeHolds(c)
	}
	if !c.until.IsZero() && (b.until.IsZero() || c.until.Before(b.until)) {
		b.until = c.until
	}
	if c.until.After(b.last) {
		b.last = c.until
	}
	c.next = nil
	b.charges += len(c.charges)
	b.count++
	if len(c.charges) == 1 && c.action != correct && !c.holding && c.charges[0].Limit.Algorithm.HasState() {
		p := &b.states[c.places[0]]
		if p.single > 0 {
			g := &b.all[p.single-1]
			if g.first.action == c.action && alike(&g.first.charges[0], &c.charges[0]) {
				g.last.next, g.last = c, c
				g.times++
				return
			}
		}
		p.single = len(b.all) + 1
	}
	b.all = append(b.all, group{first: c, last: c, times: 1})
}

// takes reports whether a call fits into the batch. Corrections have batches of their own, as this
// process cannot play them again on the states before. So have calls that need a run of the script
// of their own.
func (b *batch) takes(c *call) bool {
	if len(b.all) == 0 {
		return true
	}
	first := b.all[0].first
	return (first.action == correct) == (c.action == correct) && b.charges+len(c.charges) <= maxCharges && !first.alone() && !c.alone()
}

// maxCharges bounds one run of the script, during which Redis serves nobody else.
const maxCharges = 256

// alike reports whether two charges of one key are equal.
func alike(x, y *store.Charge) bool {
	return x.Hits == y.Hits && x.Limit == y.Limit && x.CountRejected == y.CountRejected && x.Mode == y.Mode
}

// calls yields the calls of the batch, which may end meanwhile.
func (b *batch) calls(yield func(*call) bool) {
	for i := range b.all {
		for c := b.all[i].first; c != nil; {
			next := c.next // after the end of a call its fields belong to the caller
			if !yield(c) {
				return
			}
			c = next
		}
	}
}

// end ends all calls. An error is the error of each call; refused says that Redis has certainly not
// applied them.
func (b *batch) end(err error, refused bool) {
	for c := range b.calls {
		c.next = nil
		if err != nil {
			c.err, c.refused = err, refused
		}
		c.end()
	}
}

// slot returns the slot of the batch's keys; 0 without a cluster.
func (b *batch) slot() uint16 { return b.all[0].first.slot }

// place returns the place of the key of a charge at an instant, and reports whether the key is a
// counter's.
func (b *batch) place(c *store.Charge, at algorithms.Instant) (n int, counter bool) {
	b.key, counter = b.server.appendName(b.key[:0], c, at)
	return b.placeOfKey(), counter
}

// placeOfKey returns the place of the name in b.key.
func (b *batch) placeOfKey() int {
	n, known := b.places[string(b.key)]
	if !known {
		n = len(b.keys)
		name := b.names.add(b.key)
		b.keys = append(b.keys, name)
		b.places[name] = n
		b.states = append(b.states, keyState{})
	}
	return n
}

// request returns the argument of the script.
func (b *batch) request(now, deadline int64) []byte {
	r := make([]byte, 0, headerSize+len(b.all)*(9+26))
	r = appendHeader(r, now, deadline)
	for i := range b.all {
		g := &b.all[i]
		c := g.first
		r = appendTransaction(r, c.action, g.times, len(c.charges), c.holding, c.lone())
		last := -1 // the last charge that counts for the verdict
		for n := range c.charges {
			var fix *correction
			if c.action == correct {
				fix = c.corrections[n]
			}
			algorithm, capacity := byte(c.charges[n].Limit.Algorithm), c.charges[n].Limit.Capacity()
			if c.counters[n] {
				algorithm, capacity = counterNumber, b.server.store.jitter()
			}
			r = appendCharge(r, c.places[n], &c.charges[n], algorithm, capacity, last >= 0 && c.charges[last].Rule == c.charges[n].Rule, fix)
			if c.holding {
				r = c.appendHold(r, n)
			}
			if !c.ends(n) {
				last = n
			}
		}
	}
	return r
}
