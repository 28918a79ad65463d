package server

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/quota"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	sharedstore "github.com/weirproxy/weir/pkg/store/shared"
	"github.com/weirproxy/weir/test/parts"
)

func TestRLSOnADividedRuleHasThePartOfItsProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := startParts(t)                               // a part of a half
		if got := f.allow(t, 1, acme("tenant")); got != 0 { // a second one might find the part
			t.Error("a request passes before the process has a part")
		}
		time.Sleep(50 * time.Millisecond)
		if got := f.allow(t, 200, acme("tenant")); got != 13 { // a third of 40
			t.Errorf("%d of 200 requests pass at once; want 13", got)
		}
		passed := 0
		for range 1000 {
			passed += f.allow(t, 1, acme("tenant"))
			time.Sleep(10 * time.Millisecond)
		}
		if passed < 440 || passed > 513 {
			t.Errorf("%d requests pass in 10 seconds with half of 100 in a second", passed)
		}
		r.set(0, nil)
		time.Sleep(3 * time.Second)
		if got := f.allow(t, 200, acme("tenant")); got != 0 {
			t.Errorf("%d requests pass without a part", got)
		}
		r.set(quota.One/2, errors.New("nobody there"))
		time.Sleep(time.Minute)
		if got := f.allow(t, 200, acme("tenant")); got != 0 {
			t.Errorf("%d requests pass while Redis does not answer", got)
		}
	})
}

func TestRLSAndEnvoysOfOneProcessShareItsPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := startParts(t)
		m := &meter{rate: 50, burst: 40, tokens: 40, at: time.Now()}
		e, both := f.spender(t, bucketID("tenant", "acme")), [2]int{}
		for i := range 12_000 {
			a, b := f.allow(t, []int{0, 1, 3}[i/1000%3], acme("tenant")), e.spend(2)
			m.add(a + b)
			both[0], both[1] = both[0]+a, both[1]+b
			time.Sleep(10 * time.Millisecond)
		}
		if m.least < -1e-6 {
			t.Errorf("%.1f more than the part of the process", -m.least)
		}
		if both[0] < 1000 || both[1] < 1500 || m.sum < 4800 {
			t.Errorf("in two minutes %d requests of RLS and %d of the Envoy pass; the part has 6000", both[0], both[1])
		}
	})
}

func TestAStoppedProcessAnswersRLSWithoutItsPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := startParts(t)
		f.allow(t, 1, acme("tenant"))
		time.Sleep(5 * time.Second)
		r.set(0, errors.New("nobody there"))
		q := f.server.service.quotas
		q.mu.Lock()
		limits := q.limits.(*redisLimits)         //nolint:errcheck // startParts has Redis
		limits.worked -= quota.Away + time.Second // as if nothing had worked for so long
		q.mu.Unlock()
		time.Sleep(time.Second)
		if got := f.allow(t, 10, acme("tenant")); got != 0 {
			t.Errorf("%d requests pass after a stop, before Redis has answered", got)
		}
		r.set(quota.One/2, nil)
		time.Sleep(2 * time.Second)
		if got := f.allow(t, 10, acme("tenant")); got == 0 {
			t.Error("no request passes after Redis has answered")
		}
	})
}

func TestThePartOfRLSEndsWithItsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := startParts(t)
		f.allow(t, 1, acme("tenant"))
		time.Sleep(quota.Idle + 5*time.Second)
		q := f.server.service.quotas
		q.mu.Lock()
		if len(q.divisions) > 0 || q.running {
			t.Errorf("after %v without a request %d divisions are left", quota.Idle, len(q.divisions))
		}
		q.mu.Unlock()
		f.allow(t, 1, acme("tenant"))
		time.Sleep(time.Second)
		if got := f.allow(t, 1, acme("tenant")); got != 1 {
			t.Error("a request after the end of a part gets no new one")
		}
	})
}

func TestAReloadAwayFromPartsFreesRLSAfterTheEnvoys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := startParts(t)
		f.allow(t, 1, acme("tenant"))
		time.Sleep(5 * time.Second)
		f.limiter.SetRules(load(t, strings.Replace(dividedRules, "sharing: divided", "sharing: exact", 1)))
		time.Sleep(quota.Dead - 5*time.Second)
		if got := f.allow(t, 80, acme("tenant")); got > 20 {
			t.Errorf("%d requests pass at once while Envoys may use assignments; the part has 13", got)
		}
		time.Sleep(7 * time.Second)
		if got := f.allow(t, 80, acme("tenant")); got < 70 {
			t.Errorf("%d of a burst of 80 pass without a part", got)
		}
	})
}

func TestShadowModeAndOtherRulesNeedNoPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := startParts(t)
		r.set(0, nil)
		f.limiter.SetRules(load(t, strings.Replace(dividedRules, "sharing: divided}", "sharing: divided}\n    shadow_mode: true", 1)))
		if got := f.allow(t, 200, acme("tenant")); got != 200 {
			t.Errorf("%d of 200 requests pass in shadow mode", got)
		}
		time.Sleep(5 * time.Second)
		f.limiter.SetRules(load(t, quotaRules))
		if got := f.allow(t, 200, acme("tenant")); got != 80 {
			t.Errorf("%d requests pass without sharing: divided; want 80", got)
		}
		c := f.quotas(t)
		c.report("edge", 1, bucketID("tenant", "acme"))
		time.Sleep(time.Second)
		if !strings.Contains(f.logs.String(), errNotDivided.Error()) {
			t.Errorf("no line says that the rule is not divided:\n%s", f.logs.String())
		}
	})
}

// startShared serves divided rules with counts in a Redis.
func startShared(t *testing.T, r *parts.Redis) *fixture {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	remote := must.Get(redisstore.New(redisstore.Options{
		Target: redisstore.Target{URLs: []string{"redis://" + r.Address()}}, Logger: logger,
	}))(t)
	t.Cleanup(remote.Close)
	must.Do(t, remote.Connected(t.Context()))
	local := must.Get(memstore.New(memstore.Options{}))(t)
	t.Cleanup(local.Close)
	s := must.Get(sharedstore.New(sharedstore.Options{Remote: remote, Local: local, Unavailable: redisstore.ErrUnavailable, Logger: logger}))(t)
	t.Cleanup(s.Close)
	must.Do(t, s.Await(t.Context()))
	return startOn(t, s, dividedRules, func(o *Options) { o.GRPCGo, o.Parts = false, remote })
}

func TestBothProtocolsAtTwoProcessesWithRedisStayWithinOneLimit(t *testing.T) {
	t.Parallel()
	once(t)
	r := parts.RedisFor(t, parts.RedisOptions{})
	settle(t, r)
	all := []*fixture{startShared(t, r), startShared(t, r)}
	begun := time.Now()
	m := &meter{rate: 100, burst: 80, tokens: 80, at: begun}
	e := all[0].spender(t, bucketID("tenant", "acme"))
	sums := [3]int{}
	for next := time.NewTicker(5 * time.Millisecond); time.Since(begun) < 8*time.Second; <-next.C {
		for i, f := range all {
			sums[i] += f.allow(t, 1, acme("tenant"))
		}
		sums[2] += e.spend(1)
		m.add(sums[0] + sums[1] + sums[2] - m.sum)
	}
	t.Logf("%v requests pass, the least rest is %.1f", sums, m.least)
	if m.sum < 400 || min(sums[0], sums[1], sums[2]) < 50 {
		t.Errorf("%v requests pass; the limit has 800", sums)
	}
	if m.least < -1e-6 {
		t.Errorf("%.1f more than the limit", -m.least)
	}
}
