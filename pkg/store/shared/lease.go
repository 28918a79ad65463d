package shared

import (
	"math/bits"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// lease is the hits of one key that the store has charged in advance for this process, and how
// often the key is asked here. A lease has no clock, no lock and no goroutine, and does not
// allocate. A time.Duration is an instant by the monotonic clock of the process, and an
// algorithms.Instant is one by the store's clock. The zero value has no hits.
//
// The process asks the store for the hits of want, and then calls charged or failed. spend takes
// hits from the parts, and ended returns hits that must be given back. A lease has two parts at
// most, so that the next one can come before the first one is spent.
//
// # Why a lease never admits too many
//
// The store has charged hits before they are spent here. A fixed window counts charges, and all
// hits of a part are spent in the window of the part. So at most the limit is spent in each
// window. A sliding count falls only as time goes by, so it stays at or above the count of hits
// that were spent.
//
// A bucket also gains while hits lie here, and so could sell them twice. In an interval the fleet
// spends at most the hits leased at the start and the hits charged later. The latter are at most
// the level at the start and the gain. So the fleet spends at most the burst and the gain if the
// deficit of the bucket is never smaller than all leased hits. Two rules see to that:
//
//   - When a part is charged, the deficit without its hits is at least the gain in the longest
//     lease (bounds.park). Where the deficit would be smaller, the process asks for more hits,
//     which it does not spend.
//   - Hits are given back as of the instant of their charge, less the gain since then.
//
// Proof. Let V be the deficit less all that could be given back now. Time lowers both by the gain,
// or only the deficit where nothing could be given back. A charge raises both by its hits, and
// giving back lowers both alike. A hit that is spent lowers the second only. So V falls only while
// nothing can be given back, and then V is the deficit. By the first rule V is then at least the
// park at the next charge, and so at every charge. Now take the oldest of the parts at some
// instant. Since its charge the deficit has lost at most the gain of one lease, and the hits given
// back of older parts. The first is the park, which V covers. The second are the part of the
// deficit beside V. So the deficit still covers all hits charged since then, and so all leased
// hits.
type lease struct {
	limit  algorithms.Limit
	bounds bounds
	rate   rate

	first, second part // spent in this order; second is empty if first is

	told   store.State   // the last state that the store told; the hits held are charged in it
	toldAt time.Duration // when the store told

	trip   time.Duration // longest round trip to expect of the next part
	under  int64         // hits of the key that the store is asked about, beside the next part
	asked  int64         // hits of the part under way; 0: no part is
	wanted int64         // of these, hits that are not for the park
	fate   fate          // of the part under way
	quiet  time.Duration // until then the store is not asked for a part
}

// part is hits that the store has charged with one call.
type part struct {
	left, size int64
	at         algorithms.Instant // of the charge, by the store's clock
	half, ends time.Duration      // from half on the next part is asked for; from ends on nothing is spent
}

// taken is hits that were taken from a part.
type taken struct {
	hits int64
	at   algorithms.Instant // of the part
}

// fate is the use of the hits of a part that is under way.
type fate uint8

const (
	keep fate = iota
	giveBack
	lose
)

// use prepares the lease for charges under a limit. Under another limit than before the lease is
// recalled, and use returns hits that must be given back under the limit before.
func (l *lease) use(limit algorithms.Limit) (back [2]taken) {
	if l.limit == limit {
		return back
	}
	back = l.recall()
	l.fate = lose // the park of the part under way is unknown under the new limit
	l.limit, l.bounds, l.told, l.quiet, l.under = limit, boundsOf(limit), store.State{}, 0, 0
	return back
}

// spend takes hits from the parts, all or nothing. from is for unspend. hits is at least 1.
func (l *lease) spend(now time.Duration, hits int64) (from [2]taken, spent bool) {
	if l.held(now) < hits {
		return from, false
	}
	if now < l.first.ends {
		from[0] = l.first.take(hits)
	}
	if rest := hits - from[0].hits; rest > 0 {
		from[1] = l.second.take(rest)
	}
	l.shift()
	return from, true
}

func (p *part) take(hits int64) taken {
	hits = min(hits, p.left)
	p.left -= hits
	return taken{hits, p.at}
}

// unspend puts back hits that spend has taken, and reports whether the lease took them. Otherwise
// the process must give them back to the store.
func (l *lease) unspend(now time.Duration, t taken) bool {
	for _, p := range [...]*part{&l.first, &l.second} {
		if p.at == t.at && now < p.ends && p.left+t.hits <= p.size {
			p.left += t.hits
			return true
		}
	}
	return false
}

// unused removes the parts of a key that was not asked for a slot, and returns their hits, which
// must be given back. Others can use them sooner.
func (l *lease) unused(now time.Duration) (back [2]taken) {
	if l.first.left == 0 || !l.rate.rests(now) {
		return back
	}
	back = l.release()
	l.returned(now, back)
	return back
}

// returned notes in the last state that hits go back. A bucket gets fewer hits back.
func (l *lease) returned(now time.Duration, back [2]taken) {
	if l.bounds.window {
		l.told.Take(l.limit, l.instant(now), -back[0].hits-back[1].hits, false)
	}
}

func (l *lease) shift() {
	if l.first.left == 0 && l.second.left > 0 {
		l.first, l.second = l.second, part{}
	}
}

func (l *lease) held(now time.Duration) int64 {
	held := int64(0)
	if now < l.first.ends {
		held = l.first.left
	}
	if now < l.second.ends {
		held += l.second.left
	}
	return held
}

// ended removes parts that must not be spent any more, and returns their hits, which must be given
// back.
func (l *lease) ended(now time.Duration) (back [2]taken) {
	for i, p := range [...]*part{&l.first, &l.second} {
		if p.left > 0 && now >= p.ends {
			back[i] = p.remove()
		}
	}
	l.returned(now, back)
	l.shift()
	return back
}

// release ends all parts but one that is under way, and returns hits that must be given back.
func (l *lease) release() (back [2]taken) {
	return [...]taken{l.first.remove(), l.second.remove()}
}

// recall is release for a part that is under way, too.
func (l *lease) recall() (back [2]taken) {
	l.fate = max(l.fate, giveBack)
	return l.release()
}

// drop forgets all parts, also one that is under way: the state of the key goes, and nothing may
// be given back.
func (l *lease) drop() {
	l.fate = lose
	l.first, l.second, l.told = part{}, part{}, store.State{}
}

// remove ends the part, and returns the hits that were left.
func (p *part) remove() taken {
	t := taken{p.left, p.at}
	*p = part{}
	return t
}

// instant returns the store's instant, or an instant shortly before. A caller may have read now
// before the last answer.
func (l *lease) instant(now time.Duration) algorithms.Instant {
	return l.told.Now.Add(max(0, now-l.toldAt))
}

// learn keeps a state that the store told with an answer at now. An older one than the last changes
// nothing, unless the clock of the store has gone back. Answers of one call have one instant and
// come in any order: the one that leaves less counts.
func (l *lease) learn(now time.Duration, told *store.State) {
	switch {
	case told.Now == 0:
	case told.Now == l.told.Now && l.left(told) > l.left(&l.told):
	case told.Now >= l.told.Now || l.told.Now.Sub(told.Now) >= overtakes:
		l.told, l.toldAt = *told, now
	}
}

// left returns how many hits a state leaves at its instant.
func (l *lease) left(told *store.State) uint64 {
	state := *told
	return state.Take(l.limit, state.Now, 0, false).Remaining
}

// peek returns the decision for hits that could be spent, without spending them: the last state
// that was told, less the hits spent since. 0 hits are the decision after spend, or for a probe.
func (l *lease) peek(now time.Duration, hits int64) algorithms.Decision {
	state := l.told
	d := state.Take(l.limit, l.instant(now), hits-l.held(now), false)
	d.Allowed, d.RetryAfter = true, 0
	return d
}

// end lets no part be spent from an instant on, before its own end.
func (l *lease) end(at time.Duration) {
	l.first.ends, l.second.ends = min(l.first.ends, at), min(l.second.ends, at)
}

// idle reports whether the lease has no hits, waits for none, and its key is not asked any more.
func (l *lease) idle(now time.Duration) bool {
	return l.asked == 0 && l.under == 0 && l.first.left == 0 && l.rate.idle(now)
}

const (
	longest  = time.Second           // the longest lease
	shortest = 10 * time.Millisecond // the shortest one that is worth a call
	// turns is how many longest leases of a bucket follow each other while the bucket refills.
	turns = 20
	// 1/reserve of the park is asked for in addition, as the last state is a little old.
	reserve = 16
	// slack and drift shorten a lease: the clocks of the process and of the store may differ by
	// slack, and run apart by 1/drift.
	slack = time.Millisecond
	drift = 1000
	// overtakes is the longest time by which an answer can overtake another one.
	overtakes = time.Second
)

type bounds struct {
	length time.Duration // of a lease, by the store's clock; 0: the limit is never leased
	park   int64         // hits that a bucket must lack when a part is charged, beside its hits
	window bool          // a lease ends with its window
}

// boundsOf returns the bounds of a valid limit. A log is never leased: hits of a log expire one by
// one, so each hit must be charged at its own instant. A ban has nothing to lease.
func boundsOf(l algorithms.Limit) bounds {
	if l.Requests == 0 {
		return bounds{}
	}
	switch l.Algorithm {
	case algorithms.FixedWindow, algorithms.SlidingWindowCounter, algorithms.CalendarWindow, algorithms.CalendarCounter:
		if l.Period < slot || l.Calendar != nil && l.Calendar.FirstHit() { // the lease does not have the first hit's window
			return bounds{}
		}
		return bounds{length: min(longest, l.Period), window: true}
	case algorithms.TokenBucket, algorithms.TokenBucketInteger:
		b := bounds{length: min(longest, scale(l.Period, l.Capacity(), turns*uint64(l.Requests)))}
		if b.length < shortest {
			return bounds{}
		}
		// Whole hits: one more as Remaining is rounded down, one as the quotient is. The gain of an
		// integer bucket in whole nanoseconds is larger by less than 1/drift.
		b.park = int64(scale(b.length+b.length/drift, uint64(l.Requests), uint64(l.Period))) + 2
		return b
	default:
		return bounds{}
	}
}

// scale returns d*x/y rounded down, held at a value above all lengths; d is at least 0 and y is not
// 0.
func scale(d time.Duration, x, y uint64) time.Duration {
	const most = 1 << 62
	hi, lo := bits.Mul64(uint64(d), x)
	if hi >= y {
		return most
	}
	quotient, _ := bits.Div64(hi, lo, y)
	return time.Duration(min(quotient, most))
}

// untilEnd returns the time from an instant to the end of its window.
func untilEnd(l algorithms.Limit, at algorithms.Instant) time.Duration {
	_, end := l.WindowOf(at)
	return end.Sub(at)
}

const (
	fewCalls    = 4        // in a slot: from then on a key is worth a lease
	leastHits   = 2        // a smaller part saves nothing
	waits       = 3        // a part of a bucket is spent in a third of the lease
	longestTrip = 2 * slot // for which a lease makes up
	pause       = slot     // without calls for hits after one that was denied, or that failed
)

// due reports whether the store may be asked for hits now.
func (l *lease) due(now time.Duration) bool {
	if l.asked > 0 || l.second.left > 0 || l.bounds.length == 0 || l.told.Now == 0 || now < l.quiet {
		return false
	}
	return 2*l.first.left <= l.first.size || now >= l.first.half
}

// want returns how many hits the store should be asked for now; 0: none. fleet is how many
// processes share the store, at least 1. After want has returned hits, charged or failed must come.
//
// The hits suffice for a slot and two round trips at the usual rate. So half of the hits suffice
// until the next part comes. A part waits while another is spent, so hits of a bucket suffice for
// a third of a lease at most. The most is half of the rest, divided by the fleet. Hits that the
// store is asked about do not belong to the rest. A bucket that lacks less than its park is asked
// for more.
func (l *lease) want(now time.Duration, fleet int) int64 {
	if !l.due(now) {
		return 0
	}
	calls, hits := l.rate.perSlot(now)
	if calls < fewCalls {
		return 0
	}
	at := l.instant(now)
	spent := l.bounds.length / waits
	if l.bounds.window {
		if spent = untilEnd(l.limit, at); spent < shortest {
			return 0
		}
	}
	spent = min(spent, slot+2*min(l.trip, longestTrip)) // the time in which the hits are spent
	hits = int64(scale(spent, uint64(hits), uint64(slot)))
	left, park := l.rest(at)
	hits = min(hits, (left-park-l.under)/(2*int64(fleet)), algorithms.MaxHits-park)
	if hits < leastHits {
		return 0
	}
	l.asked, l.wanted, l.fate = hits+park, hits, keep
	return l.asked
}

// rest returns the hits that the store would still admit by the last state that was told, and how
// many of them must be parked.
func (l *lease) rest(at algorithms.Instant) (left, park int64) {
	state := l.told
	left = int64(state.Take(l.limit, at, 0, false).Remaining)
	if park = l.bounds.park; park > 0 {
		park = max(0, park+park/reserve+1-l.deficit(left))
	}
	return left, park
}

// deficit returns how many whole hits a bucket lacks at least, of which remaining would pass.
func (l *lease) deficit(remaining int64) int64 {
	return int64(l.limit.Capacity()) - remaining - 1
}

// charged enters the part under way, which the store has decided, with the state that it told.
// begun is an instant before the store was asked. The result is hits that must be given back at
// once.
func (l *lease) charged(begun, now time.Duration, d algorithms.Decision, told *store.State) (back taken) {
	hits, wanted, fate := l.asked, l.wanted, l.fate
	l.asked, l.wanted, l.fate = 0, 0, keep
	if fate == lose {
		return taken{}
	}
	l.learn(now, told)
	if l.bounds.park > 0 {
		hits = min(hits, l.deficit(int64(d.Remaining))-l.bounds.park) // all others stay charged
	}
	if !d.Allowed || told.Now == 0 || hits <= 0 {
		l.quiet = now + pause
		return taken{}
	}
	at, length := told.Now, l.bounds.length
	if l.bounds.window {
		at, _, _ = told.State.Parts() // lies in the window that was charged, also where that is another clock's
		length = min(length, untilEnd(l.limit, told.Now))
	}
	ends := begun + length - length/drift - slack
	if fate == giveBack || ends <= now {
		return taken{hits, at}
	}
	if hits > 2*wanted { // others have parked meanwhile
		back = taken{hits - wanted, at}
		hits = wanted
	}
	next := &l.second
	if l.first.left == 0 {
		next = &l.first
	}
	*next = part{left: hits, size: hits, at: at, half: now + (ends-now)/2, ends: ends}
	return back
}

// failed notes that the store has not decided the part under way, and returns the hits that may go
// back if the store charges them. Hits of a bucket stay charged, as it is not known whether enough
// are parked.
func (l *lease) failed(now time.Duration) (hits int64) {
	if l.bounds.park == 0 && l.fate != lose {
		hits = l.asked
	}
	l.asked, l.fate, l.quiet = 0, keep, now+pause
	return hits
}

// slot is the time over which calls and hits of a key are added up, and for which a lease should
// suffice.
const slot = 100 * time.Millisecond

// rate is how often a key is asked here. In each average the last slot weighs a half, the slot
// before a quarter, and so on. The zero value is a key that was never asked.
type rate struct {
	number      int64 // of the current slot, by the holder's clock
	calls, hits int64 // in the current slot

	asked int64 // number of the slot of the last call

	usualCalls, usualHits int64 // averages of a slot, in 1/256
}

const fraction = 256 // the unit of the averages, inverted

// mostHits bounds the hits of a slot, so that no average overflows.
const mostHits = 1 << 48

func (r *rate) note(now time.Duration, hits int64) {
	r.turn(now)
	r.asked = r.number
	r.calls++
	r.hits = min(r.hits+hits, mostHits)
}

// forget takes back a call that note has just counted.
func (r *rate) forget(hits int64) { r.calls, r.hits = max(0, r.calls-1), max(0, r.hits-hits) }

// turn ends the slots that are over. An instant before the current slot counts as of this slot.
func (r *rate) turn(now time.Duration) {
	number := int64(now / slot)
	if number <= r.number {
		return
	}
	gone := uint(min(number-r.number, 63))
	r.usualCalls = (r.usualCalls + r.calls*fraction) >> gone
	r.usualHits = (r.usualHits + r.hits*fraction) >> gone
	r.number, r.calls, r.hits = number, 0, 0
}

// perSlot returns the calls and hits to expect in a slot: the averages, or the current slot's if
// these are more already.
func (r *rate) perSlot(now time.Duration) (calls, hits int64) {
	r.turn(now)
	return max(r.calls, r.usualCalls/fraction), max(r.hits, r.usualHits/fraction)
}

// rests reports whether the key was not asked for a whole slot.
func (r *rate) rests(now time.Duration) bool { return int64(now/slot) > r.asked+1 }

// idle reports whether the key was not asked for a while.
func (r *rate) idle(now time.Duration) bool {
	calls, _ := r.perSlot(now)
	return calls == 0
}
