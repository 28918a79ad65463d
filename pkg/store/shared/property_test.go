package shared

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// policies decides requests without the primary as plainly as can be. Charges with Local have
// states, and the policy decides the others. A copy of the states undoes a request.
type policies struct {
	states map[string]algorithms.State // by key and algorithm; each has one limit
	wait   time.Duration               // of denials by policy
}

func (m *policies) decide(c store.Charge, hits int64, at algorithms.Instant) algorithms.Decision {
	switch {
	case c.OnError == store.OnErrorAllow && c.Hits > 0 && c.Limit.Requests == 0: // a ban is one without any store
		return algorithms.Decision{RetryAfter: c.Limit.Period, ResetAfter: c.Limit.Period}
	case c.OnError == store.OnErrorAllow:
		return algorithms.Decision{Allowed: true, Remaining: c.Limit.Capacity()}
	case c.OnError == store.OnErrorDeny && c.Hits > 0:
		return algorithms.Decision{RetryAfter: m.wait, ResetAfter: m.wait}
	case c.OnError == store.OnErrorDeny:
		return algorithms.Decision{Allowed: true, ResetAfter: m.wait}
	}
	name := c.Limit.Algorithm.String() + string(c.Key)
	next, d := algorithms.Take(c.Limit, m.states[name], at, hits, c.CountRejected)
	if m.states[name] = next; next.Unused() {
		delete(m.states, name)
	}
	return d
}

// take decides a request by the text of package store.
func (m *policies) take(charges []store.Charge, at algorithms.Instant) (bool, []algorithms.Decision) {
	before := maps.Clone(m.states)
	decisions := make([]algorithms.Decision, len(charges))
	enforced, quotas := false, map[int]bool{} // rules in quota mode: whether each is over
	for i, c := range charges {
		decisions[i] = m.decide(c, c.Hits, at)
		denied := !decisions[i].Allowed
		switch c.Mode {
		case store.Enforce:
			enforced = enforced || denied
		case store.Quota:
			quotas[c.Rule] = quotas[c.Rule] || denied
		case store.ShadowQuota:
			quotas[c.Rule] = false
		case store.Shadow:
		}
	}
	within := len(quotas) == 0
	for _, over := range quotas {
		within = within || !over
	}
	if !enforced && within {
		return true, decisions
	}
	m.states = before
	for i, c := range charges {
		hits := int64(0)
		if c.CountRejected {
			hits = c.Hits
		}
		again := m.decide(c, hits, at)
		if !c.CountRejected {
			again.Allowed, again.RetryAfter = true, 0
		}
		if decisions[i].Allowed {
			decisions[i] = again
		}
	}
	return false, decisions
}

// drawCharges draws the charges of a request over few keys, so that they meet; some have the same
// key by several policies.
func drawCharges(rt *rapid.T) []store.Charge {
	charges := make([]store.Charge, rapid.IntRange(0, 7).Draw(rt, "charges"))
	for i := range charges {
		a := rapid.SampledFrom([]algorithms.Algorithm{algorithms.FixedWindow, algorithms.TokenBucket}).Draw(rt, "algorithm")
		key := rapid.IntRange(0, 2).Draw(rt, "key")
		c := store.Charge{
			Key:           []byte{byte('a' + key)},
			Exact:         true,
			Limit:         algorithms.Limit{Algorithm: a, Requests: uint32(3 * key), Period: time.Minute},
			Hits:          rapid.Int64Range(-2, 4).Draw(rt, "hits"),
			Mode:          store.Mode(rapid.IntRange(0, 3).Draw(rt, "mode")),
			CountRejected: rapid.Bool().Draw(rt, "count rejected"),
			OnError:       store.OnError(rapid.IntRange(0, 2).Draw(rt, "on error")),
		}
		if i > 0 {
			if c.Rule = charges[i-1].Rule + rapid.IntRange(0, 1).Draw(rt, "next rule"); c.Rule == charges[i-1].Rule {
				c.Mode = charges[i-1].Mode
			}
		}
		charges[i] = c
	}
	return charges
}

func TestRequestsWithoutThePrimaryAreDecidedAsAPlainModelDecidesThem(t *testing.T) {
	inBubbleAway(t, setup{MinOpen: time.Hour}, func(r *rig) {
		t := r.t
		// Without its Deadline, which a bubble has not.
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			time.Sleep(30 * time.Minute) // every key is idle
			synctest.Wait()
			m := &policies{states: map[string]algorithms.State{}}
			for range rapid.IntRange(1, 30).Draw(rt, "requests") {
				time.Sleep(time.Duration(rapid.IntRange(0, 20_000).Draw(rt, "pause")) * time.Millisecond)
				charges := drawCharges(rt)
				m.wait = time.Second
				wantAdmitted, want := m.take(charges, now())
				decisions := make([]algorithms.Decision, len(charges)+1)
				decisions[len(charges)].Remaining = 99
				admitted, err := store.Take(t.Context(), r, charges, decisions)
				if err != nil || admitted != wantAdmitted {
					rt.Fatalf("Take = %v, %v; want %v; charges %+v", admitted, err, wantAdmitted, charges)
				}
				if diff := cmp.Diff(want, decisions[:len(charges)]); diff != "" {
					rt.Fatalf("decisions (-want +got):\n%s\ncharges %+v", diff, charges)
				}
				if decisions[len(charges)] != (algorithms.Decision{Remaining: 99}) {
					rt.Fatal("Take wrote past the decisions of the charges")
				}
				if got := r.local.Stats().Keys; got > len(m.states) {
					rt.Fatalf("the local store has %d keys; want those of its own charges, at most %d", got, len(m.states))
				}
			}
		})
	})
}
