package storetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func modelCases() []Case {
	return []Case{{"random_transactions_are_decided_as_a_plain_second_store_decides_them", agreesWithModel}}
}

// model is the plainest store: before a transaction it copies all states, and it puts the copy back to undo the transaction.
type model struct {
	states map[string]modelState
}

type modelState struct {
	state algorithms.State
	log   []taken // of sliding_window_log: all calls of Take, to be played again
	limit algorithms.Limit
}

type taken struct {
	at            algorithms.Instant
	hits          int64
	limit         algorithms.Limit
	countRejected bool
}

func (m *model) take(c store.Charge, hits int64, now algorithms.Instant) algorithms.Decision {
	name := fmt.Sprintf("%x %v %v", c.Key, c.Limit.Algorithm, c.Limit.Period)
	s, known := m.states[name]
	if c.Limit.Algorithm == algorithms.SlidingWindowLog {
		var log algorithms.Log
		for _, h := range s.log {
			log.Take(h.limit, h.at, h.hits, h.countRejected)
		}
		s.log = append(slices.Clip(s.log), taken{now, hits, c.Limit, c.CountRejected})
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

func (m *model) transaction(charges []store.Charge, now algorithms.Instant) (bool, []algorithms.Decision) {
	before := maps.Clone(m.states)
	decisions := make([]algorithms.Decision, len(charges))
	for i, c := range charges {
		decisions[i] = m.take(c, c.Hits, now)
	}
	if modelAdmits(charges, decisions) {
		return true, decisions
	}
	m.states = before
	for i, c := range charges {
		var d algorithms.Decision
		if c.CountRejected {
			d = m.take(c, c.Hits, now)
		} else {
			d = m.take(c, 0, now)
			d.Allowed, d.RetryAfter = true, 0
		}
		if decisions[i].Allowed {
			decisions[i] = d
		}
	}
	return false, decisions
}

// peek decides a charge without keeping anything of it.
func (m *model) peek(c store.Charge, now algorithms.Instant) algorithms.Decision {
	states := maps.Clone(m.states)
	c.CountRejected = false
	d := m.take(c, c.Hits, now)
	m.states = states
	return d
}

// modelAdmits is the verdict, written from the text: any enforcing denial, or all quota rules over.
func modelAdmits(charges []store.Charge, decisions []algorithms.Decision) bool {
	quotas := map[int]bool{}
	for i, c := range charges {
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
	m := &model{states: map[string]modelState{}}
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
