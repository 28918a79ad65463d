package redisstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/test/parts"
)

// elsewhere returns another database of the server that tests share.
func elsewhere(tb testing.TB) *Target {
	tb.Helper()
	return &Target{URLs: []string{"redis://" + shared(tb).Address() + "/1"}}
}

func TestSecondsElsewhereKeepTheContract(t *testing.T) {
	contract(t, urlOf("redis", shared(t).Address()), Options{Seconds: elsewhere(t)}, 0, carryCases()...)
}

func TestRandomTransactionsOverTwoServersAreDecidedAsByTheModel(t *testing.T) {
	alike := func(*testing.T, *Store, []recorded) error { return nil }
	single, cluster := urlOf("redis", shared(t).Address()), urlOf("redis-cluster", sharedCluster(t).Addresses()...)
	differ(t, single, Options{Seconds: elsewhere(t)}, 0, race.Scale(150), 250, alike)
	differ(t, single, Options{Seconds: elsewhere(t)}, time.Hour, race.Scale(50), 250, alike)
	differ(t, cluster, Options{Seconds: elsewhere(t), Counters: countedWorlds(fresh(t))}, 0, race.Scale(20), 250, alike)
}

func TestLimitsOfASecondAreKeptElsewhere(t *testing.T) {
	s, _ := given(t, Options{Seconds: elsewhere(t)})
	for _, a := range storetest.EveryRate() {
		second, minute := hit(fmt.Sprint("second ", a), perAge(a, 5)), hit(fmt.Sprint("minute ", a), perAge(a, 5))
		second.Limit.Period, minute.Limit.Period, minute.Rule = time.Second, time.Minute, 1
		wants(t, true, s, second, minute)
		for _, c := range []store.Charge{second, minute} {
			for server, here := range map[*server]bool{s.main: c.Limit.Period == time.Minute, s.seconds: c.Limit.Period == time.Second} {
				n, err := commandTo(t, server, "EXISTS", s.name(&c)).AsInt64()
				if err != nil || (n == 1) != here {
					t.Errorf("%q is there: %d, %v; want %v", s.name(&c), n, err, here)
				}
			}
		}
		minute.Hits = 5 // is denied, so that the other is given back
		wants(t, false, s, second, minute)
		if got := remains(t, s, second); got != 4 {
			t.Errorf("%v: %d remain of the limit of a second after a denied request; want 4", a, got)
		}
		if n, err := s.Reset(t.Context(), []store.Charge{second, minute}); n != 2 || err != nil {
			t.Errorf("Reset: %d, %v", n, err)
		}
		if got := remains(t, s, second) + remains(t, s, minute); got != 10 {
			t.Errorf("%v: %d of 10 remain after a reset", a, got)
		}
	}
}

// One server goes on while the other is away, and gives back the hits of a request that needs both.
func TestEachOfTwoServersGoesOnWithoutTheOther(t *testing.T) {
	other, err := parts.StartRedis(t.Context(), redisBinary(t), t.TempDir(), parts.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Kill)
	target := Target{URLs: urlOf("redis", other.Address())}
	s := open(t, urlOf("redis", shared(t).Address()), Options{Seconds: &target})
	second, minute := hit("second", perAge(algorithms.TokenBucket, 100)), hit("minute", perAge(algorithms.TokenBucket, 100))
	second.Limit.Period, minute.Limit.Period, minute.Rule = time.Second, 24*time.Hour, 1
	eventually(t, "both answer", func() bool { return ok(t, s, second, minute) })
	other.Kill()
	eventually(t, "the one is away", func() bool { return !ok(t, s, second) })
	if !ok(t, s, minute) {
		t.Error("the other one does not go on")
	}
	eventually(t, "what was taken before is given back", func() bool { return remains(t, s, minute) == 98 })
	for range 10 {
		if ok(t, s, second, minute) {
			t.Error("a request was decided without one of its servers")
		}
	}
	eventually(t, "what they have taken is given back", func() bool { return remains(t, s, minute) == 98 })
	failed := false
	for range 100 {
		failed = failed || s.Await(t.Context(), 0) != nil || s.Await(t.Context(), 1) != nil
	}
	if !failed {
		t.Error("no ping says that a server is away")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := other.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both answer again", func() bool { return ok(t, s, second, minute) })
}

// ok reports whether a request is decided, and admitted.
func ok(t *testing.T, s *Store, charges ...store.Charge) bool {
	t.Helper()
	admitted, err := store.Take(t.Context(), s, charges, make([]algorithms.Decision, len(charges)))
	return admitted && err == nil
}
