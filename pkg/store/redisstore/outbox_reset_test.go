package redisstore

import (
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Reset makes a key full, also with hits in the outbox.
func TestResetForgetsHitsThatRedisDoesNotKnowOf(t *testing.T) {
	s, _ := givenRemembering(t, time.Hour, Options{})
	for n := range 10 {
		c := hit(fmt.Sprint(n), perAge(algorithms.FixedWindow, 5))
		c.CountRejected = true
		for range 20 {
			ask(t, s, c)
		}
		if _, err := s.Reset(t.Context(), []store.Charge{c}); err != nil {
			t.Fatal(err)
		}
		if got := remains(t, s, c); got != 5 {
			t.Errorf("%d of 5 remain after Reset", got)
		}
	}
}

// Reset has Redis delete the key behind the outbox's calls. So beginReset must find each call in
// again, or leave the call in a queue. A resend behind the DEL of a Reset would charge the key
// again.
func TestResetWaitsWhileTheOutboxSendsAgain(t *testing.T) {
	s := unconnected(false, &Store{seed: maphash.MakeSeed()})
	q := newQueue(s.main, 0, nil) // does not run
	s.main.queues = []*queue{q}
	o := newOutbox(s)
	charges := []store.Charge{hit("k", perAge(algorithms.FixedWindow, 10))}
	refused := newCall()
	refused.set(correct, s.locate(&charges[0], 0), 0, charges)
	refused.corrections = make([]*correction, 1)
	o.again, o.calls = []*call{refused}, 1

	q.mu.Lock() // so the outbox cannot put the call
	var sending sync.WaitGroup
	sending.Go(o.sendAll)
	eventually(t, "the outbox sends", func() bool {
		if !o.mu.TryLock() {
			return true
		}
		defer o.mu.Unlock()
		return len(o.again) == 0
	})
	forgot := make(chan struct{})
	go func() { o.beginReset(charges); close(forgot) }()
	select {
	case <-forgot:
		t.Error("beginReset returned while the call was on its way from again to the queue")
	case <-time.After(100 * time.Millisecond): // beginReset waits
	}
	q.mu.Unlock()
	<-forgot
	sending.Wait()
	if len(q.byNode[0].waiting) != 1 || o.idle() {
		t.Errorf("%d calls wait in the queue, %d are under way; want 1 and 1", len(q.byNode[0].waiting), o.calls)
	}
}

func TestRefusedCallsOfAKeyAreNotResentAfterItsReset(t *testing.T) {
	s := unconnected(false, &Store{seed: maphash.MakeSeed()})
	q := newQueue(s.main, 0, nil) // does not run
	s.main.queues = []*queue{q}
	k, other := hit("k", perAge(algorithms.FixedWindow, 10)), hit("other", perAge(algorithms.FixedWindow, 10))
	for _, test := range []struct {
		name    string
		charges []store.Charge
		order   func(o *outbox, refuse func())
		want    []string // keys of the resends
	}{
		{"refused before the reset", []store.Charge{k}, func(o *outbox, refuse func()) {
			refuse()
			o.beginReset([]store.Charge{k})
			o.endReset([]store.Charge{k}, false)
		}, nil},
		{"refused during the reset", []store.Charge{k}, func(o *outbox, refuse func()) {
			o.beginReset([]store.Charge{k})
			refuse()
			o.endReset([]store.Charge{k}, false)
		}, nil},
		{"refused during one of two resets", []store.Charge{k}, func(o *outbox, refuse func()) {
			o.beginReset([]store.Charge{k})
			o.beginReset([]store.Charge{k})
			o.endReset([]store.Charge{k}, false)
			refuse()
			o.endReset([]store.Charge{k}, false)
		}, nil},
		{"several keys, refused before", []store.Charge{other, k}, func(o *outbox, refuse func()) {
			refuse()
			o.beginReset([]store.Charge{k})
			o.endReset([]store.Charge{k}, false)
		}, []string{"other"}},
		{"several keys, refused during", []store.Charge{k, other, k}, func(o *outbox, refuse func()) {
			o.beginReset([]store.Charge{k})
			refuse()
			o.endReset([]store.Charge{k}, false)
		}, []string{"other"}},
		{"refused after", []store.Charge{k}, func(o *outbox, refuse func()) {
			o.beginReset([]store.Charge{k})
			o.endReset([]store.Charge{k}, false)
			refuse()
		}, []string{"k"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := newOutbox(s)
			c := newCall()
			c.set(correct, s.locate(&test.charges[0], 0), 0, test.charges)
			for i := range test.charges {
				c.corrections = append(c.corrections, &correction{at: int64(i)})
			}
			o.send(c, q.put, time.Now().Add(time.Hour))
			q.nodeQueueLocked(0).waiting = nil // Redis has the call
			test.order(o, func() {
				c.err, c.refused = ErrUnavailable, true
				c.end()
			})
			o.sendAgain()
			var got []string
			for _, c := range q.nodeQueueLocked(0).waiting {
				for i := range c.charges {
					got = append(got, string(c.charges[i].Key))
					if string(test.charges[c.corrections[i].at].Key) != got[i] {
						t.Errorf("charge %d of %s has the correction of another charge", i, got[i])
					}
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("resent charges of keys %q, want %q", got, test.want)
			}
			if o.idle() != (test.want == nil) || len(o.resets) > 0 {
				t.Errorf("%d calls and %d resets are under way", o.calls, len(o.resets))
			}
			q.nodeQueueLocked(0).waiting = nil
		})
	}
}

func TestHitsThatAResetDropsAreLostOnlyWhenTheResetFails(t *testing.T) {
	s := unconnected(false, &Store{seed: maphash.MakeSeed()})
	s.main.queues = []*queue{newQueue(s.main, 0, nil)} // does not run
	k := hit("k", perAge(algorithms.FixedWindow, 10))
	for failed, want := range map[bool]uint64{false: 0, true: 7} {
		o, before := newOutbox(s), s.metrics.lostHits.Load()
		refused, waiting := k, k
		refused.Hits, waiting.Hits = -4, 3
		c := newCall()
		c.set(correct, s.locate(&refused, 0), 0, []store.Charge{refused})
		c.corrections = append(c.corrections, new(correction))
		o.send(c, s.main.queues[0].put, time.Now().Add(time.Hour))
		o.add(&waiting, 0)
		o.beginReset([]store.Charge{k, k})
		c.err, c.refused = ErrUnavailable, true
		c.end()
		o.endReset([]store.Charge{k, k}, failed)
		if got := s.metrics.lostHits.Load() - before; got != want {
			t.Errorf("reset failed: %t: %d hits lost, want %d", failed, got, want)
		}
		if !o.idle() || len(o.resets) > 0 || o.count.Load() > 0 {
			t.Errorf("reset failed: %t: %d calls, %d resets and %d keys are left", failed, o.calls, len(o.resets), o.count.Load())
		}
	}
}
