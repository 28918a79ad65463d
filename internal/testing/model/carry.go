package model

import (
	"fmt"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// carry carries hits over to the charges that have limits before: forth from the oldest limit on,
// or back from the newest one on.
func (m Keys) carry(charges []store.Charge, now algorithms.Instant, back bool) {
	for i := range charges {
		c := &charges[i]
		for n := range c.Before {
			if back {
				n = len(c.Before) - 1 - n
			}
			f, to := &c.Before[n], *c
			if at := c.Taker(n); at < len(c.Before) {
				to = store.Charge{Key: c.Before[at].Key, Limit: c.Before[at].Limit}
			}
			if from := (store.Charge{Key: f.Key, Limit: f.Limit}); !back || f.Both {
				a, b := m.side(&from, &to), m.side(&to, &from)
				a.Parts, b.Parts = uint64(f.Parts), uint64(f.To)
				algorithms.Carry(&a, &b, now, f.Both)
				m.keep(&from, &to, &a)
				m.keep(&to, &from, &b)
			}
		}
	}
}

// markOf returns the name of the mark of a key, for a change to or from another key.
func markOf(c, other *store.Charge) Name {
	name := NameOf(c)
	name.Key = fmt.Sprint("mark of ", NameOf(c), " for ", NameOf(other))
	return name
}

func (m Keys) side(c, other *store.Charge) algorithms.Side {
	key, mark := m[NameOf(c)], m[markOf(c, other)]
	s := algorithms.Side{Limit: c.Limit, State: key.State, Was: key.Limit, Mark: mark.State, MarkWas: mark.Limit}
	if c.Limit.Algorithm == algorithms.SlidingWindowLog {
		s.Log, s.MarkLog = key.Log(), mark.Log()
		s.Was, s.MarkWas = algorithms.Limit{}, algorithms.Limit{}
	}
	return s
}

func (m Keys) keep(c, other *store.Charge, s *algorithms.Side) {
	key := Key{Limit: s.Was, State: s.State, holds: m[NameOf(c)].holds}
	mark := Key{Limit: s.MarkWas, State: s.Mark}
	if s.Log != nil {
		key.Limit, key.taken = c.Limit, entries(c.Limit, s.Log)
		mark.Limit, mark.taken = c.Limit, entries(c.Limit, s.MarkLog)
	}
	m.put(NameOf(c), key.settled())
	m.put(markOf(c, other), mark.settled())
}

// entries returns charges that make a log with the entries of another one.
func entries(l algorithms.Limit, log *algorithms.Log) (all []taken) {
	l.Requests = algorithms.MaxHits
	for _, e := range log.AppendEntries(nil) {
		all = append(all, taken{at: e.At, hits: int64(e.Hits), limit: l, countRejected: true})
	}
	return all
}
