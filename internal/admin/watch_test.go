package admin

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/admin/watch"
	"github.com/weirproxy/weir/pkg/limiter"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

const watchedRules = "domain: edge\ndescriptors: [{key: path, value: /cart, rate_limit: {unit: day, requests_per_unit: 2}}]\n"

// watching begins a watch, and returns when the server has begun it.
func watching(ctx context.Context, tb testing.TB, c adminv1.AdminServiceClient, in *adminv1.WatchRequest) grpc.ServerStreamingClient[adminv1.WatchResponse] {
	tb.Helper()
	stream, err := c.Watch(ctx, in)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		tb.Fatal(err)
	}
	return stream
}

// texts returns the next requests of a watch in words, until there are so many.
func texts(tb testing.TB, stream grpc.ServerStreamingClient[adminv1.WatchResponse], number int) []string {
	tb.Helper()
	var all []string
	for len(all) < number {
		m, err := stream.Recv()
		if err != nil {
			tb.Fatal(err)
		}
		for _, r := range m.GetRequests() {
			text := r.GetDomain()
			for _, d := range r.GetDescriptors() {
				text += fmt.Sprintf(" %s=%s %s %s", d.GetEntries()[0].GetKey(), d.GetEntries()[0].GetValue(), d.GetOutcome(), d.GetNearestMiss().GetWhy())
			}
			all = append(all, text)
		}
	}
	return all
}

func TestWatchStreamsAnsweredRequests(t *testing.T) {
	var service *observedService
	f := start(t, watchedRules, func(o *Options) {
		service = &observedService{Service: o.Service}
		o.Service = service
	})
	c := adminv1.NewAdminServiceClient(dial(t, f.admin.Serve))
	ctx, cancel := context.WithCancel(t.Context())
	stream := watching(ctx, t, c, &adminv1.WatchRequest{})
	misses := watching(ctx, t, c, &adminv1.WatchRequest{Outcomes: []adminv1.Outcome{adminv1.Outcome_OUTCOME_UNMATCHED}})
	for range 3 {
		f.ask(t, descriptor("path", "/cart"))
	}
	f.fetch(t, "POST", "/json", `{"domain":"edge","descriptors":[{"entries":[{"key":"pathh","value":"<b>\u001b[2J"}]}]}`)
	const miss = "edge pathh=<b>\x1b[2J OUTCOME_UNMATCHED key \"pathh\": this level has path=/cart"
	want := "edge path=/cart OUTCOME_OK \nedge path=/cart OUTCOME_OK \nedge path=/cart OUTCOME_OVER_LIMIT \n" + miss
	if got := strings.Join(texts(t, stream, 4), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := texts(t, misses, 1); len(got) != 1 || got[0] != miss {
		t.Errorf("unmatched: got %q, want %q", got, miss)
	}
	cancel()
	for late := time.Now().Add(10 * time.Second); service.observers.Load() > 0; time.Sleep(time.Millisecond) { // leave with the streams
		if time.Now().After(late) {
			t.Fatalf("requests are observed although %d clients watch", f.admin.hub.Watchers())
		}
	}
}

// observedService counts the observers of a Service.
type observedService struct {
	Service
	observers atomic.Int64
}

// Observe implements [Service].
func (s *observedService) Observe(o limiter.Observer) (remove func()) {
	s.observers.Add(1)
	end := s.Service.Observe(o)
	return func() { end(); s.observers.Add(-1) }
}

func TestWatchRefusesNonsenseAndTooManyClients(t *testing.T) {
	f := start(t, watchedRules, nil)
	c := adminv1.NewAdminServiceClient(dial(t, f.admin.Serve))
	refused := func(in *adminv1.WatchRequest, code codes.Code, text string) {
		t.Helper()
		stream, err := c.Watch(t.Context(), in)
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != code || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v; want %v with %q", err, code, text)
		}
	}
	refused(&adminv1.WatchRequest{MaxPerSecond: 1 << 31}, codes.InvalidArgument, "max_per_second: 2147483648: must be at most 100000")
	for i := range watch.MaxWatchers {
		if i%maxStreams == 0 {
			c = f.service(t)
		}
		watching(t.Context(), t, c, &adminv1.WatchRequest{})
	}
	c = f.service(t)
	for range 1000 - watch.MaxWatchers {
		refused(&adminv1.WatchRequest{}, codes.ResourceExhausted, "32 clients watch already")
	}
}

func TestADrainEndsAWatch(t *testing.T) {
	f := start(t, watchedRules, nil)
	stream := watching(t.Context(), t, adminv1.NewAdminServiceClient(dial(t, f.admin.Serve)), &adminv1.WatchRequest{})
	f.admin.Drain()
	f.ask(t, descriptor("path", "/cart"))
	if got := texts(t, stream, 1); len(got) != 1 {
		t.Errorf("while the server drains: got %q", got)
	}
	f.admin.GracefulStop()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("after the drain: got %v; want Unavailable", err)
	}
}

func TestAWatcherThatNeverReadsSlowsNobody(t *testing.T) {
	f := start(t, watchedRules, nil)
	c := adminv1.NewAdminServiceClient(dial(t, f.admin.Serve))
	stalled := watching(t.Context(), t, c, &adminv1.WatchRequest{MaxPerSecond: 100_000})
	reads := watching(t.Context(), t, c, &adminv1.WatchRequest{MaxPerSecond: 100_000})
	value := strings.Repeat("x", 10_000)
	const requests = 2000 // some 40 MB in messages
	var asking sync.WaitGroup
	asking.Go(func() {
		for range requests {
			f.ask(t, descriptor("path", value))
		}
	})
	seen, lost := 0, uint64(0)
	for uint64(seen)+lost < requests { // a slow machine may lose some
		m, err := reads.Recv()
		if err != nil {
			t.Fatal(err)
		}
		seen, lost = seen+len(m.GetRequests()), lost+m.GetLost()
	}
	asking.Wait() // all requests were answered while the other client did not read
	seen, lost = 0, 0
	for uint64(seen)+lost < requests {
		m, err := stalled.Recv()
		if err != nil {
			t.Fatal(err)
		}
		seen, lost = seen+len(m.GetRequests()), lost+m.GetLost()
	}
	if lost == 0 {
		t.Error("a client that did not read lost no request: want a bound of the requests that wait")
	}
}
