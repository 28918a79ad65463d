package server

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
)

// seen is an observer that notes each request in words.
type seen struct {
	mu    sync.Mutex // guards lines
	lines []string
}

// Observe implements [limiter.Observer].
func (s *seen) Observe(o limiter.Observed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := strings.Clone(o.Request.Domain) + " "
	if o.Err != nil {
		line += "error"
	} else {
		line += fmt.Sprint(o.Verdict.OverLimit)
		for i := range o.Verdict.Statuses {
			for c := range o.Verdict.Charged(i) {
				line += fmt.Sprintf(" %s %d %d", c.Key, c.Hits, c.Decision.Remaining)
			}
		}
	}
	s.lines = append(s.lines, line)
}

// tells is a store that never waits and tells sources.
type tells struct{ store.Store }

func (tells) TakeNow(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	for i := range charges {
		decisions[i] = algorithms.Decision{Allowed: true}
		if left := charges[i].Left; left != nil {
			*left = store.State{Source: store.Lease}
		}
	}
	return true, true
}

func (s tells) TakeAll(all []store.Transaction, decided func([]int)) {
	for i := range all {
		all[i].Admitted, _ = s.TakeNow(all[i].Charges, all[i].Decisions)
		decided([]int{i})
	}
}

func (tells) Forget() {}

// sources is an observer that notes the sources of decisions.
type sources struct {
	mu  sync.Mutex // guards all
	all []store.Source
}

// Observe implements [limiter.Observer].
func (s *sources) Observe(o limiter.Observed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, o.Verdict.Statuses[0].Source)
}

func TestObserversSeeTheSourceOfADecision(t *testing.T) {
	f := startOn(t, tells{}, "domain: edge\ndescriptors: [{key: path, rate_limit: {unit: day, requests_per_unit: 2}}]\n", nil)
	seen := new(sources)
	defer f.server.Observe(seen)()
	f.ask(t, descriptor("path", "/cart"))
	f.fetch(t, "POST", "/json", `{"domain":"edge","descriptors":[{"entries":[{"key":"path","value":"/cart"}]}]}`)
	if want := []store.Source{store.Lease, store.Lease}; !slices.Equal(seen.all, want) {
		t.Errorf("the observer saw the sources %v; want %v", seen.all, want)
	}
}

func TestObserversSeeEachRequestOnceAndNoneAfterTheirRemoval(t *testing.T) {
	f := start(t, "domain: edge\ndescriptors: [{key: path, rate_limit: {unit: day, requests_per_unit: 2}}]\n", nil)
	first, second := new(seen), new(seen)
	remove := f.server.Observe(first)
	f.server.Observe(second)
	ask := func() {
		for range 2 {
			f.ask(t, descriptor("path", "/cart"))
		}
		if _, err := f.client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "edge"}); err == nil {
			t.Fatal("a request without descriptors got no error")
		}
		f.fetch(t, "POST", "/json", `{"domain":"edge","descriptors":[{"entries":[{"key":"path","value":"/cart"}]}]}`)
	}
	ask()
	const key = "4:edge|4:path=5:/cart#fixed_window/1d"
	want := []string{"edge false " + key + " 1 1", "edge false " + key + " 1 0", "edge error", "edge true " + key + " 1 0"}
	if !slices.Equal(first.lines, want) || !slices.Equal(second.lines, want) {
		t.Errorf("the observers saw %q and %q; want %q", first.lines, second.lines, want)
	}
	remove()
	ask()
	if len(first.lines) != len(want) || len(second.lines) != 2*len(want) {
		t.Errorf("after the removal the observers saw %d and %d requests; want %d and %d", len(first.lines), len(second.lines), len(want), 2*len(want))
	}
}
