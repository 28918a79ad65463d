package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/test/parts"
)

// tokens returns rules of domain llm with so many tokens a year for each user, and more than enough
// for each team.
func tokens(n int) string {
	return fmt.Sprintf(`
domain: llm
descriptors:
  - key: user
    rate_limits:
      - {name: one, unit: year, requests_per_unit: %d, hold: {begin: request, end: request_done, at_most: 1h}}
      - {name: two, algorithm: token_bucket, unit: year, requests_per_unit: %d, hold: {begin: request, end: request_done, at_most: 1h}}
  - key: team
    rate_limit: {unit: year, requests_per_unit: 100000000, hold: {begin: request, end: request_done, at_most: 1h}}
`, n, 10*n)
}

// A stream has 50 requests at the same time, which are estimated at twice or at half of their true
// cost.
func TestFiftyParallelStreamsAreChargedTheTruthToTheToken(t *testing.T) {
	t.Parallel()
	for store, start := range stores() {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			args := start(t)
			const balance, streams = 1_000_000, 50
			backend := parts.BackendFor(t)
			s := startWith(t, tokens(balance), args...)
			e := startDeployed(t, "llm/envoy.yaml", backend, s.GRPC)
			asked := dial(t, s.GRPC)
			for _, test := range []struct {
				name     string
				estimate func(cost int) int
			}{
				{"twice", func(cost int) int { return 2 * cost }},
				{"half", func(cost int) int { return cost / 2 }},
			} {
				estimated, truth := 0, 0
				var flights []*flight
				for i := range streams {
					cost := 100 + 2*i
					estimated, truth = estimated+test.estimate(cost), truth+cost
					flights = append(flights, e.think(t, cost, test.estimate(cost), "midway="+test.name, test.name))
				}
				awaitGate(t, backend, test.name, streams)
				if got := asked.left(t, "llm", test.name); got != balance-estimated {
					t.Errorf("%s, while all streams run: got %d left, want %d: the estimates are charged", test.name, got, balance-estimated)
				}
				backend.Open(test.name)
				for _, f := range flights {
					if code := f.land(t).code; code != http.StatusOK {
						t.Errorf("%s: got %d, want 200", test.name, code)
					}
				}
				awaitLeft(t, asked, "llm", test.name, balance-truth)
			}
		})
	}
}

func TestNoMoreStreamsPassThanTheBalanceHoldsAtEachBegin(t *testing.T) {
	t.Parallel()
	for store, start := range stores() {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			args := start(t)
			const balance, cost, streams = 1000, 50, 50
			backend := parts.BackendFor(t)
			s := startWith(t, tokens(balance), args...)
			e := startDeployed(t, "llm/envoy.yaml", backend, s.GRPC)
			for _, estimate := range []int{2 * cost, cost / 2} {
				user := fmt.Sprintf("estimated-%d", estimate)
				var flights []*flight
				for range streams {
					flights = append(flights, e.think(t, cost, estimate, "midway="+user, user))
				}
				pass := min(balance/estimate, streams)
				settled(t, backend, user, flights)
				backend.Open(user)
				codes := map[int]int{}
				for _, f := range flights {
					codes[f.land(t).code]++
				}
				if codes[http.StatusOK] < pass || codes[http.StatusOK]+codes[http.StatusTooManyRequests] != streams {
					t.Errorf("%d streams on %d tokens, estimated at %d: got codes %v", streams, balance, estimate, codes)
				}
				if arrived, _ := backend.At(user); arrived != pass {
					t.Errorf("%d streams on %d tokens, estimated at %d: got %d at the model, want %d", streams, balance, estimate, arrived, pass)
				}
				awaitLeft(t, dial(t, s.GRPC), "llm", user, max(0, balance-pass*cost))
			}
		})
	}
}

