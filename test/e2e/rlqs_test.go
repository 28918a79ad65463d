package e2e

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// admission is the time between sending a request that was answered with 200, and its answer.
type admission struct{ sent, answered time.Duration }

// quotaLoad sends requests of a tenant through Envoys.
type quotaLoad struct {
	begun time.Time
	mu    sync.Mutex // guards the rest
	all   []admission
	by    map[string]int // admitted requests by URL
	wrong []string
}

func (l *quotaLoad) run(url string, workers int, pause, duration time.Duration) {
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for time.Since(l.begun) < duration {
				l.one(url)
				<-time.After(pause)
			}
		})
	}
	running.Wait()
}

func (l *quotaLoad) one(url string) {
	r, err := http.NewRequest(http.MethodGet, url, http.NoBody) //nolint:noctx // the client has a timeout
	if err != nil {
		return
	}
	r.Header.Set("X-Tenant", "acme")
	sent := time.Since(l.begun)
	a, err := (&http.Client{Timeout: 10 * time.Second}).Do(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.wrong = append(l.wrong, err.Error())
		return
	}
	_, _ = io.Copy(io.Discard, a.Body)
	_ = a.Body.Close()
	switch a.StatusCode {
	case http.StatusOK:
		l.all = append(l.all, admission{sent, time.Since(l.begun)})
		l.by[url]++
	case http.StatusTooManyRequests:
	default:
		l.wrong = append(l.wrong, a.Status)
	}
}

// count returns the number of admitted requests up to now.
func (l *quotaLoad) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// over returns the largest number of requests that an interval has beyond burst + rate × length.
// Only requests that were sent and answered inside an interval count.
func over(all []admission, rate, burst float64) (most float64) {
	slices.SortFunc(all, func(a, b admission) int { return int(a.answered - b.answered) })
	for _, first := range all {
		inside := 0.
		for _, a := range all {
			if a.sent < first.sent {
				continue
			}
			inside++
			most = max(most, inside-burst-rate*(a.answered-first.sent).Seconds())
		}
	}
	return most
}

func TestTwoEnvoysShareOneLimitByRLQS(t *testing.T) {
	t.Parallel()
	once(t)
	const rate, burst = 60, 40
	s := startSidecar(t, fmt.Sprintf(`
domain: edge
descriptors:
  - key: tenant
    rate_limit: {algorithm: token_bucket, requests_per_unit: %d, unit: second, burst: %d}
`, rate, burst))
	config := bootstrap(t, "rlqs.yaml.tmpl", []string{tcpAddress(t, s.GRPC)})
	envoys := []*envoy{startEnvoyOn(t, config), startEnvoyOn(t, config)}
	l := &quotaLoad{begun: time.Now(), by: make(map[string]int)}
	var running sync.WaitGroup
	const duration = 25 * time.Second
	for i, e := range envoys {
		running.Go(func() { l.run(e.url, []int{8, 1}[i], []time.Duration{40, 150}[i]*time.Millisecond, duration) })
	}
	running.Wait()
	if len(l.wrong) > 0 {
		t.Fatalf("%d requests failed: %s", len(l.wrong), l.wrong[0])
	}
	t.Logf("admitted %v: %.0f %% of the rate", l.by, 100*float64(len(l.all))/(rate*duration.Seconds()+burst))
	if n := over(l.all, rate, burst); n > 0 {
		t.Errorf("an interval has %.1f requests more than %d + %d/s", n, burst, rate)
	}
	if n := len(l.all); float64(n) < 0.6*rate*duration.Seconds() {
		t.Errorf("%d requests passed: far below %d/s", n, rate)
	}
	for _, e := range envoys {
		if l.by[e.url] < 50 {
			t.Errorf("%s admitted %d requests", e.url, l.by[e.url])
		}
	}
	parts.Eventually(t, func() string { // a change of the rules reaches Envoy without a report
		parts.Write(t, s.rules, "domain: edge\ndescriptors:\n  - {key: tenant, rate_limit: {requests_per_unit: 0, unit: second}}\n")
		a := envoys[0].get(t, "/", "x-tenant: acme")
		if a.code != http.StatusTooManyRequests {
			return fmt.Sprintf("a ban is not in force: %d", a.code)
		}
		return ""
	})
}
