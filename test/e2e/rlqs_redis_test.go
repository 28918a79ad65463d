package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// parted is two sidecars that divide a limit in Redis, each with an Envoy that goes to the other
// one when its own is gone.
type parted struct {
	sidecars []*sidecar
	envoys   []*envoy
	load     *quotaLoad
	running  sync.WaitGroup
}

const partedRate, partedBurst = 60, 40

// startParted starts the sidecars and two Envoys with RLQS, or one with RLQS and one with RLS.
func startParted(t *testing.T, url string, rls bool, duration time.Duration) *parted {
	t.Helper()
	p := &parted{load: &quotaLoad{by: make(map[string]int)}}
	for range 2 {
		p.sidecars = append(p.sidecars, startSidecar(t, fmt.Sprintf(`
domain: edge
descriptors:
  - key: tenant
    rate_limit: {algorithm: token_bucket, requests_per_unit: %d, unit: second, burst: %d, sharing: divided}
`, partedRate, partedBurst), "--store=redis", "--redis-url="+url, "--redis-timeout="+fleetTimeout.String(), "--drain-timeout=100ms"))
	}
	for i := range 2 {
		to := []string{tcpAddress(t, p.sidecars[i].GRPC), tcpAddress(t, p.sidecars[1-i].GRPC)}
		if rls && i == 1 {
			config := bootstrap(t, "envoy.yaml.tmpl", envoyConfig{
				RateLimits: `- actions: [{request_headers: {header_name: x-tenant, descriptor_key: tenant}}]`,
				Endpoints:  to[:1], Backend: tcpAddress(t, startBackend(t)), AccessLog: filepath.Join(t.TempDir(), "access.log"),
			})
			p.envoys = append(p.envoys, startEnvoyOn(t, strings.Replace(config, "domain: e2e", "domain: edge", 1)))
			continue
		}
		p.envoys = append(p.envoys, startEnvoyOn(t, bootstrap(t, "rlqs.yaml.tmpl", to)))
	}
	parts.Eventually(t, func() string { // an empty Redis may have lost parts, so nobody gets one for quota.Dead
		for _, e := range p.envoys {
			if a := e.get(t, "/", "x-tenant: acme"); a.code != 200 {
				return fmt.Sprintf("%s answers %d", e.url, a.code)
			}
		}
		return ""
	})
	p.load.begun = time.Now()
	for i, e := range p.envoys {
		p.running.Go(func() { p.load.run(e.url, []int{8, 3}[i], []time.Duration{40, 100}[i]*time.Millisecond, duration) })
	}
	return p
}

// streams returns the number of streams of a sidecar.
func (p *parted) streams(t *testing.T, i int) int {
	t.Helper()
	return p.sidecars[i].metric(t, "weir_rlqs_streams")
}

// finish waits for the load, and checks that no interval has more than the limit.
func (p *parted) finish(t *testing.T, least float64) {
	t.Helper()
	p.running.Wait()
	if len(p.load.wrong) > 0 {
		t.Fatalf("%d requests failed: %s", len(p.load.wrong), p.load.wrong[0])
	}
	took := time.Since(p.load.begun).Seconds()
	used := float64(len(p.load.all)) / (partedRate * took)
	t.Logf("admitted %v: %.0f %% of the rate", p.load.by, 100*used)
	if n := over(p.load.all, partedRate, partedBurst); n > 0 {
		t.Errorf("an interval has %.1f requests more than %d + %d/s", n, partedBurst, partedRate)
	}
	if used < least {
		t.Errorf("%.0f %% of the rate passed; want at least %.0f %%", 100*used, 100*least)
	}
}

func (p *parted) await(t *testing.T, duration time.Duration) {
	t.Helper()
	select {
	case <-time.After(time.Until(p.load.begun.Add(duration))):
	case <-t.Context().Done():
	}
}

func TestTwoSidecarsDivideALimitOfRLQSAndOneIsKilled(t *testing.T) {
	t.Parallel()
	const duration = 75 * time.Second
	p := startParted(t, urlOf(startRedis(t, parts.RedisOptions{}).Address()), false, duration)
	p.await(t, 15*time.Second)
	for i := range p.sidecars {
		if n := p.streams(t, i); n != 1 {
			t.Errorf("sidecar %d has %d streams; want 1", i, n)
		}
	}
	p.sidecars[0].stopped = true
	p.sidecars[0].Kill()
	parts.Eventually(t, func() string {
		if n := p.streams(t, 1); n != 2 {
			return fmt.Sprintf("the sidecar that is left has %d streams", n)
		}
		return ""
	})
	p.await(t, 62*time.Second) // the part of the dead one has come back
	before := p.load.count()
	p.await(t, 74*time.Second)
	if rate := float64(p.load.count()-before) / 12; rate < 0.75*partedRate {
		t.Errorf("a minute after the death of a sidecar %.1f requests pass in a second; the limit is %d", rate, partedRate)
	}
	p.finish(t, 0.4)
}

func TestRLSAndRLQSAtTwoSidecarsShareOneLimit(t *testing.T) {
	t.Parallel()
	const duration = 20 * time.Second
	p := startParted(t, urlOf(startRedis(t, parts.RedisOptions{}).Address()), true, duration)
	p.finish(t, 0.6)
	for _, e := range p.envoys {
		if p.load.by[e.url] < 100 {
			t.Errorf("admitted %v: each of the two must have a part", p.load.by)
		}
	}
}

func TestSidecarsDivideALimitOfRLQSWhileRedisStopsAndFailsOver(t *testing.T) {
	t.Parallel()
	s := startSentinels(t, parts.SentinelOptions{Data: parts.RedisOptions{}})
	p := startParted(t, "redis-sentinel://"+s.Addresses()[0]+"/"+parts.SentinelName, false, 60*time.Second)
	old, err := s.Primary(parts.Soon(t))
	if err != nil {
		t.Fatal(err)
	}
	p.await(t, 10*time.Second)
	if err := old.Pause(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}
	p.await(t, 15*time.Second)
	old.Kill()
	if _, err := s.AwaitNewPrimary(parts.Soon(t), old); err != nil {
		t.Fatal(err)
	}
	p.finish(t, 0.6)
}
