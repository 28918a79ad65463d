package e2e

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/test/parts"
)

const (
	// few is the limit of the keys whose count is checked to the last hit.
	few = 20

	// fleetRules have limits that nobody reaches, one for each on_store_error, and limits that are
	// reached at once.
	fleetRules = `
domain: e2e
descriptors:
  - {key: local, rate_limit: {requests_per_unit: 1000000, unit: year}}
  - {key: allow, on_store_error: allow, rate_limit: {requests_per_unit: 1000000, unit: year}}
  - {key: deny, on_store_error: deny, rate_limit: {requests_per_unit: 1000000, unit: year}}
  - {key: window, rate_limit: {requests_per_unit: 20, unit: year}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, requests_per_unit: 20, unit: year}}
  - {key: many, on_store_error: deny, rate_limit: {requests_per_unit: 200, unit: year}}
`

	// fleetTimeout is the --redis-timeout of these tests: the 10 ms of real life are for machines that
	// do nothing else.
	fleetTimeout = 300 * time.Millisecond

	// callTimeout is how long a caller waits for an answer. A later answer proves that a sidecar
	// hangs, as no busy machine takes so long.
	callTimeout = 15 * time.Second

	// patientFleet is for tests in which Redis is always there and must decide all.
	patientFleet = "--redis-timeout=5s"
)

// A fleet is sidecars that share a Redis.
type fleet struct {
	sidecars []*sidecar
	clients  []client
	fresh    atomic.Int64 // values that undisturbed has used
	slots    bool         // keys lie in several slots of a cluster

	traffic    *traffic
	goroutines []int // of each sidecar, before anything happened
}

// startRedis starts a Redis of its own for the test.
func startRedis(t *testing.T, options parts.RedisOptions) *parts.Redis {
	t.Helper()
	once(t)
	return parts.RedisFor(t, options)
}

// startSentinels starts a primary, replicas and Sentinels for the test.
func startSentinels(t *testing.T, options parts.SentinelOptions) *parts.Sentinels {
	t.Helper()
	once(t)
	return parts.SentinelsFor(t, options)
}

// urlOf is the --redis-url of a single Redis, or of a proxy before one.
func urlOf(address string) string { return "redis://" + address }

// startFleet starts two sidecars with fleetRules, which know that they are two. The function does
// not wait for Redis.
func startFleet(t *testing.T, url string, args ...string) *fleet {
	t.Helper()
	f := &fleet{}
	for range 2 {
		f.start(t, fleetRules, url, append([]string{"--fleet-size=2"}, args...)...)
	}
	return f
}

// start adds a sidecar.
func (f *fleet) start(t *testing.T, rules, url string, args ...string) *sidecar {
	t.Helper()
	s := startSidecar(t, rules, append([]string{
		"--store=redis", "--redis-url=" + url, "--redis-timeout=" + fleetTimeout.String(), "--drain-timeout=100ms",
	}, args...)...)
	f.sidecars = append(f.sidecars, s)
	f.clients = append(f.clients, dial(t, s.GRPC))
	return s
}

// questions makes a request of one hit for each descriptor, given as key and value in turns.
func questions(pairs ...string) *ratelimitv3.RateLimitRequest {
	r := &ratelimitv3.RateLimitRequest{Domain: "e2e"}
	for i := 0; i < len(pairs); i += 2 {
		r.Descriptors = append(r.Descriptors, &commonv3.RateLimitDescriptor{
			Entries:    []*commonv3.RateLimitDescriptor_Entry{{Key: pairs[i], Value: pairs[i+1]}},
			HitsAddend: wrapperspb.UInt64(1),
		})
	}
	return r
}

// outcome sends a request and returns the result: a code, or an error. The request has no deadline,
// of which Weir would wait three quarters for Redis, in place of fleetTimeout.
func (c client) outcome(ctx context.Context, r *ratelimitv3.RateLimitRequest) string {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(callTimeout, cancel).Stop()
	response, err := c.service.ShouldRateLimit(ctx, r)
	if err != nil {
		s := status.Convert(err)
		return fmt.Sprintf("%s: %s", s.Code(), s.Message())
	}
	return response.GetOverallCode().String()
}

// begin sends some 250 requests a second, to all sidecars, for limits with each on_store_error,
// until finish. begin returns when requests flow.
func (f *fleet) begin(t *testing.T) *traffic {
	t.Helper()
	kinds := [][]string{{"local"}, {"allow"}, {"deny"}, {"local", "allow"}}
	var asked atomic.Int64
	f.traffic = newTraffic(t, len(kinds)*len(f.clients), 30*time.Millisecond, func(ctx context.Context, worker int) string {
		kind := kinds[worker%len(kinds)]
		var pairs []string
		for _, key := range kind {
			pairs = append(pairs, key, fmt.Sprintf("traffic-%d", asked.Add(1)%100))
		}
		c := f.clients[worker/len(kinds)]
		return strings.Join(kind, "+") + " " + c.outcome(ctx, questions(pairs...))
	})
	f.traffic.awaitMore(t, 100)
	f.goroutines = nil
	for _, s := range f.sidecars {
		f.goroutines = append(f.goroutines, s.metric(t, "go_goroutines"))
	}
	return f.traffic
}

