package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func modelCases() []Case {
	return []Case{{"random_transactions_are_decided_as_a_plain_second_store_decides_them", func(t *testing.T, e Env) { asModel(t, e, randomCharges, false) }}}
}

// asModel compares the store with a model over random transactions, and with reads over the answers
// of the other methods.
func asModel(t *testing.T, e Env, random func(*rand.Rand) []store.Charge, reads bool) {
	seed := uint64(20261121)
	r, m := rand.New(rand.NewPCG(seed, 1)), model.Keys{}
	scale := []time.Duration{0, time.Millisecond, 100 * time.Millisecond, 7 * time.Second, 31 * time.Second, 5 * time.Minute}
	for step := range race.Scale(3000) {
		if pause := scale[r.IntN(len(scale))]; pause > 0 && r.IntN(3) == 0 {
			e.Sleep(pause + time.Duration(r.IntN(1000))*time.Microsecond)
		}
		charges, now := e.sized(random(r)), e.Now()
		told := make([]store.State, len(charges))
		for i := range charges {
			charges[i].Left = &told[i]
		}
		switch n := r.IntN(20); {
		case !reads:
		case n == 0:
			e.resetAsModel(t, m, charges[:1])
		case n == 1:
			e.peekAsModel(t, m, charges[:1], now)
		case n == 2:
			e.listAsModel(t, m, &charges[0], now)
		}
		asked := model.Copy(charges)
		admitted, decisions := e.take(t, charges...)
		if diff := differs(charges, admitted, decisions, m.Take(asked, now)); diff != "" {
			t.Fatalf("seed %d, step %d: %s", seed, step, diff)
		}
		for i, c := range charges {
			if told[i].Now == 0 || !c.Limit.Algorithm.HasState() || c.Hold != nil {
				continue // the store does not tell states
			}
			c.CountRejected = false
			want, _ := m.Peek(&c, now)
			got := told[i].Take(c.Limit, now, c.Hits, false)
			if told[i].Now != now || got != want {
				t.Fatalf("seed %d, step %d: charges %s: the state told of charge %d, of instant %d, decides %+v; want %+v at %d",
					seed, step, describe(charges), i, told[i].Now, got, want, now)
			}
		}
	}
}

// togetherAsModel compares the store with a model over random transactions of different keys, which
// are taken together.
func togetherAsModel(t *testing.T, e Env, random func(*rand.Rand) []store.Charge) {
	seed := uint64(20261122)
	r, m := rand.New(rand.NewPCG(seed, 1)), model.Keys{}
	for step := range race.Scale(200) {
		if r.IntN(3) == 0 {
			e.Sleep(time.Duration(r.IntN(40_000)) * time.Millisecond)
		}
		all := make([]store.Transaction, r.IntN(30))
		for i := range all {
			charges := e.sized(random(r))
			for n := range charges {
				charges[n].Key = fmt.Appendf(nil, "%d %s", i, charges[n].Key)
			}
			all[i] = transaction(t.Context(), charges...)
		}
		now, asked := e.Now(), make([][]store.Charge, len(all))
		for i := range all {
			asked[i] = model.Copy(all[i].Charges)
		}
		e.takeAll(t, all)
		for i := range all {
			diff := differs(all[i].Charges, all[i].Admitted, all[i].Decisions, m.Take(asked[i], now))
			if all[i].Err != nil || diff != "" {
				t.Fatalf("seed %d, step %d, transaction %d: error %v: %s", seed, step, i, all[i].Err, diff)
			}
		}
	}
}

