package redisstore

import (
	"fmt"
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

// unheard returns an outbox whose queue sends nothing.
func unheard() (*outbox, *nodeQueue) {
	s := unconnected(names{prefix: "p"}, nil)
	return s.outbox, s.main.queues[0].nodeQueueLocked(0)
}

// correcting sends a correction of charges, which Redis then has. Each fix has the number of its
// charge.
func correcting(o *outbox, n *nodeQueue, charges ...store.Charge) *correction {
	var c call
	c.set(correct, 0, 0, charges)
	for i := range charges {
		c.fixes = append(c.fixes, &fix{at: int64(i)})
	}
	o.correct(&c, location{home: o.main})
	sent, _ := n.waiting[0].owner.(*correction)
	n.waiting = nil
	return sent
}

// Reset has Redis delete the key behind the outbox's calls. So beginReset must find each call in
// again, or leave the call in a queue. A resend behind the DEL of a Reset would charge the key
// again.
func TestResetWaitsWhileTheOutboxSendsAgain(t *testing.T) {
	o, n := unheard()
	c := correcting(o, n, hit("k", perAge(algorithms.FixedWindow, 10)))
	c.refuse(ErrUnavailable)

	n.queue.mu.Lock() // so the outbox cannot put the call
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
	go func() { o.beginReset([]byte("k")); close(forgot) }()
	select {
	case <-forgot:
		t.Error("beginReset returned while the call was on its way from again to the queue")
	case <-time.After(100 * time.Millisecond): // beginReset waits
	}
	n.queue.mu.Unlock()
	<-forgot
	sending.Wait()
	if len(n.waiting) != 1 || o.idle() {
		t.Errorf("%d calls wait in the queue, %d are under way; want 1 and 1", len(n.waiting), o.calls)
	}
}

func TestRefusedCallsOfAKeyAreNotResentAfterItsReset(t *testing.T) {
	k, other := hit("k", perAge(algorithms.FixedWindow, 10)), hit("other", perAge(algorithms.FixedWindow, 10))
	key := k.Key
	for _, test := range []struct {
		name    string
		charges []store.Charge
		order   func(o *outbox, refuse func())
		want    []string // keys of the resends
	}{
		{"refused before the reset", []store.Charge{k}, func(o *outbox, refuse func()) {
			refuse()
			o.beginReset(key)
			o.endReset(key, false)
		}, nil},
		{"refused during the reset", []store.Charge{k}, func(o *outbox, refuse func()) {
			o.beginReset(key)
			refuse()
			o.endReset(key, false)
		}, nil},
		{"refused during one of two resets", []store.Charge{k}, func(o *outbox, refuse func()) {
			o.beginReset(key)
			o.beginReset(key)
			o.endReset(key, false)
			refuse()
			o.endReset(key, false)
		}, nil},
		{"several keys, refused before", []store.Charge{other, k}, func(o *outbox, refuse func()) {
			refuse()
			o.beginReset(key)
			o.endReset(key, false)
		}, []string{"other"}},
		{"several keys, refused during", []store.Charge{k, other, k}, func(o *outbox, refuse func()) {
			o.beginReset(key)
			refuse()
			o.endReset(key, false)
		}, []string{"other"}},
		{"refused after", []store.Charge{k}, func(o *outbox, refuse func()) {
			o.beginReset(key)
			o.endReset(key, false)
			refuse()
		}, []string{"k"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			o, n := unheard()
			c := correcting(o, n, test.charges...)
			test.order(o, func() { c.refuse(ErrUnavailable) })
			o.sendAgain()
			var got []string
			for _, c := range n.waiting {
				for i := range c.charges {
					got = append(got, string(c.charges[i].Key))
					if string(test.charges[c.fixes[i].at].Key) != got[i] {
						t.Errorf("charge %d of %s has the fix of another charge", i, got[i])
					}
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("resent charges of keys %q, want %q", got, test.want)
			}
			if o.idle() != (test.want == nil) || len(o.resets) > 0 {
				t.Errorf("%d calls and %d resets are under way", o.calls, len(o.resets))
			}
		})
	}
}

func TestHitsThatAResetDropsAreLostOnlyWhenTheResetFails(t *testing.T) {
	k := hit("k", perAge(algorithms.FixedWindow, 10))
	for failed, want := range map[bool]uint64{false: 0, true: 7} {
		o, n := unheard()
		refused, waits := k, k
		refused.Hits, waits.Hits = -4, 3
		c := correcting(o, n, refused)
		o.Later(&waits, 0)
		o.beginReset(k.Key)
		o.beginReset(k.Key)
		c.refuse(ErrUnavailable)
		o.endReset(k.Key, failed)
		o.endReset(k.Key, failed)
		if got := o.metrics.lostHits.Load(); got != want {
			t.Errorf("reset failed: %t: %d hits lost, want %d", failed, got, want)
		}
		if !o.idle() || len(o.resets) > 0 || o.keys.Load() > 0 {
			t.Errorf("reset failed: %t: %d calls, %d resets and %d keys are left", failed, o.calls, len(o.resets), o.keys.Load())
		}
	}
}
