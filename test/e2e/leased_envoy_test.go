package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/test/parts"
)

func TestTwoEnvoysWithTwoLeasedSidecarsShareOneLimit(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	l := newLedger(100, time.Second)
	f := &fleet{}
	var envoys []*envoy
	for range 2 {
		s := f.start(t, l.rules(), urlOf(r.Address()), leased(patientFleet)...)
		var actions []string
		for _, limit := range l.limits {
			actions = append(actions, fmt.Sprintf("- actions: [{request_headers: {header_name: x-%v, descriptor_key: %v}}]",
				strings.ReplaceAll(limit.Algorithm.String(), "_", "-"), limit.Algorithm))
		}
		envoys = append(envoys, startEnvoy(t, envoyConfig{RateLimits: strings.Join(actions, "\n"), Endpoints: []string{tcpAddress(t, s.GRPC)}}))
	}
	f.awaitState(t, "closed")
	begun := time.Now()
	asking := newTraffic(t, 10, 5*time.Millisecond, func(ctx context.Context, worker int) string {
		if time.Since(begun)/burst%2 == 1 {
			return "pause"
		}
		key := worker / 2
		sent := time.Now()
		a, err := envoys[worker%2].try(ctx, "/", "x-"+strings.ReplaceAll(l.limits[key].Algorithm.String(), "_", "-")+": hot")
		received := time.Now()
		if ctx.Err() != nil {
			return ""
		}
		outcome := map[int]string{http.StatusOK: "OK", http.StatusTooManyRequests: "OVER_LIMIT"}[a.code]
		if err != nil {
			outcome = err.Error()
		}
		l.note(key, sent, received, outcome)
		return outcome
	})
	<-time.After(8 * burst)
	l.await(t, 100)
	(&hotFleet{fleet: f}).awaitLeases(t)
	asking.stop()
	l.errorless(t)
	l.atMost(t, 100, 0)
	for i, e := range envoys {
		if stats := e.rateLimitStats(t); stats["error"] != 0 || stats["failure_mode_allowed"] != 0 {
			t.Errorf("counters of Envoy %d: got %v, want no error", i, stats)
		}
	}
}

// TestAPodOfTheOriginalBesideTwoWithLeasesSeesTheirHits has a pod of the original count in the same
// Redis. A pod does INCRBY on the counter of the window, and renews the expiry with every hit.
func TestAPodOfTheOriginalBesideTwoWithLeasesSeesTheirHits(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	const limit = 100
	l := &ledger{limits: []algorithms.Limit{{Algorithm: algorithms.FixedWindow, Requests: limit, Period: time.Second}}, errors: map[string]int{}}
	root := runtimeRoot(t, "domain: e2e\ndescriptors:\n  - {key: fixed_window, rate_limit: {unit: second, requests_per_unit: 100}}\n")
	var clients []client
	var pods []*ratelimit
	for range 2 {
		p := startRatelimit(t, append(withRedis(r), root, "WEIR_SHARING=leased", "WEIR_FLEET_SIZE=3")...)
		p.awaitHealthy(t)
		pods, clients = append(pods, p), append(clients, dial(t, p.GRPC))
	}
	begun := time.Now()
	asking := newTraffic(t, 12, 5*time.Millisecond, func(ctx context.Context, worker int) string {
		if time.Since(begun)/burst%2 == 1 {
			return "pause"
		}
		if worker < 8 {
			return l.ask(ctx, clients[worker%2], 0, "hot")
		}
		sent := time.Now()
		counter := fmt.Sprintf("e2e_fixed_window_hot_%d", sent.Unix())
		message, err := r.Do(ctx, "INCRBY", counter, "1")
		if err != nil {
			return err.Error()
		}
		n, err := message.AsInt64()
		if err != nil {
			return err.Error()
		}
		if _, err := r.Do(ctx, "EXPIRE", counter, "5"); err != nil {
			return err.Error()
		}
		outcome := "OK"
		if n > limit {
			outcome = "OVER_LIMIT"
		}
		l.note(0, sent, time.Now(), outcome)
		return "pod " + outcome
	})
	<-time.After(10 * burst)
	l.await(t, 100)
	if outcomes := asking.stop(); outcomes["pod OVER_LIMIT"] == 0 || outcomes["pod OK"] == 0 || outcomes["OK"] == 0 {
		t.Errorf("outcomes: got %v, want hits that pass at either, and hits that the pod denies", outcomes)
	}
	l.errorless(t)
	l.atMost(t, 100, 0)
	n := 0
	for _, p := range pods {
		n += p.metric(t, "weir_store_leased_decisions_total")
	}
	if n == 0 {
		t.Error("no request was decided from a lease")
	}
}
