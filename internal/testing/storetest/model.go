package storetest

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func modelCases() []Case {
	return []Case{{"random_transactions_are_decided_as_a_plain_second_store_decides_them", agreesWithModel}}
}

// model is the plainest store: before a transaction it copies all states, and it puts the copy back
// to undo the transaction.
type model struct {
	states  map[string]modelState
	holders map[modelHolder]algorithms.Hold
}

func newModel() *model {
	return &model{states: map[string]modelState{}, holders: map[modelHolder]algorithms.Hold{}}
}

type modelState struct {
	state algorithms.State
	log   []taken // of sliding_window_log: all calls of Take and GiveBack, to be played again
	limit algorithms.Limit
}

type taken struct {
	at            algorithms.Instant
	hits          int64
	limit         algorithms.Limit
	countRejected bool

	givenBack bool               // the hits came back, of
	charged   algorithms.Instant // the charge at this instant
}

func (m *model) take(c store.Charge, hits int64, now algorithms.Instant) algorithms.Decision {
	name := stateOf(c)
	s, known := m.states[name]
	if c.Limit.Algorithm == algorithms.SlidingWindowLog {
		var log algorithms.Log
		for _, h := range s.log {
			if h.givenBack {
				log.GiveBack(h.limit, h.at, h.charged, uint32(h.hits))
			} else {
				log.Take(h.limit, h.at, h.hits, h.countRejected)
			}
		}
		s.log = append(slices.Clip(s.log), taken{at: now, hits: hits, limit: c.Limit, countRejected: c.CountRejected})
		m.states[name] = s
		return log.Take(c.Limit, now, hits, c.CountRejected)
	}
	var d algorithms.Decision
	if !known {
		s.limit = c.Limit
	}
	s.state, s.limit, d = algorithms.TakeAs(s.limit, c.Limit, s.state, now, hits, c.CountRejected)
	m.states[name] = s
	return d
}

// giveBack gives hits back that were taken from the key at instant charged.
func (m *model) giveBack(c store.Charge, hits uint32, charged, now algorithms.Instant) {
	name := stateOf(c)
	s, known := m.states[name]
	switch {
	case c.Limit.Algorithm == algorithms.SlidingWindowLog:
		s.log = append(slices.Clip(s.log), taken{at: now, hits: int64(hits), limit: c.Limit, givenBack: true, charged: charged})
	case known:
		s.state, s.limit = algorithms.GiveBack(s.limit, c.Limit, s.state, charged, now, hits)
	default:
		return
	}
	m.states[name] = s
}

func (m *model) transaction(charges []store.Charge, now algorithms.Instant) (bool, []algorithms.Decision) {
	decisions, effects := make([]algorithms.Decision, len(charges)), make([]algorithms.Effect, len(charges))
	m.settle(charges, decisions, now)
	states, holders := maps.Clone(m.states), maps.Clone(m.holders)
	for i, c := range charges {
		if settles(c) {
			continue
		}
		effects[i] = m.effect(c, now)
		decisions[i] = m.apply(c, effects[i], now)
		if c.Hold != nil {
			m.note(c, now, decisions[i].Allowed) // as far as the next charges can see
		}
	}
	admitted := modelAdmits(charges, decisions)
	m.holders = holders
	if !admitted {
		m.states = states
		m.deny(charges, decisions, effects, now)
	}
	for i, c := range charges {
		if c.Hold != nil && !settles(c) {
			m.note(c, now, admitted && decisions[i].Allowed)
		}
	}
	return admitted, decisions
}

// deny applies and decides the charges of a request that is denied. Nothing is held, so only rate
// limits can count rejected hits.
func (m *model) deny(charges []store.Charge, decisions []algorithms.Decision, effects []algorithms.Effect, now algorithms.Instant) {
	for i, c := range charges {
		if settles(c) {
			continue
		}
		var d algorithms.Decision
		if c.CountRejected && c.Limit.Algorithm != algorithms.Concurrency {
			d = m.apply(c, effects[i], now)
		} else {
			d = m.apply(c, algorithms.Effect{Forced: true}, now)
		}
		if decisions[i].Allowed {
			decisions[i] = d
		}
	}
}

