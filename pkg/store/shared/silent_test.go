package shared

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// unanswered is the error of a grant that may be applied later.
type unanswered struct {
	error
	instead func(hits []int64)
}

func (u unanswered) Instead(hits []int64) { u.instead(hits) }

func TestAGrantWithoutAnAnswerIsGivenBackUnlessItIsOfABucket(t *testing.T) {
	for name, want := range map[string]int32{"window": 1, "bucket": 0} {
		inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
			var told0 atomic.Int32
			c := minute("k", 1000)
			if name == "bucket" {
				c = store.Charge{Key: []byte("k"), Limit: bucket, Hits: 1}
			}
			warm(t, s, told, c)
			told.fail(unanswered{errors.New("no answer"), func(hits []int64) {
				if len(hits) != 1 || hits[0] != 0 {
					t.Errorf("%s: got %d hits instead, want 0 of one charge", name, hits)
				}
				told0.Add(1)
			}})
			for s.Stats().Leases.Failed == 0 {
				if !s.spendAll([]store.Charge{c}, make([]algorithms.Decision, 1)) {
					t.Fatalf("%s: the lease was spent before it was renewed", name)
				}
				synctest.Wait()
			}
			if got := told0.Load(); got != want {
				t.Errorf("%s: the hits of the grant were given back %d times, want %d", name, got, want)
			}
		})
	}
}

func TestARequestWithoutALeaseDoesNotWaitForASilentStore(t *testing.T) {
	var silent atomic.Int64
	inHub(t, setup{Late: func() time.Duration { return time.Duration(silent.Load()) }}, func(t *testing.T, s *Store, told *link) {
		c := minute("k", 1000)
		warm(t, s, told, c)
		told.delay = time.Hour // Redis is stopped
		silent.Store(int64(20 * time.Millisecond))
		begun := time.Now()
		for range 200 {
			take(t, s, c)
		}
		if got := time.Since(begun); got != 0 || s.Stats().Leases.Without == 0 {
			t.Errorf("200 requests waited %v, and %d were decided without the store; want no wait", got, s.Stats().Leases.Without)
		}
		told.delay = 0
	})
}

func TestOnlyTheFirstRequestOfAnOftenAskedKeyWaitsForASilentStore(t *testing.T) {
	inHub(t, setup{Late: func() time.Duration { return time.Second }}, func(t *testing.T, s *Store, told *link) {
		c := minute("k", 1)
		for range 3 {
			take(t, s, c) // often enough to be tracked, without a lease
		}
		told.fail(errors.New("no answer"))
		told.asked()
		for range 100 {
			take(t, s, c)
		}
		if got, without := told.asked(), s.Stats().Leases.Without; got != 1 || without != 99 {
			t.Errorf("the store was asked %d times, and %d requests were decided without it; want 1 and 99", got, without)
		}
	})
}

func TestAKeyThatHasJustSpentALeaseDoesNotWaitForLong(t *testing.T) {
	inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
		c := minute("k", 1000)
		warm(t, s, told, c)
		time.Sleep(time.Millisecond)
		take(t, s, c)
		k := s.table.spot(&c).allotments[string(c.Key)].yes
		if k.first.left == 0 || k.asked > 0 || k.vain {
			t.Fatalf("%+v; want a lease, and no grant under way", k.lease)
		}
		for _, step := range []struct {
			name  string
			pause time.Duration
			late  time.Duration
			waits bool
		}{
			{"late for a moment", 0, longLate, false},
			{"late for long", 0, longLate + 1, true},
			{"late for long, a while after the lease", slot, longLate + 1, false},
		} {
			time.Sleep(step.pause)
			if got := s.waits(&c, step.late); got != step.waits {
				t.Errorf("%s: %v, want %v", step.name, got, step.waits)
			}
		}
	})
}
