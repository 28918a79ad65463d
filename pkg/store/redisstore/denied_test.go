package redisstore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func TestFloodOverTheLimitCostsRedisNothing(t *testing.T) {
	server := shared(t)
	for _, a := range algorithms.RateAlgorithms() {
		s, _ := givenRemembering(t, time.Hour, Options{})
		c := hit("k", perAge(a, 3))
		for range 3 {
			wants(t, true, s, c)
		}
		want := wants(t, false, s, c)
		stats, before, asked := s.redis.Stats(), s.Stats().Denials.Requests, scripts(t, server)
		for range 5000 {
			if got := wants(t, false, s, c); got[0] != want[0] {
				t.Fatalf("%v: a denial from memory is %+v; Redis's was %+v", a, got[0], want[0])
			}
		}
		now, denied := s.redis.Stats(), s.Stats().Denials.Requests-before
		if n := scripts(t, server) - asked; n != 0 || now.RoundTrips != stats.RoundTrips || denied != 5000 {
			t.Errorf("%v: a flood of 5000 ran %d scripts, %d denied from memory: %+v, before %+v", a, n, denied, now, stats)
		}
	}
}

func TestFloodIsDeniedUntilTheRetryInstantAndNotLonger(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		s, clock := givenRemembering(t, 24*time.Hour, Options{})
		c := hit("k", algorithms.Limit{Algorithm: a, Requests: 7, Period: time.Hour})
		c.Hits = 5
		wants(t, true, s, c)
		d := wants(t, false, s, c)
		clock.sleep(d[0].RetryAfter - Granularity)
		before := s.redis.Stats().RoundTrips
		wants(t, false, s, c)
		if n := s.redis.Stats().RoundTrips - before; n != 0 {
			t.Errorf("%v: just before its retry instant a request was asked for", a)
		}
		clock.sleep(Granularity)
		wants(t, true, s, c)
	}
}

// As above with Redis's clock, which is known to a round trip only.
func TestFloodIsAllowedAtItsRetryInstantByRedisClock(t *testing.T) {
	s := remembering(t, open(t, urlOf("redis", shared(t).Address()), Options{}), time.Minute)
	for _, a := range algorithms.RateAlgorithms() {
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

func TestSmallerRequestsThanWereDeniedAskRedis(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		s, _ := givenRemembering(t, time.Hour, Options{})
		c := hit("k", perAge(a, 10))
		for _, step := range []struct {
			hits     int64
			admitted bool
		}{{7, true}, {5, false}, {5, false}, {4, false}, {3, true}, {1, false}, {0, true}, {5, false}, {1, false}} {
			c.Hits = step.hits
			wants(t, step.admitted, s, c)
		}
	}
}

func TestDenialsAreForgottenAtOnce(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(t *testing.T, s *cached, c *store.Charge)
	}{
		{"refund", func(t *testing.T, s *cached, c *store.Charge) {
			t.Helper()
			refund := *c
			refund.Hits = -1
			wants(t, true, s, refund)
		}},
		{"refund_beside_another_charge", func(t *testing.T, s *cached, c *store.Charge) {
			t.Helper()
			refund := *c
			refund.Hits = -1
			wants(t, true, s, hit("other", c.Limit), refund)
		}},
		{"reset", func(t *testing.T, s *cached, c *store.Charge) {
			t.Helper()
			if n, err := s.Reset(t.Context(), []store.Charge{*c}); n != 1 || err != nil {
				t.Errorf("Reset: %d, %v", n, err)
			}
		}},
		{"raised_limit", func(t *testing.T, s *cached, c *store.Charge) {
			t.Helper()
			c.Limit.Requests++
			if a := c.Limit.Algorithm; a == algorithms.TokenBucket || a == algorithms.TokenBucketInteger { // keep their tokens: none
				before := s.redis.Stats().RoundTrips
				wants(t, false, s, *c)
				if s.redis.Stats().RoundTrips == before {
					t.Errorf("%v: nobody asked Redis", a)
				}
				refund := *c
				refund.Hits = -1
				wants(t, true, s, refund)
			}
		}},
		{"forget", func(t *testing.T, s *cached, c *store.Charge) {
			t.Helper()
			other := open(t, urlOf("redis", shared(t).Address()), Options{Prefix: s.redis.main.prefix})
			other.given = s.redis.given
			refund := *c
			refund.Hits = -1
			wants(t, true, other, refund) // of which s knows nothing
			wants(t, false, s, *c)
			s.Forget()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, a := range algorithms.RateAlgorithms() {
				s, _ := givenRemembering(t, time.Hour, Options{})
				c := hit("k", perAge(a, 2))
				wants(t, true, s, c)
				wants(t, true, s, c)
				wants(t, false, s, c)
				wants(t, false, s, c)
				test.change(t, s, &c)
				wants(t, true, s, c)
			}
		})
	}
}

