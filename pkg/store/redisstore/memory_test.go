package redisstore

import (
	"context"
	"testing"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Redis without memory lets a script go on that has removed something. If some requests were served
// so, and others decided without Redis, a fleet would pass limits.
func TestARedisWithoutMemoryAppliesNothing(t *testing.T) {
	r := ownRedis(t)
	s := open(t, urlOf("redis", r.Address()), Options{})
	full := func(bytes string) {
		t.Helper()
		if _, err := r.Do(t.Context(), "CONFIG", "SET", "maxmemory", bytes); err != nil {
			t.Fatal(err)
		}
	}
	other := hit("other", perAge(algorithms.FixedWindow, 100))
	for _, a := range storetest.EveryRate() {
		for name, hits := range map[string]int64{"a hit": 1, "a refund": -1, "a refund of all": -3} {
			c := hit("k", perAge(a, 100))
			wants(t, true, s, store.Charge{Key: c.Key, Limit: c.Limit, Hits: 3})
			before := remains(t, s, other)
			full("1")
			c.Hits = hits
			all := make([]store.Transaction, 2)
			for i, charge := range []store.Charge{c, other} {
				all[i] = store.Transaction{Ctx: context.Background(), Charges: []store.Charge{charge}, Decisions: make([]algorithms.Decision, 1)}
			}
			s.TakeAll(all, func([]int) {})
			if all[0].Err == nil || all[1].Err == nil {
				t.Errorf("%v, %s and a hit of another key: errors %v and %v; want that Redis has no memory", a, name, all[0].Err, all[1].Err)
			}
			full("0")
			if got := remains(t, s, other); got != before {
				t.Errorf("%v, %s: %d remain of the other key; want %d", a, name, got, before)
			}
			if got := remains(t, s, c); got != 97 {
				t.Errorf("%v, %s: %d of 100 remain after 3 hits", a, name, got)
			}
			if _, err := s.Reset(t.Context(), []store.Charge{c}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
