package model

import (
	"cmp"
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Key is a key as its charges left it. The zero value is a key never used.
type Key struct {
	Limit algorithms.Limit // of the last charge that was no ban; zero without a state and a log
	State algorithms.State // of every algorithm but sliding_window_log and concurrency

	taken []taken  // of sliding_window_log: what has changed the log, to be played again
	holds []holder // by holder; some may have run out
}

// taken is a charge of a log.
type taken struct {
	at            algorithms.Instant
	hits          int64
	limit         algorithms.Limit
	countRejected bool

	back    bool               // the hits came back,
	charged algorithms.Instant // which were taken at this instant
	joins   bool               // see Join
}

// holder is a holder and its memory.
type holder struct {
	holder store.Holder
	hold   algorithms.Hold
	gives  bool             // the hits come back when the holder runs out,
	limit  algorithms.Limit // under this limit
}

// Equal reports whether two keys are the same.
func (k Key) Equal(o Key) bool {
	return k.Limit == o.Limit && k.State == o.State && slices.Equal(k.taken, o.taken) && slices.Equal(k.holds, o.holds)
}

// Unused reports whether a store need not remember the state. Holders say nothing.
func (k Key) Unused() bool { return k.State.Unused() && k.Log().Unused() }

// IdleAt returns the instant from which the key is full. Holders say nothing.
func (k Key) IdleAt() algorithms.Instant {
	if k.taken != nil {
		return k.Log().IdleAt(k.Limit)
	}
	return algorithms.IdleAt(k.Limit, k.State)
}

// Log returns a log of the key's hits; an empty one for another algorithm.
func (k Key) Log() *algorithms.Log {
	log := new(algorithms.Log)
	for _, t := range k.taken {
		if t.back {
			log.GiveBack(t.limit, t.at, t.charged, uint32(t.hits))
		} else {
			log.Take(t.limit, t.at, t.hits, t.countRejected)
		}
		if t.joins {
			log = joined(log, t.limit, t.at)
		}
	}
	return log
}

// Join returns the key of a store without room. After the last charge the two newest entries of the
// log are one, at the later instant.
func (k Key) Join() Key {
	k.taken = slices.Clone(k.taken)
	k.taken[len(k.taken)-1].joins = true
	return k
}

// joined returns a log whose two newest entries are one.
func joined(log *algorithms.Log, l algorithms.Limit, now algorithms.Instant) *algorithms.Log {
	entries := log.AppendEntries(nil)
	if n := len(entries); n >= 2 {
		entries[n-1].Hits += entries[n-2].Hits
		entries = slices.Delete(entries, n-2, n-1)
	}
	log = new(algorithms.Log)
	for _, e := range entries {
		log.Restore(l, e, now)
	}
	return log
}

// Take returns the key after hits of a charge without a holder, and the decision.
func (k Key) Take(c *store.Charge, hits int64, now algorithms.Instant) (Key, algorithms.Decision) {
	return k.take(c, hits, now, algorithms.Counting(c.CountRejected))
}

func (k Key) take(c *store.Charge, hits int64, now algorithms.Instant, excess algorithms.Excess) (Key, algorithms.Decision) {
	var d algorithms.Decision
	was, before := k.Limit, k
	if c.Limit.Algorithm == algorithms.SlidingWindowLog {
		counts := excess != algorithms.Refuse
		d = k.Log().Take(c.Limit, now, hits, counts)
		if hits != 0 && (d.Allowed || counts) {
			k.taken = append(slices.Clip(k.taken), taken{at: now, hits: hits, limit: c.Limit, countRejected: counts})
		}
		k.Limit = c.Limit
	} else {
		k.State, k.Limit, d = algorithms.TakeAs(k.Limit, c.Limit, k.State, now, hits, excess)
	}
	if hits >= 0 && k.State.Unused() && !before.State.Unused() && before.IdleAt() <= now { // a probe or a denial changes nothing
		k.State, k.Limit = before.State, before.Limit // an idle one, which a store may keep
	}
	if c.Limit.Requests == 0 && was.Requests > 0 {
		k.Limit = was // as memstore (decision 27): no answer depends on it
	}
	return k.settled(), d
}

// giveBack returns the key after hits have come back that were charged at an instant.
func (k Key) giveBack(c *store.Charge, hits uint32, charged, now algorithms.Instant) Key {
	if c.Limit.Algorithm == algorithms.SlidingWindowLog {
		k.taken = append(slices.Clip(k.taken), taken{at: now, hits: int64(hits), limit: c.Limit, back: true, charged: charged})
	} else {
		k.State, k.Limit = algorithms.GiveBack(k.Limit, c.Limit, k.State, charged, now, hits)
	}
	return k.settled()
}

// settled returns the key without what says nothing.
func (k Key) settled() Key {
	if k.Unused() {
		return Key{holds: k.holds}
	}
	return k
}

// hold returns the live hold of a charge's holder, the zero value without a holder.
func (k Key) hold(c *store.Charge, now algorithms.Instant) algorithms.Hold {
	if c.Hold != nil {
		if i := slices.IndexFunc(k.holds, func(h holder) bool { return h.holder == c.Hold.Holder }); i >= 0 {
			return k.holds[i].hold.Live(now)
		}
	}
	return algorithms.Hold{}
}

// note returns the key with the memory of a charge's holder as the charge leaves it.
func (k Key) note(c *store.Charge, now algorithms.Instant, passed bool) Key {
	if c.Hold == nil {
		return k
	}
	was := k.hold(c, now)
	after := was.After(c.Hold.Phase, c.Limit, now, c.Hits, c.Hold.AtMost, passed)
	gives := c.Hold.GivesBack
	if after == was { // the holder is as its begin left it
		for _, h := range k.holds {
			if h.holder == c.Hold.Holder {
				gives = h.gives
			}
		}
	}
	k.holds = slices.DeleteFunc(slices.Clone(k.holds), func(h holder) bool { return h.holder == c.Hold.Holder })
	if after != (algorithms.Hold{}) {
		k.holds = append(k.holds, holder{c.Hold.Holder, after, gives, c.Limit})
		slices.SortFunc(k.holds, func(x, y holder) int { return slices.Compare(x.holder[:], y.holder[:]) })
	}
	return k
}

// runOut returns the key after holders that give back have run out at now. The hits come back in
// order, each at the instant at which its holder ran out. Such a holder is forgotten.
func (k Key) runOut(now algorithms.Instant) Key {
	holds := slices.Clone(k.holds)
	slices.SortStableFunc(holds, func(x, y holder) int { return cmp.Compare(x.hold.Until, y.hold.Until) })
	for _, h := range holds {
		if !h.gives || h.hold.Until > now || h.limit.Algorithm == algorithms.Concurrency {
			continue
		}
		k.holds = slices.DeleteFunc(slices.Clone(k.holds), func(o holder) bool { return o.holder == h.holder })
		if h.hold.Status == algorithms.HoldHeld && !k.Unused() {
			k = k.giveBack(&store.Charge{Limit: k.Limit}, h.hold.Hits, h.hold.At, h.hold.Until)
		}
	}
	return k
}

// effect returns the work of a charge. Without a holder, concurrency is asked as by a probe.
func (k Key) effect(c *store.Charge, now algorithms.Instant) algorithms.Effect {
	switch {
	case c.Hold != nil:
		return k.hold(c, now).Effect(c.Hold.Phase, c.Limit, c.Hits)
	case c.Limit.Algorithm == algorithms.Concurrency:
		return algorithms.Effect{}
	default:
		return algorithms.Effect{Hits: c.Hits}
	}
}

// apply returns the key after the work of a charge, and the decision. Under concurrency note does
// the work.
func (k Key) apply(c *store.Charge, e algorithms.Effect, now algorithms.Instant) (Key, algorithms.Decision) {
	var d algorithms.Decision
	excess := e.Excess(c.CountRejected)
	switch {
	case c.Limit.Algorithm == algorithms.Concurrency:
		d = k.slots(c, uint32(min(max(e.Hits, 0), algorithms.MaxHits)), now)
	case e.Forced && e.Hits < 0:
		k, d = k.giveBack(c, uint32(-e.Hits), e.Charged, now).take(c, 0, now, excess)
	default:
		k, d = k.take(c, e.Hits, now, excess)
	}
	if e.Forced {
		d.Allowed, d.RetryAfter = true, 0
	}
	return k, d
}

// slots decides on hits of concurrency from a walk over all holders.
func (k Key) slots(c *store.Charge, hits uint32, now algorithms.Instant) algorithms.Decision {
	var s algorithms.Slots
	for _, h := range k.holds {
		if h := h.hold.Live(now); h.Status == algorithms.HoldHeld {
			if s.Used == 0 {
				s.First, s.Last = h.Until, h.Until
			}
			s = algorithms.Slots{Used: s.Used + uint64(h.Hits), First: min(s.First, h.Until), Last: max(s.Last, h.Until)}
		}
	}
	if c.Hold == nil {
		return s.Decide(c.Limit, now, hits, 0)
	}
	return s.Decide(c.Limit, now, hits, c.Hold.AtMost)
}
