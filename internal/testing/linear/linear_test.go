package linear

import (
	"context"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/testing/model", "internal/testing/race", "pkg/algorithms", "pkg/store"},
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
	keys   model.Keys
	before model.Keys // of the last transaction
}

func (p *plain) now() algorithms.Instant { return algorithms.Instant(p.clock.Load()) }

// pause lets other calls in.
func (p *plain) pause(at defect) {
	if p.defect == at {
		p.mu.Unlock()
		runtime.Gosched()
		p.mu.Lock()
	}
}

func (p *plain) Take(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := maps.Clone(p.keys)
	p.pause("a lost update")
	a := next.Take(charges, p.now())
	copy(decisions, a.Decisions)
	found(charges, a.Found)
	for i := range charges {
		charges[i].Pair(a.Phases[i] == algorithms.HoldEnd)
	}
	if p.defect == "a refund twice" && charges[0].Hits < 0 {
		next.Take(charges, p.now())
	}
	if p.defect == "a denial that charges" && !a.Admitted && len(charges) > 1 {
		next.Take(charges[:1], p.now())
	}
	for i := range charges {
		name := model.NameOf(&charges[i])
		p.before[name] = p.keys[name]
		k, known := next[name]
		if p.defect == "a holder that is forgotten" && name.Algorithm != algorithms.SlidingWindowLog {
			k = model.Key{Limit: k.Limit, State: k.State}
		}
		if p.keys[name] = k; !known {
			delete(p.keys, name)
		}
		p.pause("a part that is seen")
	}
	return a.Admitted, nil
}

func (p *plain) Peek(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := p.keys
	if p.defect == "a stale peek" {
		keys = p.before
	}
	d, was := keys.Peek(&charges[0], p.now())
	decisions[0] = d
	found(charges, []algorithms.Hold{was})
	return nil
}

// found writes the holds that an answer found to the charges.
func found(charges []store.Charge, holds []algorithms.Hold) {
	for i := range charges {
		if h := charges[i].Hold; h != nil {
			h.Was = holds[i]
		}
	}
}

func (p *plain) Reset(_ context.Context, charges []store.Charge) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.defect == "a reset that keeps" {
		return maps.Clone(p.keys).Reset(charges), nil
	}
	return p.keys.Reset(charges), nil
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
			p := &plain{defect: c.defect, clock: &clock, keys: model.Keys{}, before: model.Keys{}}
			e := Env{Store: storetest.Of(p), Sleep: func(d time.Duration) { clock.Add(int64(d)) }, Now: p.now}
			if got := legal(t, e, c.plan, 200); got != (c.defect == "") {
				t.Errorf("200 histories of %+v: legal %t", c.plan, got)
			}
		})
	}
}
