package server

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/quota"
)

// spender is an Envoy that spends all that its assignments let it, in virtual time.
type spender struct {
	*quotaClient

	cancel context.CancelFunc
	id     *rlqsv3.BucketId
	mu     sync.Mutex
	fresh  bool // denies all: the next bucket starts full
	open   bool // ALLOW_ALL
	max    float64
	fill   float64 // in a second
	tokens float64
	at     time.Time
	until  time.Time // then the assignment has expired

	allowed, denied uint64
	reported        time.Time
}

func (f *fixture) spender(t *testing.T, id *rlqsv3.BucketId) *spender {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := must.Get(rlqsv3.NewRateLimitQuotaServiceClient(f.conn).StreamRateLimitQuotas(ctx))(t)
	e := &spender{quotaClient: &quotaClient{c, t}, cancel: cancel, id: id, fresh: true, reported: time.Now()}
	e.report("edge", 1, id)
	go e.receive()
	return e
}

func (e *spender) receive() {
	for {
		in, err := e.Recv()
		if err != nil {
			return
		}
		e.mu.Lock()
		for _, a := range in.GetBucketAction() {
			b := a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket()
			e.fillUp()
			e.until = time.Now().Add(quota.TTL)
			if e.open = a.GetQuotaAssignmentAction() != nil && b == nil && a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetBlanketRule() == 0; b == nil {
				e.fresh, e.max, e.tokens = true, 0, 0
				continue
			}
			most := float64(b.GetMaxTokens())
			if e.fresh {
				e.tokens = most
			} else {
				e.tokens *= most / e.max
			}
			e.fresh, e.max, e.fill = false, most, float64(b.GetTokensPerFill().GetValue())/b.GetFillInterval().AsDuration().Seconds()
		}
		e.mu.Unlock()
	}
}

func (e *spender) fillUp() {
	e.tokens = min(e.max, e.tokens+time.Since(e.at).Seconds()*e.fill)
	if e.at = time.Now(); e.at.After(e.until) {
		e.fresh, e.open, e.max, e.tokens = true, false, 0, 0
	}
}

// spend lets so many requests ask, and returns how many pass. Every five seconds it reports.
func (e *spender) spend(requests int) (passed int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fillUp()
	passed = min(requests, int(e.tokens))
	if e.open {
		passed = requests
	}
	e.tokens = max(e.tokens-float64(passed), 0)
	e.allowed, e.denied = e.allowed+uint64(passed), e.denied+uint64(requests-passed)
	if time.Since(e.reported) >= 5*time.Second {
		e.reported = time.Now()
		_ = e.Send(&rlqsv3.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{
			{BucketId: e.id, NumRequestsAllowed: e.allowed, NumRequestsDenied: e.denied},
		}})
		e.allowed, e.denied = 0, 0
	}
	return passed
}

// allow lets so many requests of RLS ask, and returns how many pass.
func (f *fixture) allow(t *testing.T, requests int, entries ...limiter.Entry) (passed int) {
	t.Helper()
	for range requests {
		if must.Get(f.limiter.Allow(t.Context(), "edge", entries...))(t).Allowed {
			passed++
		}
	}
	return passed
}

// meter is the oracle of a bucket or of a window, in virtual time.
type meter struct {
	rate, burst, tokens float64
	window              time.Duration // 0: a bucket
	at                  time.Time
	sum                 int
	least               float64
}

func (m *meter) add(passed int) {
	now := time.Now()
	switch {
	case m.window == 0:
		m.tokens = min(m.burst, m.tokens+now.Sub(m.at).Seconds()*m.rate)
	case now.Truncate(m.window) != m.at.Truncate(m.window):
		m.tokens = m.burst
	}
	m.at, m.sum, m.tokens = now, m.sum+passed, m.tokens-float64(passed)
	m.least = min(m.least, m.tokens)
}

const mixedRules = `
domain: edge
descriptors:
  - key: tenant
    rate_limit: {algorithm: token_bucket, requests_per_unit: 100, unit: second, burst: 80}
  - key: window
    rate_limit: {requests_per_unit: 3000, unit: minute}
`

func startMixed(t *testing.T) *fixture {
	t.Helper()
	once(t)
	return start(t, mixedRules, func(o *Options) { o.GRPCGo = false })
}

func acme(key string) limiter.Entry { return limiter.Entry{Key: key, Value: "acme"} }

func TestRequestsOfBothProtocolsTogetherStayWithinOneLimit(t *testing.T) {
	for key, m := range map[string]*meter{
		"tenant": {rate: 100, burst: 80, tokens: 80}, "window": {burst: 3000, tokens: 3000, window: time.Minute},
	} {
		t.Run(key, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, random := startMixed(t), rand.New(rand.NewPCG(1, 1))
				var envoys []*spender
				parts := [3]int{} // of RLS, and of the Envoys
				rls := 0
				m.at = time.Now()
				for at := time.Duration(0); at < 10*time.Minute; at += 10 * time.Millisecond {
					if at%(20*time.Second) == 0 {
						rls = random.IntN(4)
						if n := random.IntN(4); n < 2 && len(envoys) < 2 && at < 8*time.Minute {
							envoys = append(envoys, f.spender(t, bucketID(key, "acme")))
						} else if n == 3 && len(envoys) > 0 {
							envoys[0].cancel() // and spends on
						}
					}
					passed := f.allow(t, rls, acme(key))
					parts[0] += passed
					for i, e := range envoys {
						n := e.spend(2)
						parts[1+i] += n
						passed += n
					}
					m.add(passed)
					time.Sleep(10 * time.Millisecond)
				}
				if m.least < -1e-6 {
					t.Errorf("%.1f more than the limit", -m.least)
				}
				if parts[0] < 1000 || parts[1] < 1000 {
					t.Errorf("requests of RLS and of the Envoys that pass: %v", parts)
				}
				t.Logf("%v pass, the least rest is %.1f", parts, m.least)
			})
		})
	}
}
