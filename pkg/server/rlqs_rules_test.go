package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// until reads assignments until one has the text. More than a second and a half is an error.
func (c *quotaClient) until(text string) {
	c.t.Helper()
	begun, all := time.Now(), []string(nil)
	for len(all) == 0 || !strings.Contains(all[len(all)-1], text) {
		all = append(all, fmt.Sprint(c.next()))
	}
	if took := time.Since(begun); took > 1500*time.Millisecond {
		c.t.Errorf("%v until %q: %v", took, text, all)
	}
}

func TestEachChangeOfALimitChangesTheAssignmentsAndRLS(t *testing.T) {
	fewer := strings.Replace(mixedRules, "requests_per_unit: 100, unit: second, burst: 80", "requests_per_unit: 10, unit: second, burst: 40", 1)
	for name, row := range map[string]struct {
		rules        string        // "": a grant
		gives        limiter.Gives // the change
		factor       float64
		want         string // of the assignment
		passes, most int    // of 200 requests of RLS at once
	}{
		"shadow":                       {rules: strings.Replace(mixedRules, "- key: tenant", "- key: tenant\n    shadow_mode: true", 1), want: "ALLOW_ALL", passes: 200, most: 200},
		"a grant of a factor":          {gives: limiter.GivesFactor, factor: 10, passes: 1, most: 100},
		"a grant of everything":        {gives: limiter.GivesUnlimited, want: "ALLOW_ALL", passes: 200, most: 200},
		"a block":                      {gives: limiter.GivesRequests, want: "DENY_ALL"},
		"a reload with fewer requests": {rules: fewer, want: "] 13, 96 per 10s", most: 20},
		"a reload without the rule": {
			rules: "domain: edge\ndescriptors:\n  - {key: other, rate_limit: {unlimited: true}}\n", passes: 200, most: 200,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startMixed(t)
				c := f.quotas(t)
				c.report("edge", 1, bucketID("tenant", "acme"))
				c.until("] 26, 96 per 1s") // 26 tokens of a burst of 80
				time.Sleep(time.Second)
				if row.rules != "" {
					f.limiter.SetRules(load(t, row.rules))
				} else {
					f.limiter.ChangeGrants(nil, []*limiter.Grant{{
						ID: "g", Domain: "edge", Entries: []limiter.Entry{acme("tenant")}, Gives: row.gives, Factor: row.factor,
						Until: time.Now().Add(time.Hour), Given: time.Now(), Reason: "test",
					}})
				}
				if row.want != "" {
					c.until(row.want)
				}
				time.Sleep(1500 * time.Millisecond)
				if got := f.allow(t, 200, acme("tenant")); got < row.passes || got > row.most {
					t.Errorf("%d of 200 requests of RLS pass at once; want %d to %d", got, row.passes, row.most)
				}
			})
		})
	}
}

func TestATableGivesItsNumbersToBothProtocols(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		once(t)
		rules := "domain: edge\ndescriptors:\n  - key: tenant\n    rate_limit: {algorithm: token_bucket, table: tenants.csv, unit: second, requests_per_unit: 300}\n"
		f := start(t, rules, func(o *Options) { o.GRPCGo = false })
		c := f.quotas(t)
		c.report("edge", 1, bucketID("tenant", "other"), bucketID("tenant", "gold"))
		c.expect("map[tenant:other] 98, 288 per 1s", "map[tenant:gold] 2, 67 per 10s") // 300/s and 7/s
		time.Sleep(time.Second)
		if got := f.allow(t, 100, limiter.Entry{Key: "tenant", Value: "gold"}); got > 5 {
			t.Errorf("%d requests of RLS pass beside an Envoy with 2 of 7", got)
		}
	})
}

func TestAStreamThatComesAndGoesLeavesRLSItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startMixed(t)
		m := &meter{rate: 100, burst: 80, tokens: 80, at: time.Now()}
		var e *spender
		for at := time.Duration(0); at < time.Minute; at += 10 * time.Millisecond {
			if at%(100*time.Millisecond) == 0 {
				if e != nil {
					e.cancel()
				}
				e = f.spender(t, bucketID("tenant", "acme"))
			}
			m.add(f.allow(t, 2, acme("tenant")) + e.spend(1))
			time.Sleep(10 * time.Millisecond)
		}
		e.cancel()
		before := m.sum
		if m.least < -1e-6 || before < 500 {
			t.Errorf("%.1f more than the limit; %d pass in a minute", -m.least, before)
		}
		for range 12000 {
			m.add(f.allow(t, 2, acme("tenant")))
			time.Sleep(10 * time.Millisecond)
		}
		if m.sum -= before; m.sum < 10000 || m.least < -1e-6 {
			t.Errorf("in two minutes without Envoys %d pass, %.1f more than the limit", m.sum, -m.least)
		}
		if f.server.service.quotas.running {
			t.Error("the division has not ended")
		}
	})
}

