package main

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/weirproxy/weir/internal/testing/race"
)

// What a request holds is not remembered, but for counts until they are as if never used.
// cmd/ratelimit has the same test with more domains, and with all that can be told figures there.
func TestAFloodOfOverridesAndUnknownDomainsLeavesMemoryWhereItWas(t *testing.T) {
	race.Without(t)
	r := start(t, "--rules", rulesFile(t, rulesOf("5")))
	client := ratelimitv3.NewRateLimitServiceClient(r.dial(t, r.address["grpc tcp"]))
	ask := func(n int, request func(i int) *ratelimitv3.RateLimitRequest) {
		t.Helper()
		var asking sync.WaitGroup
		const callers = 32
		for caller := range callers {
			asking.Go(func() {
				for i := caller; i < n && !t.Failed(); i += callers {
					if _, err := client.ShouldRateLimit(t.Context(), request(i)); err != nil {
						t.Errorf("request %d: %v", i, err)
					}
				}
			})
		}
		asking.Wait()
	}
	// flood sends overrides and domains of which no two are the same, numbered from first on.
	flood := func(first, overrides, domains int) {
		t.Helper()
		const batch = 500
		ask(overrides/batch, func(i int) *ratelimitv3.RateLimitRequest {
			q := &ratelimitv3.RateLimitRequest{Domain: "test"}
			for n := first + i*batch; n < first+(i+1)*batch; n++ {
				q.Descriptors = append(q.Descriptors, &rlsv3.RateLimitDescriptor{
					Entries: []*rlsv3.RateLimitDescriptor_Entry{{Key: fmt.Sprint("key", n), Value: fmt.Sprint("value", n)}},
					Limit:   &rlsv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(n + 1), Unit: typev3.RateLimitUnit_SECOND},
				})
			}
			return q
		})
		ask(domains, func(i int) *ratelimitv3.RateLimitRequest {
			q := requestFor("x")
			q.Domain = fmt.Sprint("domain", first+i)
			return q
		})
	}
	alive := func() int64 {
		runtime.GC()
		runtime.GC() // what pools kept through the first
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const warm = 1000
	overrides, domains := race.Scale(100_000), race.Scale(10_000)
	flood(overrides, warm, warm)
	before := alive()
	flood(0, overrides, domains)
	// Counts are there until their second is over and the sweep has come by.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(within); ; <-tick.C {
		grown := alive() - before
		if grown <= 5<<20 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d overrides and %d unknown domains left %d bytes; want at most 5 MiB", overrides, domains, grown)
		}
	}
	code, page := r.get(t, "/metrics")
	if n := strings.Count(page, "\n"); code != http.StatusOK || n > 2000 {
		t.Errorf("/metrics: got %d with %d lines", code, n)
	}
	if want := fmt.Sprintf("weir_requests_total{code=\"ok\"} %d\n", (overrides+warm)/500+domains+warm); !strings.Contains(page, want) {
		t.Errorf("/metrics lacks %q:\n%s", want, page)
	}
}