func TestDenialsAge(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		s, clock := givenRemembering(t, time.Second, Options{})
		c := hit("k", perAge(a, 1))
		wants(t, true, s, c)
		wants(t, false, s, c)
		for range 3 {
			before := s.redis.Stats().RoundTrips
			clock.sleep(time.Second - Granularity)
			wants(t, false, s, c)
			if n := s.redis.Stats().RoundTrips - before; n != 0 {
				t.Errorf("%v: a denial younger than a second asked Redis", a)
			}
			clock.sleep(Granularity)
			wants(t, false, s, c)
			if n := s.redis.Stats().RoundTrips - before; n != 1 {
				t.Errorf("%v: a denial of a second ago made %d round trips; want 1", a, n)
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
	for _, a := range algorithms.RateAlgorithms() {
		for _, b := range algorithms.RateAlgorithms() {
			t.Run(fmt.Sprint(a, "_and_", b), func(t *testing.T) {
				s, clock := givenRemembering(t, time.Hour, Options{})
				m, before := model{}, s.redis.Stats().RoundTrips
				second := hit("second", algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Second})
				day := hit("day", algorithms.Limit{Algorithm: b, Requests: 250, Period: 24 * time.Hour})
				for n := range 30 {
					wantAdmitted, want := m.transaction([]store.Charge{second, day}, clock.now())
					got := wants(t, wantAdmitted, s, second, day)
					if got[0] != want[0] || got[1] != want[1] {
						t.Fatalf("request %d: got %+v; want %+v", n, got, want)
					}
					if n > 11 {
						clock.sleep(3 * time.Millisecond)
					}
				}
				if stats := s.redis.Stats(); stats.RoundTrips-before != 11 {
					t.Errorf("%+v; want 11 round trips, for 10 that pass and the first that does not", stats)
				}
			})
		}
	}
}

func TestTwoSidecarsShareOneLimit(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		one := remembering(t, open(t, urlOf("redis", shared(t).Address()), Options{}), time.Second)
		two := remembering(t, open(t, urlOf("redis", shared(t).Address()), Options{Prefix: one.redis.main.prefix}), time.Second)
		c := hit("k", perAge(a, 1000))
		var admitted atomic.Int64
		storm(16, 100, func(n int) {
			s := one
			if n%2 == 1 {
				s = two
			}
			if ok, _ := ask(t, s, c); ok {
				admitted.Add(1)
			}
		})
		if got := admitted.Load(); got != 1000 {
			t.Errorf("%v: %d admitted; want 1000", a, got)
		}
	}
}

// With denials remembered a store still answers as memstore does, and Redis has all hits in the
// end.
func TestRandomTransactionsAreDecidedAsByMemstoreWithDenialsRemembered(t *testing.T) {
	differ(t, urlOf("redis", shared(t).Address()), Options{}, 20*365*24*time.Hour, 100, 250,
		func(t *testing.T, s *Store, world []recorded) error {
			t.Helper()
			payAll(t, s)
			return holdsWhat(t, s, world)
		})
}
