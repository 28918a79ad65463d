package redisstore

import (
	"maps"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// model is a plain store of package algorithms alone. Unlike memstore, a model takes any instants
// and shows its states.
type model map[string]modelKey

type modelKey struct {
	kept kept
	log  algorithms.Log
}

// states is the states of keys within a transaction, until apply writes them to the model.
type states struct {
	of    model
	now   algorithms.Instant
	keys  map[string]kept
	logs  map[string]algorithms.Pending
	limit map[string]algorithms.Limit
}

func (m model) at(now algorithms.Instant) *states {
	return &states{m, now, map[string]kept{}, map[string]algorithms.Pending{}, map[string]algorithms.Limit{}}
}

func (s *states) take(c *store.Charge, hits int64) (d algorithms.Decision) {
	name := string(appendKey(nil, c))
	s.limit[name] = c.Limit
	if c.Limit.Algorithm == algorithms.SlidingWindowLog {
		log := s.of[name].log
		s.logs[name], d = log.Decide(c.Limit, s.now, s.logs[name], hits, c.CountRejected)
		return d
	}
	k, known := s.keys[name]
	if !known {
		k = s.of[name].kept
	}
	d = k.take(c.Limit, s.now, hits, c.CountRejected)
	s.keys[name] = k
	return d
}

func (s *states) apply() {
	for name, k := range s.keys {
		s.of[name] = modelKey{kept: k}
	}
	for name, p := range s.logs {
		k := s.of[name]
		k.log.Apply(s.limit[name], s.now, p)
		s.of[name] = k
	}
}

// transaction is Take as package store says it.
func (m model) transaction(charges []store.Charge, now algorithms.Instant) (bool, []algorithms.Decision) {
	decisions := make([]algorithms.Decision, len(charges))
	s := m.at(now)
	for i := range charges {
		decisions[i] = s.take(&charges[i], charges[i].Hits)
	}
	if store.Admitted(charges, decisions) {
		s.apply()
		return true, decisions
	}
	s = m.at(now)
	for i := range charges {
		c := &charges[i]
		var d algorithms.Decision
		if c.CountRejected {
			d = s.take(c, c.Hits)
		} else {
			d = s.take(c, 0)
			d.Allowed, d.RetryAfter = true, 0
		}
		if decisions[i].Allowed {
			decisions[i] = d
		}
	}
	s.apply()
	return false, decisions
}

// peek is Peek.
func (m model) peek(charges []store.Charge, now algorithms.Instant) []algorithms.Decision {
	decisions := make([]algorithms.Decision, len(charges))
	for i := range charges {
		decisions[i] = m.at(now).take(&charges[i], charges[i].Hits)
	}
	return decisions
}

// reset is Reset.
func (m model) reset(charges []store.Charge) {
	for i := range charges {
		maps.DeleteFunc(m, func(name string, _ modelKey) bool { return name == string(appendKey(nil, &charges[i])) })
	}
}

// answer asks the model a recorded question, at its instant.
func (m model) answer(q recorded) recorded {
	switch q.op {
	case opTake:
		q.admitted, q.decisions = m.transaction(q.charges, q.now)
	case opPeek:
		q.decisions = m.peek(q.charges, q.now)
	case opReset:
		m.reset(q.charges)
	}
	return q
}