// differs says how the answer of a store differs from the answer of a model; "" if they are equal.
func differs(charges []store.Charge, admitted bool, decisions []algorithms.Decision, want model.Answer) string {
	got := model.Answer{
		Admitted: admitted, Decisions: decisions, Found: make([]algorithms.Hold, len(charges)), Phases: model.PhasesOf(charges),
	}
	for i := range charges {
		if h := charges[i].Hold; h != nil {
			got.Found[i] = h.Was
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Sprintf("charges %s (-want +got):\n%s", describe(charges), diff)
	}
	return ""
}

// describe returns charges and their holds as text.
func describe(charges []store.Charge) string {
	var text strings.Builder
	for _, c := range charges {
		fmt.Fprintf(&text, "\n\t%s %+v hits %d rule %d mode %d counts rejected %v", c.Key, c.Limit, c.Hits, c.Rule, c.Mode, c.CountRejected)
		if c.Hold != nil {
			fmt.Fprintf(&text, " phase %d estimate %d holder %x at most %v was %+v", c.Hold.Phase, c.Hold.Estimate, c.Hold.Holder[:2], c.Hold.AtMost, c.Hold.Was)
		}
	}
	return text.String()
}

// resetAsModel forgets a state and its holders in the store and in the model.
func (e Env) resetAsModel(t *testing.T, m model.Keys, charges []store.Charge) {
	t.Helper()
	if _, err := e.Store.Reset(t.Context(), charges); err != nil {
		t.Fatalf("Reset failed: %v", err)
	}
	m.Reset(charges)
}

// peekAsModel compares the answers of Peek about a charge.
func (e Env) peekAsModel(t *testing.T, m model.Keys, charges []store.Charge, now algorithms.Instant) {
	t.Helper()
	got := make([]algorithms.Decision, 1)
	peeked := model.Copy(charges)
	if err := e.Store.Peek(t.Context(), peeked, got); err != nil {
		t.Fatalf("Peek failed: %v", err)
	}
	d, found := m.Peek(&charges[0], now)
	want := model.Answer{Decisions: []algorithms.Decision{d}, Found: []algorithms.Hold{found}, Phases: model.PhasesOf(peeked)}
	if diff := differs(peeked, false, got, want); diff != "" {
		t.Fatalf("peek of %s", diff)
	}
}

// listAsModel compares the holders of a state, if the store lists these.
func (e Env) listAsModel(t *testing.T, m model.Keys, c *store.Charge, now algorithms.Instant) {
	t.Helper()
	got, all, err := e.Store.Holders(t.Context(), c, 100)
	if errors.Is(err, store.ErrNotListed) {
		return
	}
	want := m.Held(c, now)
	byHolder := cmp.Transformer("byHolder", func(held []store.Held) map[store.Holder]store.Held { // of the same Until in any order
		by := make(map[store.Holder]store.Held)
		for _, h := range held {
			by[h.Holder] = h
		}
		return by
	})
	if diff := cmp.Diff(want, got, byHolder); err != nil || all != len(want) || diff != "" {
		t.Fatalf("%d holders of %s: %v (-want +got):\n%s", all, describe([]store.Charge{*c}), err, diff)
	}
}

// randomCharges returns the charges of a request with few keys, so that they meet.
func randomCharges(r *rand.Rand) []store.Charge {
	charges := make([]store.Charge, 1+r.IntN(4)*r.IntN(2))
	rule := 0
	for i := range charges {
		a := EveryRate()[r.IntN(len(EveryRate()))]
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
		if r.IntN(3) == 0 {
			inBillions(&charges[i])
		}
	}
	for i := 1; i < len(charges); i++ { // the charges of a rule have its mode
		if charges[i].Rule == charges[i-1].Rule {
			charges[i].Mode = charges[i-1].Mode
		}
	}
	return charges
}

// inBillions gives a charge of a window a limit and hits a billion times as large, and somewhat
// more.
func inBillions(c *store.Charge) {
	const times = 1_234_567_891
	if c.Limit.Algorithm.HasWindows() {
		c.Limit.SetPerPeriod(c.Limit.PerPeriod() * times)
		c.Hits = min(c.Hits*times, algorithms.MaxHits)
	}
}

// sized gives charges of large limits keys of their own, where the store needs that.
func (e Env) sized(charges []store.Charge) []store.Charge {
	for i := range charges {
		if c := &charges[i]; e.OneSize && c.Limit.PerPeriod() > 1<<30 {
			c.Key = append([]byte("large "), c.Key...)
		}
	}
	return charges
}

// randomReturns returns charges as randomHolds does, all with holders whose hits come back.
func randomReturns(r *rand.Rand) []store.Charge {
	charges := randomHolds(r)
	for i := range charges {
		if c := &charges[i]; c.Hold == nil {
			c.Hold = &store.Hold{Phase: algorithms.HoldBegin, Holder: store.HolderOf([]byte{byte(r.IntN(40))}), AtMost: 20 * time.Second}
		}
		charges[i].Hold.GivesBack = true
	}
	return charges
}

// randomHolds returns random charges, most of them with one of few holders.
func randomHolds(r *rand.Rand) []store.Charge {
	charges := randomCharges(r)
	for i := range charges {
		c := &charges[i]
		if r.IntN(3) == 0 {
			c.Limit = algorithms.Limit{Algorithm: algorithms.Concurrency, Requests: c.Limit.Requests}
		}
		if r.IntN(5) == 0 {
			continue
		}
		phases := []algorithms.HoldPhase{
			algorithms.HoldBegin, algorithms.HoldBegin, algorithms.HoldBegin, algorithms.HoldEnd, algorithms.HoldEnd, algorithms.HoldBegun, algorithms.HoldCancel,
			algorithms.HoldPair, algorithms.HoldPair, algorithms.HoldPair,
		}
		atMosts := []time.Duration{time.Millisecond, time.Second, 10 * time.Second, time.Minute, time.Hour}
		c.Hold = &store.Hold{
			Phase:  phases[r.IntN(len(phases))],
			Holder: store.HolderOf([]byte{byte(r.IntN(4))}),
			AtMost: atMosts[r.IntN(len(atMosts))],
		}
		if c.Hold.Phase == algorithms.HoldPair {
			c.Hold.Estimate = uint32(r.IntN(6))
		}
	}
	return charges
}
