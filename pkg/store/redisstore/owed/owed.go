// Package owed keeps the hits and holders that Redis has yet to be told: hits that were decided
// elsewhere, and begins and ends of holders. A [Book] merges them, bounds them, lets them expire,
// and makes the content of a call. After the call the Book keeps the hits and holders that must be
// told again.
//
// The package is pure: no goroutine, lock, clock or socket. Instants come with the calls.
package owed

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Granularity is Redis's unit of time. Instants are whole multiples.
const Granularity = time.Microsecond

// Overdue is for how long entries outlast their end: two clocks differ.
const Overdue = 2 * time.Second

// Bounds of a Book.
const (
	MostHits    = 1024 // entries of hits
	MostHolders = 1024
	mostBack    = 16 // entries of hits of one key; more hits to give back stay charged
	mostEvents  = 4  // of one holder
	longestRest = 10 * time.Second
	mostSum     = 1<<40 - 1 // hits of an entry, as in a value of Redis
)

// Book has the hits and holders of some keys that Redis has yet to be told. The zero value is
// empty. One goroutine at a time may use a Book.
type Book struct {
	hits    map[string][]*Hits // by key: hits to charge before hits to give back
	holders map[string]map[name]*Holder
	nHits   int
	nHolder int
	closed  bool
	rests   time.Time // until then no hits expire; zero: not known
	resets  map[string]*resets
	counts  Counts
}

// resets is the resets of a key that are under way.
type resets struct {
	under   int
	dropped Counts
}

// Counts counts hits, each without its sign, and events of holders, by their end.
type Counts struct {
	Lost    uint64 // hits that Redis should charge, and is not told of
	Unknown uint64 // hits that Redis may charge too often: told again after no answer, or not given back for certain
	Expired uint64 // hits that came to matter to no decision; of a bucket, hits that were gained again

	ToldEvents, LostEvents, ExpiredEvents uint64
}

// lose counts hits of which Redis is not told, or may not have been told. Hits to charge are lost,
// and hits to give back may stay charged.
func (c *Counts) lose(hits int64) {
	if hits < 0 {
		c.Unknown += size(hits)
	} else {
		c.Lost += size(hits)
	}
}

// Clocks is one instant by the clock of Redis and by the clock of this process.
type Clocks struct{ Redis, Here algorithms.Instant }

// Entry is the content of one call: [Hits] or [Holder].
type Entry interface {
	// Charge has the Key and the Limit. The text belongs to the entry.
	Charge() *store.Charge
	// At is the instant by which the name of a counter is chosen.
	At() algorithms.Instant
	// Returns reports whether a call would give back more hits than it charges.
	Returns() bool

	waits(now Clocks) bool // a call can tell something
	expire(b *Book, now Clocks) (gone bool)
	tell(now Clocks) *Telling
	leave(now Clocks) Left // all that waits, which is then gone
	told(b *Book, t *Telling, o Outcome, now Clocks)
	tidy(b *Book) (gone bool)
}

// Telling is the content of one call about one key. Each charge belongs to an instant of its own.
type Telling struct {
	Entry

	Charges []store.Charge
	Instant []algorithms.Instant
	Of      algorithms.Instant // [Entry.At] of the charges
	Fix     Fix                // of the first charge, if the charges are hits
	Holder  bool               // the charges are events of a holder

	level level            // of a bucket, as before the call
	after algorithms.State // the hits that Redis is told of with the call
}

// Fix makes hits that are given back exact: if the value of the key is still Left, Redis writes
// Target. Otherwise Redis gives the hits back from Was, the value before they were taken. The zero
// value says that nothing is known.
type Fix struct{ Left, Target, Was string }

// noValue is a Left that no key has.
const noValue = "?"

// Outcome is the end of a call.
type Outcome uint8

// The outcomes.
const (
	Applied Outcome = iota
	Refused         // Redis has certainly not applied the call
	Unknown         // Redis may have applied the call
)

// Size returns the numbers of entries of hits and of holders.
func (b *Book) Size() (hits, holders int) { return b.nHits, b.nHolder }

// Drain returns the counts since the last Drain.
func (b *Book) Drain() Counts {
	c := b.counts
	b.counts = Counts{}
	return c
}

// Of drops the parts of a key's entries that no longer matter, and returns the entries that wait,
// holders first.
func (b *Book) Of(key []byte, now Clocks) (all []Entry) {
	for _, h := range b.holders[string(key)] {
		if !h.expire(b, now) && h.waits(now) {
			all = append(all, h)
		}
	}
	for _, h := range slices.Clone(b.hits[string(key)]) { // expire may remove h
		if !h.expire(b, now) && h.waits(now) {
			all = append(all, h)
		}
	}
	return all
}