// A client that leaves makes nobody know the cost: the end charges the estimate. An error of the
// model costs nothing.
func TestTokensOfRequestsThatEndEarly(t *testing.T) {
	t.Parallel()
	const balance, cost, estimate = 1000, 30, 100
	backend := parts.BackendFor(t)
	s := startSidecar(t, tokens(balance))
	e := startDeployed(t, "llm/envoy.yaml", backend, s.GRPC)
	asked := dial(t, s.GRPC)
	tests := []struct {
		user, query string
		leave       bool
		left        int
	}{
		{user: "complete", left: balance - cost},
		{user: "error", query: "status=500", left: balance},
		{user: "broken", query: "reset=begin", left: balance},
		{user: "broken-stream", query: "reset=midway", left: balance - estimate},
		{user: "left", query: "gate=left", leave: true, left: balance - estimate},
		{user: "left-stream", query: "midway=left-stream", leave: true, left: balance - estimate},
	}
	for _, test := range tests {
		f := e.think(t, cost, estimate, test.query, test.user)
		if test.leave {
			awaitGate(t, backend, test.user, 1)
			f.leave()
		}
		<-f.ended
		awaitLeft(t, asked, "llm", test.user, test.left)
	}
	parts.Eventually(t, func() string {
		if held := s.metric(t, "weir_holds_held"); held > 0 {
			return fmt.Sprintf("%d requests hold tokens, want none: each has ended", held)
		}
		return ""
	})
	for _, test := range tests {
		if got := asked.left(t, "llm", test.user); got != test.left {
			t.Errorf("%s: got %d left, want %d", test.user, got, test.left)
		}
	}
}

// Peek, then charge: 0 hits at the begin, and the cost at the end. This protocol works on the limit
// of holders, and promises less.
func TestPeekThenChargeOnALimitOfHolders(t *testing.T) {
	t.Parallel()
	const balance, cost = 1000, 600
	backend := parts.BackendFor(t)
	s := startSidecar(t, tokens(balance))
	const header = `'x-estimate' in request.headers ? int(request.headers['x-estimate']) : `
	const estimate = "%CEL(has(metadata.typed_filter_metadata.asked)\n"
	e := startDeployed(t, "llm/envoy.yaml", backend, s.GRPC, estimate, strings.Replace(estimate, "has", header+"has", 1))
	asked := dial(t, s.GRPC)
	together := func(user, estimate string) []int {
		var flights []*flight
		for i := range 3 {
			flights = append(flights, e.think(t, cost, 10, "gate="+user, user, "x-estimate: "+estimate))
			parts.Eventually(t, func() string {
				arrived, _ := backend.At(user)
				select {
				case <-flights[i].ended:
				default:
					if arrived <= i {
						return "the request is neither at the model nor answered"
					}
				}
				return ""
			})
		}
		backend.Open(user)
		var codes []int
		for _, f := range flights {
			codes = append(codes, f.land(t).code)
		}
		return codes
	}
	if diff := cmp.Diff([]int{200, 429, 429}, together("holder", "600")); diff != "" {
		t.Errorf("three requests at once with an estimate (-want +got):\n%s", diff)
	}
	awaitLeft(t, asked, "llm", "holder", balance-cost)
	if diff := cmp.Diff([]int{200, 200, 200}, together("peeker", "0")); diff != "" {
		t.Errorf("three requests at once that peek (-want +got):\n%s", diff)
	}
	// 1800 of 1000 tokens are charged: each request saw all 1000. From then on both protocols are
	// denied.
	awaitLeft(t, asked, "llm", "peeker", 0)
	parts.Eventually(t, func() string {
		if code := e.think(t, cost, 10, "", "peeker", "x-estimate: 0").land(t).code; code != http.StatusTooManyRequests {
			return fmt.Sprintf("a peek at an overdrawn limit: got %d, want 429", code)
		}
		return ""
	})
	if code := e.think(t, cost, 10, "", "peeker", "x-estimate: 1").land(t).code; code != http.StatusTooManyRequests {
		t.Errorf("a holder at an overdrawn limit: got %d, want 429", code)
	}
	// One after the other a peek is as good as an estimate.
	for i, want := range []int{200, 200, 429} {
		if code := e.think(t, cost, 10, "", "patient", "x-estimate: 0").land(t).code; code != want {
			t.Errorf("one peek after the other: got %d, want %d", code, want)
		}
		awaitLeft(t, asked, "llm", "patient", max(0, balance-(i+1)*cost))
	}
}
