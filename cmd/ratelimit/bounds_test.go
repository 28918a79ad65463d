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

// bounded is rules that floods are sent to. What they count under is as if never used a second
// later.
const bounded = `
domain: d
descriptors:
- {key: rule, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: detailed, detailed_metric: true, rate_limit: {unit: second, requests_per_unit: 5}}
`

// The original remembers metrics for all that it was ever asked: it grows by hundreds of MiB, also
// where nobody is told the figures. Here nothing that a request holds is remembered but counts,
// until they are as if never used. Every second unknown domain has a name of 1 KB: to remember a
// part of these names would be seen.
func TestAFloodOfOverridesAndUnknownDomainsLeavesMemoryWhereItWas(t *testing.T) {
	race.Without(t)
	all := race.Scale(100_000)
	for name, sinks := range map[string][]string{
		"Prometheus and StatsD": {"USE_PROMETHEUS=true", "USE_STATSD=true", "STATS_FLUSH_INTERVAL=250ms"},
		"DISABLE_STATS":         {"DISABLE_STATS=true", "USE_PROMETHEUS=true", "USE_STATSD=true"},
	} {
		t.Run(name, func(t *testing.T) {
			domains := race.Scale(16_000)
			statsd := startStatsD(t, "tcp")
			r := start(t, bounded, append(sinks, statsd.environment...)...)
			warm := race.Scale(2500) // whole batches of flood
			flood(t, r, all, warm, warm)
			before := alive()
			flood(t, r, 0, all, domains)
			awaitMemory(t, before)

			// All of it was counted, under few names.
			overrides, notFound := 2*(all+warm), domains+warm
			_, stats := r.page(t, http.MethodGet, "debug", "/stats", "")
			for _, want := range []string{
				fmt.Sprintf("ratelimit.service.rate_limit.domain_not_found: %d\n", notFound),
				fmt.Sprintf("ratelimit.service.rate_limit.d.override.total_hits: %d\n", overrides/2),
				fmt.Sprintf("ratelimit.service.rate_limit.d.rule.total_hits: %d\n", overrides/2),
			} {
				if !strings.Contains(stats, want) {
					t.Errorf("/stats lacks %q", want)
				}
			}
			if r.address["metrics"] == "" {
				if got := statsd.counters(); len(got) > 0 {
					t.Errorf("StatsD was told %v; want nothing", got)
				}
				return
			}
			_, page := r.page(t, http.MethodGet, "metrics", "/metrics", "")
			if want := fmt.Sprintf("\nratelimit_service_rate_limit_domain_not_found %d\n", notFound); !strings.Contains(page, want) {
				t.Errorf("/metrics lacks %q", want)
			}
			// 1000 values of a rule are told apart, by five series each of the original's and as many of
			// ours.
			if n := strings.Count(page, "\n"); n > 15_000 {
				t.Errorf("/metrics has %d lines", n)
			}
			statsd.await(t, "ratelimit.service.rate_limit.domain_not_found", notFound)
			if n := len(statsd.counters()); n > 7000 {
				t.Errorf("StatsD was told %d names", n)
			}
		})
	}
}

// awaitMemory waits until the heap has what it had before, but for 5 MiB. Counts are there until
// their second is over and the sweep has come by.
func awaitMemory(t *testing.T, before int64) {
	t.Helper()
	const most = 5 << 20                           // half of what would do, so that a leak that just fits is seen
	tick := time.NewTicker(100 * time.Millisecond) // a collection costs as much as hundreds of requests
	defer tick.Stop()
	for deadline := time.Now().Add(within); ; <-tick.C {
		grown := alive() - before
		if grown <= most {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the flood left %d bytes; want at most %d", grown, most)
		}
	}
}

