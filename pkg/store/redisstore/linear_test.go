package redisstore

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/weirproxy/weir/internal/testing/linear"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// spread is sidecars that share their keys. Each call goes to one of them.
type spread []*Store

func (s spread) any() *Store { return s[rand.IntN(len(s))] }

func (s spread) TakeNow([]store.Charge, []algorithms.Decision) (admitted, decided bool) {
	return false, false
}

func (s spread) TakeAll(all []store.Transaction, decided func([]int)) { s.any().TakeAll(all, decided) }

func (s spread) Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	return s.any().Peek(ctx, charges, decisions)
}

func (s spread) Reset(ctx context.Context, charges []store.Charge) (int, error) {
	return s.any().Reset(ctx, charges)
}

func (s spread) Holders(ctx context.Context, c *store.Charge, most int) ([]store.Held, int, error) {
	return s.any().Holders(ctx, c, most)
}

func (s spread) Forget() {}

// Random histories are linearizable, of four sidecars on one server and of one in a cluster. There
// decision 14 promises less of keys in several slots. With denials remembered, histories are not
// linearizable: decision 17 lets such answers miss hits that are under way.
func TestRandomHistoriesAreLinearizable(t *testing.T) {
	single := func(t *testing.T) []string { t.Helper(); return urlOf("redis", shared(t).Address()) }
	cluster := func(t *testing.T) []string {
		t.Helper()
		return urlOf("redis-cluster", sharedCluster(t).Addresses()...)
	}
	for _, c := range []struct {
		name string
		urls func(*testing.T) []string

		sidecars int
		plan     linear.Plan
		o        Options
	}{
		{"one_key", single, 4, linear.OneKey(), Options{}},
		{"crossing", single, 4, linear.Crossing(), Options{}},
		{"holding", single, 4, linear.Holding(), Options{}},
		{"one_key_in_a_cluster", cluster, 1, linear.OneKey(), Options{}},
		{"one_slot_of_a_cluster", cluster, 1, linear.Crossing(), Options{HashTag: func([]byte) []byte { return []byte("edge}") }}},
		{"holding_in_one_slot_of_a_cluster", cluster, 1, linear.Holding(), Options{HashTag: func([]byte) []byte { return []byte("edge}") }}},
		{"slots_of_a_cluster", cluster, 1, linear.InParts(), Options{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock, all := newClock(), spread{}
			for range c.sidecars {
				s := open(t, c.urls(t), c.o)
				clock.drives(s)
				all, c.o.Prefix = append(all, s), s.main.prefix
			}
			calls := linear.Check(t, linear.Env{Store: all, Sleep: clock.sleep, Now: clock.now}, c.plan, linear.Seed(t), linear.Operations(t, 20_000))
			t.Logf("%d calls", calls)
		})
	}
}
