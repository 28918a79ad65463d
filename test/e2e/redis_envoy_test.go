package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

func TestTwoEnvoysWithTwoSidecarsShareOneLimitExactly(t *testing.T) {
	t.Parallel()
	findEnvoy(t)
	r := startRedis(t, parts.RedisOptions{})
	f := startFleet(t, urlOf(r.Address()))
	f.awaitState(t, "closed")
	var envoys []*envoy
	for _, s := range f.sidecars {
		envoys = append(envoys, startEnvoy(t, envoyConfig{
			RateLimits: `- actions: [{request_headers: {header_name: x-window, descriptor_key: window}}]
- actions: [{request_headers: {header_name: x-bucket, descriptor_key: bucket}}]`,
			Endpoints: []string{tcpAddress(t, s.GRPC)},
		}))
	}
	for _, headers := range [][]string{{"x-window"}, {"x-bucket"}, {"x-window", "x-bucket"}} {
		t.Run(fmt.Sprint(headers), func(t *testing.T) {
			var codes map[int]int
			f.undisturbed(t, func(value string) {
				var all []string
				for _, name := range headers {
					all = append(all, name+": "+value)
				}
				codes = concurrently(t, envoys, 50, all...)
			})
			if want := (map[int]int{http.StatusOK: few, http.StatusTooManyRequests: 100 - few}); codes[200] != want[200] || codes[429] != want[429] {
				t.Errorf("codes of 50 requests through each of two Envoys: got %v, want %v", codes, want)
			}
		})
	}
	for i, e := range envoys {
		if stats := e.rateLimitStats(t); stats["error"] != 0 || stats["failure_mode_allowed"] != 0 {
			t.Errorf("counters of Envoy %d: got %v, want no error", i, stats)
		}
	}
}

// concurrently sends n times the same request through each Envoy, several at once, and returns how
// often each code was answered.
func concurrently(t *testing.T, envoys []*envoy, n int, headers ...string) map[int]int {
	t.Helper()
	var mu sync.Mutex // guards codes
	codes := map[int]int{}
	var askers sync.WaitGroup
	const atOnce = 10
	ctx := deadline(t)
	for _, e := range envoys {
		for range atOnce {
			askers.Go(func() {
				for range n / atOnce {
					a, err := e.try(ctx, "/", headers...)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					codes[a.code]++
					mu.Unlock()
				}
			})
		}
	}
	askers.Wait()
	return codes
}