// flood sends requests of which no two are the same, numbered from first on: so many limits of
// their own that one descriptor brings, and as many of as many descriptors; as many values of a
// rule that tells its values apart; and so many domains without rules.
func flood(t *testing.T, r *running, first, overrides, domains int) {
	t.Helper()
	one := func(key, value string) *rlsv3.RateLimitDescriptor {
		return &rlsv3.RateLimitDescriptor{Entries: []*rlsv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}}
	}
	own := func(d *rlsv3.RateLimitDescriptor, requests int, unit typev3.RateLimitUnit) *rlsv3.RateLimitDescriptor {
		d.Limit = &rlsv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(requests), Unit: unit}
		return d
	}
	send := func(n int, request func(i int) *ratelimitv3.RateLimitRequest) {
		var sending sync.WaitGroup
		const callers = 8
		for caller := range callers {
			sending.Go(func() {
				for i := caller; i < n && !t.Failed(); i += callers {
					if _, err := r.ask(t, request(i)); err != nil {
						t.Errorf("request %d: %v", i, err)
					}
				}
			})
		}
		sending.Wait()
	}
	const batch = 250 // three descriptors each, of 1000 that a request may have
	send(overrides/batch, func(i int) *ratelimitv3.RateLimitRequest {
		q := &ratelimitv3.RateLimitRequest{Domain: "d"}
		for n := first + i*batch; n < first+(i+1)*batch; n++ {
			q.Descriptors = append(q.Descriptors,
				own(one("rule", "same"), n+1, typev3.RateLimitUnit_YEAR),
				own(one(fmt.Sprint("key", n), fmt.Sprint("value", n)), n+1, typev3.RateLimitUnit_SECOND),
				one("detailed", fmt.Sprint("value", n)))
		}
		return q
	})
	long := strings.Repeat("x", 1000)
	send(domains, func(i int) *ratelimitv3.RateLimitRequest {
		name := fmt.Sprint("domain", first+i)
		if i%2 == 0 {
			name += long
		}
		return &ratelimitv3.RateLimitRequest{
			Domain: name, Descriptors: []*rlsv3.RateLimitDescriptor{own(one("k", "v"), 5, typev3.RateLimitUnit_YEAR)},
		}
	})
}

func alive() int64 {
	runtime.GC()
	runtime.GC() // what pools kept through the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The original dies of a unit that it does not know.
func TestAnOverrideOfNoUnitIsAnErrorAndTheProcessLives(t *testing.T) {
	t.Parallel()
	r := start(t, bounded, "USE_PROMETHEUS=true")
	const must = " is not a unit, must be SECOND (1), MINUTE, HOUR, DAY, MONTH, YEAR or WEEK (7)"
	body := func(unit string) string {
		return `{"domain":"d","descriptors":[{"entries":[{"key":"rule","value":"v"}],"limit":{"requests_per_unit":5,"unit":` + unit + `}}]}`
	}
	for _, unit := range []int32{0, 8, 255, -1, 1<<31 - 1, -1 << 31} {
		q := parseRequest(t, "d | rule=v | rule=v @5/1")
		q.GetDescriptors()[1].GetLimit().Unit = typev3.RateLimitUnit(unit)
		answer, err := r.ask(t, q)
		if got, want := show(t, answer, err), fmt.Sprintf("InvalidArgument: descriptors[1].limit.unit: %d%s", unit, must); got != want {
			t.Errorf("unit %d: got %s, want %s", unit, got, want)
		}
		code, text := r.page(t, http.MethodPost, "http", "/json", body(fmt.Sprint(unit)))
		if want := fmt.Sprintf("descriptors[0].limit.unit: %d%s", unit, must); code != http.StatusBadRequest || strings.TrimSpace(text) != want {
			t.Errorf("/json, unit %d: got %d %q, want 400 %q", unit, code, text, want)
		}
	}
	code, text := r.page(t, http.MethodPost, "http", "/json", body(`"UNKNOWN"`))
	if want := "descriptors[0].limit.unit: 0" + must; code != http.StatusBadRequest || strings.TrimSpace(text) != want {
		t.Errorf("/json, unit UNKNOWN: got %d %q, want 400 %q", code, text, want)
	}
	// It lives, and has counted nothing.
	answer, err := r.ask(t, parseRequest(t, "d | rule=v"))
	if got := show(t, answer, err); got != "OK | OK 5/6 left 4 reset" {
		t.Errorf("afterwards: got %s", got)
	}
	if code, text := r.page(t, http.MethodGet, "http", "/healthcheck", ""); code != http.StatusOK || strings.TrimSpace(text) != "OK" {
		t.Errorf("/healthcheck afterwards: got %d %q", code, text)
	}
}
