package linear

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/testing/race", "pkg/algorithms", "pkg/store"},
		Third: []string{"github.com/anishathalye/porcupine"},
	})
}

// defect is a mistake of a store.
type defect string

// plain is the plainest store, with one defect or without.
type plain struct {
	defect defect
	clock  *atomic.Int64

	mu     sync.Mutex // guards all below
	keys   map[string]key
	before map[string]key // of the last transaction
}

func (p *plain) now() algorithms.Instant { return algorithms.Instant(p.clock.Load()) }

// load returns the keys of charges, the number of each charge's key, and their names.
func (p *plain) load(charges []store.Charge) (keys []key, numbers []int, names []string) {
	place := make(map[string]int)
	for i := range charges {
		name := string(charges[i].Key)
		if _, known := place[name]; !known {
			place[name] = len(keys)
			keys, names = append(keys, p.keys[name]), append(names, name)
		}
		numbers = append(numbers, place[name])
	}
	return keys, numbers, names
}

func (p *plain) Take(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys, numbers, names := p.load(charges)
	if p.defect == "a lost update" {
		p.mu.Unlock()
		runtime.Gosched()
		p.mu.Lock()
	}
	next, out := step(keys, call{now: p.now(), keys: numbers, charges: charges})
	copy(decisions, out.decisions)
	found(charges, out)
	if p.defect == "a refund twice" && charges[0].Hits < 0 {
		next, _ = step(next, call{now: p.now(), keys: numbers, charges: charges})
	}
	if p.defect == "a denial that charges" && !out.admitted && len(charges) > 1 {
		next, _ = step(next, call{now: p.now(), keys: numbers[:1], charges: charges[:1]})
	}
	for i, name := range names {
		if p.defect == "a holder that is forgotten" {
			next[i].holders = nil
		}
		p.before[name] = p.keys[name]
		p.keys[name] = next[i]
		if p.defect == "a part that is seen" {
			p.mu.Unlock()
			runtime.Gosched()
			p.mu.Lock()
		}
	}
	return out.admitted, nil
}

func (p *plain) Peek(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys, numbers, names := p.load(charges)
	if p.defect == "a stale peek" {
		keys[0] = p.before[names[0]]
	}
	_, out := step(keys, call{method: peek, now: p.now(), keys: numbers, charges: charges})
	copy(decisions, out.decisions)
	found(charges, out)
	return nil
}

// found writes the holds that an answer found to the charges.
func found(charges []store.Charge, out answer) {
	for i := range out.found {
		if h := charges[i].Hold; h != nil {
			h.Was = out.found[i]
		}
	}
}

func (p *plain) Reset(_ context.Context, charges []store.Charge) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys, _, names := p.load(charges)
	if p.defect != "a reset that keeps" {
		delete(p.keys, names[0])
	}
	if keys[0].state.Unused() && keys[0].log == nil {
		return 0, nil
	}
	return 1, nil
}

// TestAStoreWithADefectIsRejected: the checker finds each defect, and nothing in the store without
// one.
func TestAStoreWithADefectIsRejected(t *testing.T) {
	for _, c := range []struct {
		defect
		plan Plan
	}{
		{"", OneKey()},
		{"", Crossing()},
		{"", InParts()},
		{"", Holding()},
		{"a lost update", Holding()},
		{"a part that is seen", Holding()},
		{"a holder that is forgotten", Holding()},
		{"a lost update", OneKey()},
		{"a lost update", InParts()},
		{"a refund twice", OneKey()},
		{"a refund twice", InParts()},
		{"a stale peek", OneKey()},
		{"a reset that keeps", OneKey()},
		{"a denial that charges", Crossing()},
		{"a denial that charges", InParts()},
		{"a part that is seen", Crossing()},
	} {
		t.Run(string(c.defect), func(t *testing.T) {
			var clock atomic.Int64
			clock.Store(time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC).UnixNano())
			p := &plain{defect: c.defect, clock: &clock, keys: make(map[string]key), before: make(map[string]key)}
			e := Env{Store: storetest.Of(p), Sleep: func(d time.Duration) { clock.Add(int64(d)) }, Now: p.now}
			if got := legal(t, e, c.plan, 200); got != (c.defect == "") {
				t.Errorf("200 histories of %+v: legal %t", c.plan, got)
			}
		})
	}
}
