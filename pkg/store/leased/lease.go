package leased

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// lease is the hits of one key that this process has taken in advance, and how often the key is
// asked here. A lease decides by instants that its holder gives: it has no clock, no lock and no
// goroutine, and does not allocate. A time.Duration is an instant by the holder's monotonic clock,
// and an algorithms.Instant is one by the store's. The zero value holds nothing.
//
// The holder asks the store for the hits of want, and tells the outcome to granted or failed. spend
// then takes hits from the grants, and ended returns hits that the holder must give back. A lease
// has two grants at most, so that the next one can come before the first one is spent.
//
// # Why a lease never admits too many
//
// The store has charged hits before they are spent here. A fixed window counts charges, and all
// hits of a grant are spent in the window of the grant. So at most the limit is spent in each
// window. A sliding count falls only as time goes by, so it stays at or above the count of hits
// that were spent.
//
// A bucket also gains while hits lie here, and so could sell them twice. In an interval the fleet
// spends at most the hits held at the start and the hits granted later. The grants are at most the
// level at the start and the gain. So the fleet spends at most the burst and the gain if the
// deficit of the bucket is never smaller than all hits held. Two rules see to that:
//
//   - At each grant the deficit without the hits of the grant is at least the gain in the longest
//     lease (bounds.park). The holder asks for hits that it does not spend where the deficit would
//     be smaller.
//   - Hits are given back as of the instant of their grant, less the gain since then.
//
// Proof. Let V be the deficit less all that could be given back now. Time lowers both by the gain,
// or only the deficit where nothing could be given back. A grant raises both by its hits, and
// giving back lowers both alike. A hit that is spent lowers the second only. So V falls only while
// nothing can be given back, and then V is the deficit. By the first rule V is then at least the
// park at the next grant, and so at every grant. Now take the oldest of the leases held at some
// instant. Since its grant the deficit has lost at most the gain of one lease, and the hits given
// back of older leases. The first is the park, which V covers. The second are the part of the
// deficit beside V. So the deficit still covers all hits granted since that grant, and so all hits
// held.
type lease struct {
	limit  algorithms.Limit
	bounds bounds
	rate   rate

	first, second grant // spent in this order; second is empty if first is

	told  store.State   // the last state that the store told; the hits held are charged in it
	heard time.Duration // when the store told

	trip   time.Duration // longest round trip that the holder expects of a grant
	under  int64         // hits of the key that the holder asks the store about, beside a grant
	asked  int64         // hits of the grant under way; 0: no grant is
	wanted int64         // of these, hits that are not for the park
	fate   fate          // of the grant under way
	quiet  time.Duration // until then the store is not asked for a grant
}

// grant is hits that the store has charged and that were not spent yet.
type grant struct {
	left, size int64
	at         algorithms.Instant // of the charge, by the store's clock
	half, ends time.Duration      // from half on the next grant is asked for; from ends on nothing is spent
}

// part is hits of one grant.
type part struct {
	hits int64
	at   algorithms.Instant // of the grant
}

// fate is the use of the hits of a grant that is under way.
type fate uint8

const (
	keep fate = iota
	giveBack
	lose
)

// use prepares the lease for charges under a limit. Under another limit than before the lease is
// recalled, and use returns hits that must be given back under the limit before.
func (l *lease) use(limit algorithms.Limit) (back [2]part) {
	if l.limit == limit {
		return back
	}
	back = l.recall()
	l.fate = lose // the park of the grant under way is unknown under the new limit
	l.limit, l.bounds, l.told, l.quiet, l.under = limit, boundsOf(limit), store.State{}, 0, 0
	return back
}

