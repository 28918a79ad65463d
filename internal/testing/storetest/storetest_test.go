package storetest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// plain is the model as a store, so that the cases themselves are tried out on the plainest store
// there is.
type plain struct {
	mu   sync.Mutex // guards keys
	keys model.Keys
}

func clock() algorithms.Instant { return algorithms.Instant(time.Now().UnixNano()) }

func (s *plain) Take(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := clock()
	a := s.keys.Take(charges, now)
	copy(decisions, a.Decisions)
	for i := range charges {
		if h := charges[i].Hold; h != nil {
			h.Was, h.Now = a.Found[i], now
			charges[i].Pair(a.Phases[i] == algorithms.HoldEnd)
		}
	}
	return a.Admitted, nil
}

func (s *plain) Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range charges {
		d, found := s.keys.Peek(&charges[i], clock())
		decisions[i] = d
		if h := charges[i].Hold; h != nil {
			h.Was = found
		}
	}
	return ctx.Err()
}

func (s *plain) Reset(ctx context.Context, charges []store.Charge) (forgotten int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return s.keys.Reset(charges), nil
}

func (s *plain) Holders(_ context.Context, c *store.Charge, most int) (held []store.Held, all int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held = s.keys.Held(c, clock())
	return held[:min(most, len(held))], len(held), nil
}

func TestThePlainestStoreKeepsTheContract(t *testing.T) {
	for _, c := range slices.Concat(Cases(), HoldCases(), CarryCases()) {
		t.Run(c.Name, func(t *testing.T) {
			if strings.HasPrefix(c.Name, "64_goroutines") && race.Scale(10) > 1 {
				t.Skip("the model plays all hits of a log again for each charge; with -short or -race the case is a tenth")
			}
			synctest.Test(t, func(t *testing.T) {
				c.Run(t, Env{Store: Of(&plain{keys: model.Keys{}}), Sleep: time.Sleep, Now: clock})
			})
		})
	}
}
