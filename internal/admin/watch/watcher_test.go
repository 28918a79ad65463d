package watch

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func TestAThousandWatchersAreRefusedAfterTheMost(t *testing.T) {
	f := newFixture(t)
	var all []*Watcher
	for i := range 1000 {
		w, err := f.hub.Subscribe(&adminv1.WatchRequest{})
		if want := i < MaxWatchers; (err == nil) != want || err != nil && !errors.Is(err, ErrTooMany) {
			t.Fatalf("watcher %d: got %v", i, err)
		}
		if err == nil {
			all = append(all, w)
		}
	}
	f.ask("edge", "path=/cart")
	for _, w := range all {
		if len(w.take()) != 1 {
			t.Error("a watcher has not seen the request")
		}
		w.Close()
		w.Close()
	}
	if f.observer != nil || f.hub.Watchers() != 0 {
		t.Error("the hub observes requests without watchers")
	}
	f.watch(&adminv1.WatchRequest{}) // there is room again
}

func TestAWatcherThatNeverReadsIsToldItsLossAndHoldsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		stalled, reads := f.watch(&adminv1.WatchRequest{MaxPerSecond: maxPerSecond}), f.watch(&adminv1.WatchRequest{MaxPerSecond: maxPerSecond})
		const requests = 20_000
		seen, long := 0, "user="+strings.Repeat("x", 2000)
		for i := range requests {
			f.ask("edge", long)
			time.Sleep(20 * time.Microsecond)
			for i%100 == 99 && reads.waiting.Load() > 0 {
				m := next(t, reads)
				if seen += len(m.GetRequests()); m.GetLost() > 0 || m.GetLeftOut() > 0 {
					t.Fatalf("the watcher that reads lost %d requests, and %d were left out", m.GetLost(), m.GetLeftOut())
				}
			}
		}
		if seen != requests {
			t.Errorf("the watcher that reads saw %d requests of %d", seen, requests)
		}
		held := 0
		for _, e := range stalled.queue {
			held += e.size
		}
		if held > maxShare || held < maxShare/2 || int64(held) != stalled.waiting.Load() {
			t.Errorf("the requests of the watcher that never reads take %d bytes, counted as %d; want at most %d", held, stalled.waiting.Load(), maxShare)
		}
		m := next(t, stalled)
		if got := uint64(len(m.GetRequests())+len(stalled.queue)) + m.GetLost(); got != requests || m.GetLost() == 0 || proto.Size(m) > 2*maxMessage {
			t.Errorf("%d requests were seen or lost, %d of them lost, in a message of %d bytes; want %d and a small message", got, m.GetLost(), proto.Size(m), requests)
		}
	})
}

func TestARequestThatIsTooLargeToShowCountsAsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		w := f.watch(&adminv1.WatchRequest{})
		f.ask("edge", "user="+strings.Repeat("x", maxEvent))
		f.ask("edge", slices.Repeat([]string{"user=a"}, 5000)...)
		if m := next(t, w); len(m.GetRequests()) != 0 || m.GetLost() != 2 {
			t.Errorf("got %d requests and %d lost; want 0 and 2", len(m.GetRequests()), m.GetLost())
		}
	})
}

func TestTheRateOfAWatcherIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		slow, usual, sampled := f.watch(&adminv1.WatchRequest{MaxPerSecond: 2}), f.watch(&adminv1.WatchRequest{}), f.watch(&adminv1.WatchRequest{OneIn: 10, MaxPerSecond: maxPerSecond})
		for range 10_000 { // one in 500 µs
			f.ask("edge", "path=/free")
			time.Sleep(500 * time.Microsecond)
		}
		for _, c := range []struct {
			name        string
			w           *Watcher
			least, most int
			leftOut     int
		}{{"2 per second", slow, 10, 11, 9989}, {"1000 per second", usual, 5000, 5101, 4899}, {"one in ten", sampled, 800, 1200, 0}} {
			n := len(c.w.queue)
			if leftOut := int(c.w.leftOut.Load()); n < c.least || n > c.most || leftOut < c.leftOut || c.leftOut > 0 && leftOut+n != 10_000 {
				t.Errorf("%s: in 5 s %d were shown and %d left out; want %d to %d", c.name, n, leftOut, c.least, c.most)
			}
		}
	})
}

func TestWatchersComeAndGoWhileRequestsAreAnswered(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	var watching, asking sync.WaitGroup
	for range 2 { // each asks with an own request
		asking.Go(func() {
			own := &fixture{limiter: f.limiter}
			for ctx.Err() == nil {
				f.mu.Lock()
				own.observer = slices.Clone(f.observer)
				f.mu.Unlock()
				own.ask("edge", "path=/free", "pathh=/free")
			}
		})
	}
	for range 4 {
		watching.Go(func() {
			for range 5 {
				w, err := f.hub.Subscribe(&adminv1.WatchRequest{MaxPerSecond: maxPerSecond})
				if err != nil {
					t.Error(err)
					return
				}
				m, err := w.Next(ctx)
				if err != nil || len(m.GetRequests()) == 0 || m.GetRequests()[0].GetDescriptors()[1].GetNearestMiss().GetBeside()[0] != "path=/cart" {
					t.Errorf("got %v, %v; want requests", m, err)
				}
				w.Close()
			}
		})
	}
	watching.Wait()
	cancel()
	asking.Wait()
}

func TestNextEndsWithItsContext(t *testing.T) {
	w := newFixture(t).watch(&adminv1.WatchRequest{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if m, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v; want the error of the context", m, err)
	}
}
