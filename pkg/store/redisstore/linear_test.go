package redisstore

import (
	"testing"

	"github.com/weirproxy/weir/internal/testing/linear"
)

// Random histories are linearizable on one server and in a cluster, where decision 14 promises less
// of keys in several slots. A deny cache in front of the store is not linearizable: decision 17
// lets its answers miss hits that are under way.
func TestRandomHistoriesAreLinearizable(t *testing.T) {
	single := func(t *testing.T) []string { t.Helper(); return urlOf("redis", shared(t).Address()) }
	cluster := func(t *testing.T) []string {
		t.Helper()
		return urlOf("redis-cluster", sharedCluster(t).Addresses()...)
	}
	for _, c := range []struct {
		name string
		urls func(*testing.T) []string
		plan linear.Plan
		o    Options
	}{
		{"one_key", single, linear.OneKey(), Options{}},
		{"crossing", single, linear.Crossing(), Options{}},
		{"holding", single, linear.Holding(), Options{}},
		{"one_key_in_a_cluster", cluster, linear.OneKey(), Options{}},
		{"one_slot_of_a_cluster", cluster, linear.Crossing(), Options{HashTag: func([]byte) []byte { return []byte("edge}") }}},
		{"holding_in_one_slot_of_a_cluster", cluster, linear.Holding(), Options{HashTag: func([]byte) []byte { return []byte("edge}") }}},
		{"slots_of_a_cluster", cluster, linear.InParts(), Options{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := newClock()
			s := open(t, c.urls(t), c.o)
			clock.drives(s)
			calls := linear.Check(t, linear.Env{Store: s, Sleep: clock.sleep, Now: clock.now}, c.plan, linear.Seed(t), linear.Operations(t, 20_000))
			t.Logf("%d calls", calls)
		})
	}
}