// peek decides a charge without keeping anything of it.
func (m *model) peek(c store.Charge, now algorithms.Instant) algorithms.Decision {
	states, holders := maps.Clone(m.states), maps.Clone(m.holders)
	_, d := m.transaction([]store.Charge{c}, now)
	m.states, m.holders = states, holders
	return d[0]
}

// modelAdmits is the verdict, written from the text: any enforcing denial, or all quota rules over.
func modelAdmits(charges []store.Charge, decisions []algorithms.Decision) bool {
	quotas := map[int]bool{}
	for i, c := range charges {
		if settles(c) {
			continue
		}
		denied := !decisions[i].Allowed
		if c.Mode == store.Enforce && denied {
			return false
		}
		switch c.Mode {
		case store.Quota:
			quotas[c.Rule] = quotas[c.Rule] || denied
		case store.ShadowQuota:
			quotas[c.Rule] = false
		case store.Enforce, store.Shadow:
		}
	}
	for _, over := range quotas {
		if !over {
			return true
		}
	}
	return len(quotas) == 0
}

func agreesWithModel(t *testing.T, e Env) {
	seed := uint64(20261121)
	r := rand.New(rand.NewPCG(seed, 1))
	m := newModel()
	scale := []time.Duration{0, time.Millisecond, 100 * time.Millisecond, 7 * time.Second, 31 * time.Second, 5 * time.Minute}
	for step := range race.Scale(3000) {
		if pause := scale[r.IntN(len(scale))]; pause > 0 && r.IntN(3) == 0 {
			e.Sleep(pause + time.Duration(r.IntN(1000))*time.Microsecond)
		}
		charges := randomCharges(r)
		told := make([]store.State, len(charges))
		for i := range charges {
			charges[i].Left = &told[i]
		}
		now := e.Now()
		admitted, decisions := e.take(t, charges...)
		wantAdmitted, want := m.transaction(charges, now)
		if diff := cmp.Diff(want, decisions); diff != "" || admitted != wantAdmitted {
			t.Fatalf("seed %d, step %d: admitted %v; want %v; charges %+v; decisions (-want +got):\n%s",
				seed, step, admitted, wantAdmitted, charges, diff)
		}
		for i, c := range charges {
			if told[i].Now == 0 || !c.Limit.Algorithm.HasState() {
				continue // the store does not tell states
			}
			c.CountRejected = false
			want, got := m.peek(c, now), told[i].Take(c.Limit, now, c.Hits, false)
			if told[i].Now != now || got != want {
				t.Fatalf("seed %d, step %d: charges %+v: the state told of charge %d, of instant %d, decides %+v; want %+v at %d",
					seed, step, charges, i, told[i].Now, got, want, now)
			}
		}
	}
}

// randomCharges returns the charges of a request with few keys, so that they meet.
func randomCharges(r *rand.Rand) []store.Charge {
	charges := make([]store.Charge, 1+r.IntN(4)*r.IntN(2))
	rule := 0
	for i := range charges {
		a := algorithms.RateAlgorithms()[r.IntN(len(algorithms.RateAlgorithms()))]
		l := algorithms.Limit{Algorithm: a, Requests: uint32(r.IntN(12)), Period: time.Minute}
		if a == algorithms.TokenBucket && l.Requests > 0 && r.IntN(2) == 0 {
			l.Burst = 1 + uint32(r.IntN(20))
		}
		rule += r.IntN(2)
		charges[i] = store.Charge{
			Key:           []byte{byte('a' + r.IntN(4))},
			Limit:         l,
			Hits:          int64(r.IntN(8) - 2),
			Rule:          rule,
			Mode:          store.Mode(r.IntN(4)),
			CountRejected: r.IntN(3) == 0,
		}
	}
	for i := 1; i < len(charges); i++ { // the charges of a rule have its mode
		if charges[i].Rule == charges[i-1].Rule {
			charges[i].Mode = charges[i-1].Mode
		}
	}
	return charges
}
