package storetest

import (
	"context"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// plain is the model as a store, so that the cases themselves are tried out on the plainest store
// there is.
type plain struct {
	mu    sync.Mutex // guards model
	model *model
}

func clock() algorithms.Instant { return algorithms.Instant(time.Now().UnixNano()) }

func (s *plain) Take(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	admitted, d := s.model.transaction(charges, clock())
	copy(decisions, d)
	return admitted, nil
}

func (s *plain) Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range charges {
		decisions[i] = s.model.peek(charges[i], clock())
	}
	return ctx.Err()
}

func (s *plain) Reset(ctx context.Context, charges []store.Charge) (forgotten int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	for _, c := range charges {
		_, known := s.model.states[stateOf(c)]
		if known || len(s.model.listed(c, clock())) > 0 {
			forgotten++
		}
		delete(s.model.states, stateOf(c))
		maps.DeleteFunc(s.model.holders, func(h modelHolder, _ algorithms.Hold) bool { return h.state == stateOf(c) })
	}
	return forgotten, nil
}

func (s *plain) Holders(_ context.Context, c *store.Charge, most int) (held []store.Held, all int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held = s.model.listed(*c, clock())
	return held[:min(most, len(held))], len(held), nil
}

func TestThePlainestStoreKeepsTheContract(t *testing.T) {
	for _, c := range append(Cases(), HoldCases()...) {
		t.Run(c.Name, func(t *testing.T) {
			if strings.HasPrefix(c.Name, "64_goroutines") && race.Scale(10) > 1 {
				t.Skip("the model plays all hits of a log again for each charge; with -short or -race the case is a tenth")
			}
			synctest.Test(t, func(t *testing.T) {
				c.Run(t, Env{Store: Of(&plain{model: newModel()}), Sleep: time.Sleep, Now: clock})
			})
		})
	}
}