// finish ends the traffic and checks the claims that hold after every fault of Redis. Each sidecar
// is as before: no more goroutines, a log that is not full, and an end after a signal.
func (f *fleet) finish(t *testing.T) {
	t.Helper()
	const slack = 15 // connections come and go
	for i, s := range f.sidecars {
		parts.Eventually(t, func() string {
			if now := s.metric(t, "go_goroutines"); now > f.goroutines[i]+slack {
				return fmt.Sprintf("sidecar %d has %d goroutines, before all that it had %d", i, now, f.goroutines[i])
			}
			return ""
		})
	}
	outcomes := f.traffic.stop()
	for outcome := range outcomes {
		switch outcome {
		case "local OK", "allow OK", "local+allow OK", "deny OK", "deny OVER_LIMIT":
		default:
			t.Errorf("outcomes of the traffic: got %v, want nobody to get an error and nobody to be denied but by on_store_error", outcomes)
		}
	}
	// Not the promise, which needs a machine that does nothing else.
	if longest := callTimeout / 2; f.traffic.slowest > longest {
		t.Errorf("slowest answer: got %s, want at most %s", f.traffic.slowest, longest)
	}
	f.end(t)
}

// end checks that the sidecars have not filled the log, and end when they are asked to.
func (f *fleet) end(t *testing.T) {
	t.Helper()
	begun := time.Now()
	for _, s := range f.sidecars {
		s.terminate(t)
	}
	const many = 30
	for i, s := range f.sidecars {
		s.awaitExit(t)
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("sidecar %d has taken %s to end", i, took)
		}
		if lines := s.told(0); len(lines) > many {
			t.Errorf("lines about Redis in the log: got %d, want one for each change of state:\n%s", len(lines), strings.Join(lines, "\n"))
		}
	}
}

// told returns the lines of the log, from the line with the number from on, that are about Redis.
func (s *sidecar) told(from int) []string {
	var lines []string
	for _, line := range s.Lines()[from:] {
		message := parts.ParseLog(line).Message
		if strings.HasPrefix(message, "redis ") || strings.HasPrefix(message, "store ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// away returns the number of charges with these labels that all sidecars have decided without Redis
// so far.
func (f *fleet) away(t *testing.T, labels ...string) int {
	t.Helper()
	sum := 0
	for _, s := range f.sidecars {
		sum += s.metric(t, "weir_store_fallback_decisions_total", labels...)
	}
	return sum
}

// opened returns how often the breakers of each sidecar have opened so far.
func (f *fleet) opened(t *testing.T) []int {
	t.Helper()
	var all []int
	for _, s := range f.sidecars {
		all = append(all, s.metric(t, "weir_store_opened_total"))
	}
	return all
}

// awaitOpened waits until the breaker of each sidecar has opened since opened returned that. The
// breaker may be half-open by now.
func (f *fleet) awaitOpened(t *testing.T, before []int) {
	t.Helper()
	for i, s := range f.sidecars {
		parts.Eventually(t, func() string {
			if s.metric(t, "weir_store_opened_total") <= before[i] {
				return fmt.Sprintf("the breaker of sidecar %d has not opened", i)
			}
			return ""
		})
	}
}

// awaitState waits until the breakers of all sidecars are closed, open or half_open.
func (f *fleet) awaitState(t *testing.T, state string) {
	t.Helper()
	for i, s := range f.sidecars {
		parts.Eventually(t, func() string {
			if s.metric(t, "weir_store_state", `state="`+state+`"`) != 1 {
				return fmt.Sprintf("the breaker of sidecar %d is not %s; it says of Redis:\n%s", i, state, strings.Join(s.told(0), "\n"))
			}
			return ""
		})
	}
}

// awaitShares waits until the shares of the sidecars are all of each limit together. For some
// seconds after a start they are not.
func (f *fleet) awaitShares(t *testing.T) {
	t.Helper()
	parts.Eventually(t, func() string {
		sum := 0.0
		for _, s := range f.sidecars {
			sum += s.gauge(t, "weir_store_share")
		}
		if math.Abs(sum-1) > 1e-6 {
			return fmt.Sprintf("the sidecars have shares of %v together", sum)
		}
		return ""
	})
}

// awaitQuiet waits until Redis decides everything again, and knows all hits: while traffic flows,
// nothing is decided without Redis.
func (f *fleet) awaitQuiet(t *testing.T) {
	t.Helper()
	f.awaitState(t, "closed")
	parts.Eventually(t, func() string {
		before := f.away(t)
		f.traffic.awaitMore(t, 50)
		if more := f.away(t) - before; more > 0 {
			return fmt.Sprintf("%d charges were decided without Redis just now", more)
		}
		for i, s := range f.sidecars {
			if owed := s.metric(t, "weir_store_owed_keys"); owed > 0 {
				return fmt.Sprintf("sidecar %d has %d keys with hits that Redis does not know of", i, owed)
			}
		}
		return ""
	})
}
