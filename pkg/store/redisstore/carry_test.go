package redisstore

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Two processes with one Redis reload two seconds apart, and back. In between each has other rules.
func TestProcessesThatReloadApartAdmitNoHitTwice(t *testing.T) {
	second := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1, Period: time.Minute, Extra: algorithms.Extra{Burst: 20}}
	minute := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 20, Period: time.Hour}
	under := func(l algorithms.Limit, before ...algorithms.Limit) store.Charge {
		key := func(l algorithms.Limit) []byte { return []byte("k#" + l.Algorithm.String()) }
		c := store.Charge{Key: key(l), Limit: l, Hits: 1}
		for _, old := range before {
			c.Before = append(c.Before, store.Former{Key: key(old), Limit: old, Both: true})
		}
		return c
	}
	urls := urlOf("redis", shared(t).Address())
	clock := newClock()
	prefix := fresh(t)
	first, other := open(t, urls, Options{Prefix: prefix}), open(t, urls, Options{Prefix: prefix})
	clock.drives(first)
	clock.drives(other)
	admitted := 0
	take := func(s *Store, c store.Charge, times int) {
		for range times {
			ok, err := store.Take(t.Context(), s, []store.Charge{c}, make([]algorithms.Decision, 1))
			must.Do(t, err)
			if ok {
				admitted++
			}
		}
	}
	take(first, under(second), 5)
	take(other, under(second), 5)
	for range 4 { // the first process has reloaded, the other one has not
		take(first, under(minute, second), 1)
		take(other, under(second), 1)
		clock.sleep(500 * time.Millisecond)
	}
	take(first, under(minute, second), 5)
	take(other, under(minute, second), 5)
	if admitted != 20 {
		t.Errorf("%d of 20 hits were admitted through a reload two seconds apart", admitted)
	}
	take(first, under(second, minute), 3)
	take(other, under(minute, second), 3)
	take(other, under(second, minute), 3)
	if admitted != 20 {
		t.Errorf("%d of 20 hits were admitted after the way back", admitted)
	}
}

func TestNoIntervalAdmitsMoreThanTheLargerLimit(t *testing.T) {
	s, c := given(t, Options{})
	storetest.Intervals(t, storetest.Env{Store: s, Sleep: c.sleep, Now: c.now}, race.Scale(50))
}