// spend takes hits from the grants, all or nothing, and returns the parts of the grants for
// unspend. hits is at least 1.
func (l *lease) spend(now time.Duration, hits int64) (from [2]part, spent bool) {
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

// take takes hits, or the rest.
func (g *grant) take(hits int64) part {
	hits = min(hits, g.left)
	g.left -= hits
	return part{hits, g.at}
}

// unspend puts back hits that spend has taken, and reports whether the lease took them. Otherwise
// the holder must give them back to the store.
func (l *lease) unspend(now time.Duration, p part) bool {
	for _, g := range [...]*grant{&l.first, &l.second} {
		if g.at == p.at && now < g.ends && g.left+p.hits <= g.size {
			g.left += p.hits
			return true
		}
	}
	return false
}

// unused removes the grants of a key that was not asked for a slot, and returns their hits, which
// must be given back. Others can use them sooner.
func (l *lease) unused(now time.Duration) (back [2]part) {
	if l.first.left == 0 || !l.rate.rests(now) {
		return back
	}
	back = l.release()
	l.returned(now, back)
	return back
}

// returned notes in the last state that hits go back. A bucket gets fewer hits back.
func (l *lease) returned(now time.Duration, back [2]part) {
	if l.bounds.window > 0 {
		l.told.Take(l.limit, l.instant(now), -back[0].hits-back[1].hits, false)
	}
}

// shift makes the second grant the first one when that is spent.
func (l *lease) shift() {
	if l.first.left == 0 && l.second.left > 0 {
		l.first, l.second = l.second, grant{}
	}
}

// held returns the hits that can be spent.
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

// ended removes grants that must not be spent any more, and returns their hits, which must be given
// back.
func (l *lease) ended(now time.Duration) (back [2]part) {
	for i, g := range [...]*grant{&l.first, &l.second} {
		if g.left > 0 && now >= g.ends {
			back[i] = l.remove(g)
		}
	}
	l.returned(now, back)
	l.shift()
	return back
}

// release ends all grants but one that is under way, and returns hits that must be given back.
func (l *lease) release() (back [2]part) {
	return [...]part{l.remove(&l.first), l.remove(&l.second)}
}

// recall is release for a grant that is under way, too.
func (l *lease) recall() (back [2]part) {
	l.fate = max(l.fate, giveBack)
	return l.release()
}

// drop forgets all grants, also one that is under way: the state of the key goes, and nothing may
// be given back.
func (l *lease) drop() {
	l.fate = lose
	l.first, l.second, l.told = grant{}, grant{}, store.State{}
}

// remove removes a grant and returns the hits that were left.
func (l *lease) remove(g *grant) part {
	p := part{g.left, g.at}
	*g = grant{}
	return p
}

// instant returns the store's instant, or an instant shortly before. A caller may have read now
// before the store was heard.
func (l *lease) instant(now time.Duration) algorithms.Instant {
	return l.told.Now.Add(max(0, now-l.heard))
}

// hear notes a state that the store told with an answer at now. An older one than the last changes
// nothing, unless the clock of the store has gone back. Answers of one call have one instant and
// come in any order: the one that leaves less counts.
func (l *lease) hear(now time.Duration, told *store.State) {
	switch {
	case told.Now == 0:
	case told.Now == l.told.Now && l.left(told) > l.left(&l.told):
	case told.Now >= l.told.Now || l.told.Now.Sub(told.Now) >= overtakes:
		l.told, l.heard = *told, now
	}
}

// left returns how many hits a state leaves at its instant.
func (l *lease) left(told *store.State) uint32 {
	state := *told
	return state.Take(l.limit, state.Now, 0, false).Remaining
}

// answer returns the decision for hits that were spent here, or for a probe: the last state that
// was told, less the hits spent since.
func (l *lease) answer(now time.Duration) algorithms.Decision {
	return l.peek(now, 0)
}

// peek returns the decision for hits that are held, without spending them.
func (l *lease) peek(now time.Duration, hits int64) algorithms.Decision {
	state := l.told
	d := state.Take(l.limit, l.instant(now), hits-l.held(now), false)
	d.Allowed, d.RetryAfter = true, 0
	return d
}

// end lets no grant be spent from an instant on, before its own end.
func (l *lease) end(at time.Duration) {
	l.first.ends, l.second.ends = min(l.first.ends, at), min(l.second.ends, at)
}

// idle reports whether the lease holds nothing, waits for nothing, and its key is not asked any
// more.
func (l *lease) idle(now time.Duration) bool {
	return l.asked == 0 && l.under == 0 && l.first.left == 0 && l.rate.idle(now)
}
