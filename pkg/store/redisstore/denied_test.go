package redisstore

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Redis's clock is known to a round trip only.
func TestFloodIsAllowedAtItsRetryInstantByRedisClock(t *testing.T) {
	s := front(t, open(t, urlOf("redis", shared(t).Address()), Options{}), time.Minute)
	for _, a := range storetest.EveryRate() {
		c := hit("k", algorithms.Limit{Algorithm: a, Requests: 2, Period: 40 * time.Millisecond})
		c.Hits = 2
		for range 5 {
			admitted, d := ask(t, s, c)
			for !admitted { // a flood in the meantime
				retry := time.Now().Add(d[0].RetryAfter)
				for time.Now().Before(retry) {
					ask(t, s, store.Charge{Key: c.Key, Limit: c.Limit, Hits: 3}) // is denied always
				}
				if admitted, d = ask(t, s, c); !admitted {
					t.Errorf("%v: denied at its retry instant: %+v", a, d)
				}
			}
		}
	}
}

// storm has many goroutines do something many times.
func storm(goroutines, times int, do func(goroutine int)) {
	var all sync.WaitGroup
	for n := range goroutines {
		all.Go(func() {
			for range times {
				do(n)
			}
		})
	}
	all.Wait()
}

func TestOtherLimitsOfADeniedRequestAreAnsweredFromMemory(t *testing.T) {
	for _, a := range storetest.EveryRate() {
		for _, b := range storetest.EveryRate() {
			t.Run(fmt.Sprint(a, "_and_", b), func(t *testing.T) {
				redis, clock := given(t, Options{})
				s := front(t, redis, time.Hour)
				m, before := model.Keys{}, redis.Stats().RoundTrips
				second := hit("second", algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Second})
				day := hit("day", algorithms.Limit{Algorithm: b, Requests: 250, Period: 24 * time.Hour})
				for n := range 30 {
					want := m.Take([]store.Charge{second, day}, clock.now())
					if got := wants(t, want.Admitted, s, second, day); !slices.Equal(got, want.Decisions) {
						t.Fatalf("request %d: got %+v; want %+v", n, got, want)
					}
					if n > 11 {
						clock.sleep(3 * time.Millisecond)
					}
				}
				if stats := redis.Stats(); stats.RoundTrips-before != 11 {
					t.Errorf("%+v; want 11 round trips, for 10 that pass and the first that does not", stats)
				}
			})
		}
	}
}

func TestTwoSidecarsShareOneLimit(t *testing.T) {
	for _, a := range storetest.EveryRate() {
		one := open(t, urlOf("redis", shared(t).Address()), Options{})
		two := open(t, urlOf("redis", shared(t).Address()), Options{Prefix: one.main.prefix})
		sidecars := []store.Store{front(t, one, time.Second), front(t, two, time.Second)}
		c := hit("k", perAge(a, 1000))
		var admitted atomic.Int64
		storm(16, 100, func(n int) {
			if ok, _ := ask(t, sidecars[n%2], c); ok {
				admitted.Add(1)
			}
		})
		if got := admitted.Load(); got != 1000 {
			t.Errorf("%v: %d admitted; want 1000", a, got)
		}
	}
}

// With denials remembered a store still answers as the model does, and Redis has all hits in the
// end.
func TestRandomTransactionsAreDecidedAsByTheModelWithDenialsRemembered(t *testing.T) {
	differ(t, urlOf("redis", shared(t).Address()), Options{}, 20*365*24*time.Hour, race.Scale(100), 250,
		func(t *testing.T, s *Store, world []recorded) error {
			t.Helper()
			payAll(t, s)
			return holdsWhat(t, s, world)
		})
}