// Tell returns all of an entry that waits, which is then on the way. Call Told after the end of the
// call. The result is nil if nothing waits: a bucket may have gained its hits since the look.
func (b *Book) Tell(e Entry, now Clocks) *Telling {
	t := e.tell(now)
	if len(t.Charges) == 0 {
		b.Told(t, Applied, now)
		return nil
	}
	e.tidy(b)
	return t
}

// Told ends a telling. Hits to charge, and events, wait again unless Redis has applied them: a hit
// without an answer may count once more. A hit to give back may stay charged then, which is better
// than one that is given back twice. An event that Redis has applied has no second effect. Nothing
// waits again while the key is being reset. Hits that wait again keep their ages.
func (b *Book) Told(t *Telling, o Outcome, now Clocks) { t.told(b, t, o, now) }

// BeginReset drops all that waits for a key. Call EndReset.
func (b *Book) BeginReset(key []byte) {
	if b.resets == nil {
		b.resets = make(map[string]*resets)
	}
	r := b.resets[string(key)]
	if r == nil {
		r = new(resets)
		b.resets[string(key)] = r
	}
	r.under++
	b.drop(string(key), &r.dropped)
}

// EndReset ends a BeginReset of the key, and drops the hits that came meanwhile. If the reset
// failed, the dropped hits of the key are lost.
func (b *Book) EndReset(key []byte, failed bool) {
	r := b.resets[string(key)]
	b.drop(string(key), &r.dropped)
	if failed {
		b.counts.Lost += r.dropped.Lost
		b.counts.Unknown += r.dropped.Unknown
	}
	r.dropped = Counts{}
	if r.under--; r.under == 0 {
		delete(b.resets, string(key))
	}
}

// drop drops all that waits for a key, and counts it as lost.
func (b *Book) drop(key string, counts *Counts) {
	for _, h := range slices.Backward(b.hits[key]) { // tidy removes h
		counts.lose(h.forget())
		h.tidy(b)
	}
	for _, h := range b.holders[key] {
		counts.LostEvents += uint64(len(h.events) - h.under)
		h.events = h.events[:h.under]
		h.tidy(b)
	}
}

// Close loses all that waits, and all that comes later.
func (b *Book) Close() {
	b.closed = true
	for key := range b.hits {
		b.drop(key, &b.counts)
	}
	for key := range b.holders {
		b.drop(key, &b.counts)
	}
	clear(b.hits)
	clear(b.holders)
	b.nHits, b.nHolder = 0, 0
}

// OwesBefore reports whether hits or events of before an instant wait, or are on the way. The
// answer is true for a moment longer if several calls tell them.
func (b *Book) OwesBefore(at Clocks) bool {
	for _, all := range b.hits {
		for _, h := range all {
			if first := earlier(h.oldest, h.flying); first != 0 && first < h.now(at) {
				return true
			}
		}
	}
	for _, all := range b.holders {
		for _, h := range all {
			if h.events[0].at < at.Redis {
				return true
			}
		}
	}
	return false
}

// Rests reports whether a look would find nothing that expires. Clocks step, so a book rests for
// ten seconds at most.
func (b *Book) Rests(now time.Time) bool { return b.nHolder == 0 && now.Before(b.rests) }

// Look drops entries that no longer matter, calls visit for each entry that waits, and returns the
// number of entries that it has seen. visit may call Tell.
func (b *Book) Look(now time.Time, at Clocks, visit func(Entry)) (seen int) {
	b.rests = now.Add(longestRest)
	for key := range b.hits {
		for i := 0; i < len(b.hits[key]); {
			h := b.hits[key][i]
			seen++
			if h.expire(b, at) {
				continue
			}
			if h.waits(at) {
				visit(h)
			}
			if all := b.hits[key]; i == len(all) || all[i] != h {
				continue
			}
			i++
			if ends := now.Add(h.ends().Add(Overdue).Sub(h.now(at))); ends.Before(b.rests) {
				b.rests = ends
			}
		}
	}
	for _, all := range b.holders {
		for _, h := range all {
			seen++
			if !h.expire(b, at) && h.waits(at) {
				visit(h)
			}
		}
	}
	return seen
}

func size(hits int64) uint64 { return uint64(max(hits, -hits)) }