func TestAReloadToAnotherAlgorithmKeepsThePartOfRLSUntilAssignmentsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startMixed(t)
		m := &meter{rate: 100, burst: 80, tokens: 80, at: time.Now()}
		e := f.spender(t, bucketID("tenant", "acme"))
		for range 1000 {
			m.add(f.allow(t, 1, acme("tenant")) + e.spend(2))
			time.Sleep(10 * time.Millisecond)
		}
		e.cancel() // and spends on, by the last assignment
		f.limiter.SetRules(load(t, strings.Replace(mixedRules, "algorithm: token_bucket, requests_per_unit: 100, unit: second, burst: 80",
			"algorithm: sliding_window_log, requests_per_unit: 80, unit: second", 1)))
		for range 1500 {
			m.add(f.allow(t, 2, acme("tenant")) + e.spend(2))
			time.Sleep(10 * time.Millisecond)
		}
		if m.least < -1e-6 {
			t.Errorf("%.1f more than the limit", -m.least)
		}
		t.Logf("%d pass in 25 seconds", m.sum)
	})
}

func TestALimitThatBlocksFromAReloadOnGoesBackToRLSWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startMixed(t)
		m := &meter{rate: 100, burst: 80, tokens: 80, at: time.Now()}
		e := f.spender(t, bucketID("tenant", "acme"))
		for range 1000 {
			m.add(f.allow(t, 1, acme("tenant")) + e.spend(2))
			time.Sleep(10 * time.Millisecond)
		}
		f.limiter.SetRules(load(t, strings.Replace(mixedRules, "burst: 80", "burst: 80, escalate: {after: 5, within: 5s, block: [1m], forget: 1h}", 1)))
		for range 3000 {
			m.add(e.spend(2))
			time.Sleep(10 * time.Millisecond)
		}
		if m.least < -1e-6 {
			t.Errorf("%.1f more than the limit", -m.least)
		}
		if got := f.allow(t, 200, acme("tenant")); got != 80 {
			t.Errorf("30 seconds after the reload %d of 200 requests of RLS pass at once, want the burst of 80", got)
		}
		if _, err := f.limiter.Dividend("edge", []limiter.Entry{acme("tenant")}); !errors.Is(err, limiter.ErrIndivisible) {
			t.Errorf("got %v, want %v", err, limiter.ErrIndivisible)
		}
	})
}

func TestThePartOfRLSOutlivesOtherKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		once(t)
		s := must.Get(memstore.New(memstore.Options{MaxKeys: 64}))(t)
		t.Cleanup(s.Close)
		f := startOn(t, s, mixedRules, func(o *Options) { o.GRPCGo = false })
		m := &meter{rate: 100, burst: 80, tokens: 80, at: time.Now()}
		e := f.spender(t, bucketID("tenant", "acme"))
		for n := range 3000 {
			m.add(f.allow(t, 2, acme("tenant")) + e.spend(2))
			for i := range 4 {
				f.allow(t, 1, limiter.Entry{Key: "tenant", Value: fmt.Sprint(n, i)})
			}
			time.Sleep(10 * time.Millisecond)
		}
		if m.least < -1e-6 {
			t.Errorf("%.1f more than the limit", -m.least)
		}
	})
}

func TestAnExplanationSaysThatALimitIsDivided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startMixed(t)
		c := f.quotas(t)
		c.report("edge", 1, bucketID("tenant", "acme"))
		c.next()
		r := &limiter.Request{Domain: "edge"}
		r.Add().Entries = []limiter.Entry{acme("tenant")}
		time.Sleep(time.Second)
		l := must.Get(f.limiter.Explain(t.Context(), r))(t)[0].Limits
		if len(l) != 1 || !l[0].Divided || l[0].Limit.Burst != 80 || l[0].Decision.Remaining != 1 { // a 32nd of 80, less one
			t.Errorf("got %+v", l)
		}
		var v limiter.Verdict
		if err := f.limiter.Check(t.Context(), r, &v); err != nil || v.OverLimit || v.Statuses[0].Limit.Burst != 80 || v.Statuses[0].Decision.Remaining != 1 {
			t.Errorf("got %v, %+v", err, v.Statuses)
		}
	})
}
