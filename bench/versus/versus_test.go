package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/weirproxy/weir/bench/drive"
)

// fake is a service that admits more hits of a day than its limit says, or fewer.
type fake struct {
	ratelimitv3.UnimplementedRateLimitServiceServer

	off int

	mu   sync.Mutex // guards used
	used map[string]int
}

func (f *fake) ShouldRateLimit(_ context.Context, r *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries := r.GetDescriptors()[0].GetEntries()
	key := entries[0].GetValue() + entries[1].GetValue()
	if entries[0].GetValue() == string(second) {
		key += time.Now().Truncate(time.Second).String()
	}
	code := ratelimitv3.RateLimitResponse_OK
	if f.used[key]++; f.used[key] > strictHits+f.off {
		code = ratelimitv3.RateLimitResponse_OVER_LIMIT
	}
	return &ratelimitv3.RateLimitResponse{OverallCode: code}, nil
}

// serve serves a fake until the test ends.
func serve(t *testing.T, off int) *runs {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	ratelimitv3.RegisterRateLimitServiceServer(server, &fake{off: off, used: make(map[string]int)})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &runs{contender: &contender{name: "fake"}, site: &site{address: listener.Addr().String()}}
}

// TestAnOpenLoopAsksAtItsRate: instants that come together are all asked.
func TestAnOpenLoopAsksAtItsRate(t *testing.T) {
	r := serve(t, 1<<30)
	for i := range population {
		r.keys = append(r.keys, r.request(free, fmt.Sprint(i)))
	}
	const rate, span = 10_000, 500 * time.Millisecond
	all, err := r.paced(t.Context(), rate, span)
	if n := len(all); err != nil || n < 4500 || n > 5500 { // seven standard deviations
		t.Errorf("%d requests, %v; want about 5000", n, err)
	}
}

// TestAFloodFindsAServiceThatLeaksOrIsStrict asks a true service, and two that are off by a little.
func TestAFloodFindsAServiceThatLeaksOrIsStrict(t *testing.T) {
	for _, off := range []int{0, 1, -1} {
		got, err := serve(t, off).flood(t.Context(), 1500*time.Millisecond, 0)
		if err != nil || got.failed > 0 || (got.over >= dayKeys/2) != (off > 0) || (got.under >= dayKeys/2) != (off < 0) || (got.over == 0) != (off <= 0) {
			t.Errorf("%d hits more than the limit: got %+v, %v", off, got, err)
		}
	}
}

func TestGubernatorsAnswersHaveAVerdict(t *testing.T) {
	denied := "\x0a\x04\x08\x01\x10\x64"
	for message, want := range map[string]string{
		"\x0a\x02\x10\x64":          "false <nil>",
		denied:                      "true <nil>",
		"\x0a\x02\x10\x64" + denied: "true <nil>",
		"\x0a\x05\x2a\x03bad":       "false bad",
		"\x0a\x09\x10\x64\x2a\x05":  "false unexpected EOF",
	} {
		got, err := gubernatorDenied([]byte(message))
		if text := fmt.Sprint(got, " ", err); !strings.HasSuffix(text, strings.TrimPrefix(want, "false ")) || got != strings.HasPrefix(want, "true") {
			t.Errorf("%q: got %s; want %s", message, text, want)
		}
	}
}

// some returns the runs of a bare server and one service, which takes a multiple of its CPU.
func some(times int) []*runs {
	bare, service := &runs{contender: &contender{name: bareName}}, &runs{contender: &contender{name: "a service", redis: true}}
	for i := range 3 {
		one := use{server: time.Duration(100+i) * time.Microsecond, took: time.Second, requests: 1}
		full := use{server: 50 * time.Microsecond, took: time.Second, requests: 1}
		t := turn{steady: one, bareSteady: one, full: full, bareFull: full}
		bare.turns = append(bare.turns, t)
		t.steady.server, t.steady.redis, t.tally = one.server*time.Duration(times), 20*time.Microsecond, tally{asked: 9, admitted: 5, over: 1}
		service.turns = append(service.turns, t)
	}
	service.bytes = memory{server: 1234, redis: 56}
	gone := &runs{contender: &contender{name: "another", missing: "no compiler"}}
	return []*runs{bare, service, gone}
}

func TestAPageShowsWhatAnotherRunCanRead(t *testing.T) {
	page, err := between("head\n"+beginMark+"old\n"+endMark+"tail\n", report(some(3), 3, spans{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"head\n", "tail\n", "a service | 3.00 | 0.198 (0.196 to 0.200) | 1.00 | – | 1234 | 56 |", "another: not measured. no compiler"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has not %q:\n%s", want, page)
		}
	}
	before, err := readRatios(page)
	if err != nil || len(before) != len(names()) {
		t.Fatalf("got %v, %v; want the ratios of a service", before, err)
	}
	var out strings.Builder
	if err := before.compare(&out, ratiosOf(some(3))); err != nil {
		t.Errorf("the same run: %v\n%s", err, &out)
	}
	if err := before.compare(&out, ratiosOf(some(4))); err == nil || !strings.HasPrefix(err.Error(), "1 of ") {
		t.Errorf("a third more CPU: got %v; want one ratio that differs\n%s", err, &out)
	}
}

func TestAPageWithoutATableIsRefused(t *testing.T) {
	head := line(firstColumn, "CPU") + "\n" + ruler(2) + "\n"
	for text, want := range map[string]string{
		"":                                      "there is no table",
		head:                                    "there is no table",
		head + line("x", "1", "2") + "\n":       "has 3 cells; want 2",
		head + line("x", "one (1 to 2)") + "\n": "x, CPU: ",
	} {
		if got, err := readRatios(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, %v; want %q", text, got, err, want)
		}
	}
	if _, err := between(beginMark, ""); err == nil {
		t.Error("a page with one mark: got no error")
	}
	if err := (ratios{}).compare(new(strings.Builder), ratiosOf(some(3))); err == nil {
		t.Error("a comparison with nothing: got no error")
	}
}

func TestResidentMemoryIsInBytes(t *testing.T) {
	if got, err := resident("Name:\tx\nVmRSS:\t    12 kB\n"); got != 12<<10 || err != nil {
		t.Errorf("got %v, %v; want 12288", got, err)
	}
	for _, text := range []string{"", "VmRSS:\tmuch\n"} {
		if got, err := resident(text); err == nil {
			t.Errorf("%q: got %v; want an error", text, got)
		}
	}
}

func TestRequestsOfOneHitNameTheirClassAndKey(t *testing.T) {
	for _, c := range []contender{{}, {own: true}} {
		if request := string(c.request(day, "k1", "k2")); !strings.Contains(request, "day") || !strings.Contains(request, "k1") || !strings.Contains(request, "k2") {
			t.Errorf("own %v: got %q", c.own, request)
		}
	}
	if got := judge(day.of(), []drive.Record{{Result: drive.Allowed}}); got.asked != 1 || got.admitted != 1 {
		t.Errorf("got %+v", got)
	}
}
