package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/pkg/quota"
)

// kinds returns behaviors of Envoy without an assignment, by the header x-kind.
func kinds() map[string]string {
	const denied = "no_assignment_behavior: { fallback_rate_limit: { blanket_rule: DENY_ALL } }\n"
	return map[string]string{
		"silent": "reporting_interval: 1s",
		"deny": denied + "reporting_interval: 1s\n" +
			"expired_assignment_behavior: { expired_assignment_behavior_timeout: 60s, fallback_rate_limit: { blanket_rule: DENY_ALL } }",
		"allow": "reporting_interval: 1s\nno_assignment_behavior: { fallback_rate_limit: { blanket_rule: ALLOW_ALL } }",
		"brief": denied + "reporting_interval: 1s\nexpired_assignment_behavior: { fallback_rate_limit: { blanket_rule: ALLOW_ALL } }",
		"reuse": denied + "reporting_interval: 1s\n" +
			"expired_assignment_behavior: { expired_assignment_behavior_timeout: 60s, reuse_last_assignment: {} }",
		"bucket": denied + "reporting_interval: 1s\nexpired_assignment_behavior: { expired_assignment_behavior_timeout: 2s, " +
			"fallback_rate_limit: { token_bucket: { max_tokens: 4, tokens_per_fill: 1, fill_interval: 1000s } } }",
	}
}

// quotaWorld is an Envoy, and a server whose assignments are a test's.
type quotaWorld struct {
	*envoy

	server *quotaServer
	client *http.Client
}

// startQuotaWorld starts an Envoy that reaches the server at the address that via returns.
func startQuotaWorld(t *testing.T, via func(server string) string) *quotaWorld {
	t.Helper()
	s := startQuotaServer(t)
	config := bootstrap(t, "rlqs_facts.yaml.tmpl", struct {
		Kinds  map[string]string
		Server string
	}{kinds(), tcpAddress(t, via(s.address))})
	// Each request has a connection, so both threads of Envoy get some.
	return &quotaWorld{startEnvoyOn(t, config), s, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// bucket is a bucket in Envoy that one fact has for itself.
type bucket struct {
	*quotaWorld

	ctx          context.Context //nolint:containedctx // of the test
	kind, tenant string
	wrong        []string
}

// expect notes a number that must be in a range.
func (b *bucket) expect(got, least, most int, of string) {
	if got < least || got > most {
		b.wrong = append(b.wrong, fmt.Sprintf("%s: got %d, want %d to %d", of, got, least, most))
	}
}

func (b *bucket) fail(err error) {
	if err != nil {
		b.wrong = append(b.wrong, err.Error())
	}
}

// passes reports whether a request passes.
func (b *bucket) passes() bool {
	a, err := b.tryOn(b.ctx, b.client, "/", "x-kind: "+b.kind, "x-tenant: "+b.tenant)
	if err == nil && a.code != http.StatusOK && a.code != http.StatusTooManyRequests {
		err = fmt.Errorf("status %d", a.code)
	}
	b.fail(err)
	return err == nil && a.code == http.StatusOK
}

// take sends n requests, and returns how many pass.
func (b *bucket) take(n int) (passed int) {
	for range n {
		if b.passes() {
			passed++
		}
	}
	return passed
}

// drain sends requests until one is denied, and returns how many passed, at most 200.
func (b *bucket) drain() (passed int) {
	for passed < 200 && b.passes() {
		passed++
	}
	return passed
}

// begin sends the first request, awaits the report, and reports whether it passed.
func (b *bucket) begin() bool {
	passed := b.passes()
	b.await(1)
	return passed
}

// await returns the reports of the bucket once there are n.
func (b *bucket) await(n int) (all []usage) {
	b.fail(b.server.await(fmt.Sprintf("%d reports", n), func() bool {
		all = slices.Clone(b.server.reports[b.tenant])
		return len(all) >= n
	}))
	if len(all) < n {
		all = append(all, make([]usage, n-len(all))...)
	}
	return all
}

// act sends an action, and waits until all threads of Envoy use it.
func (b *bucket) act(action *rlqsv3.RateLimitQuotaResponse_BucketAction) {
	b.send(action)
	b.wait(quota.Settle)
}

// send sends an action, and returns when Envoy has read it.
func (b *bucket) send(action *rlqsv3.RateLimitQuotaResponse_BucketAction) time.Time {
	action.BucketId = &rlqsv3.BucketId{Bucket: map[string]string{"tenant": b.tenant}}
	at, err := b.server.send(action)
	b.fail(err)
	return at
}

// wait waits for a time that is a part of the fact.
func (b *bucket) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-b.ctx.Done():
	}
}

const forever = time.Hour

// assign returns an assignment. With ttl 0 the assignment does not say a time to live.
func assign(s *typev3.RateLimitStrategy, ttl time.Duration) *rlqsv3.RateLimitQuotaResponse_BucketAction {
	q := &rlqsv3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{RateLimitStrategy: s}
	if ttl > 0 {
		q.AssignmentTimeToLive = durationpb.New(ttl)
	}
	return &rlqsv3.RateLimitQuotaResponse_BucketAction{
		BucketAction: &rlqsv3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{QuotaAssignmentAction: q},
	}
}

func abandon() *rlqsv3.RateLimitQuotaResponse_BucketAction {
	return &rlqsv3.RateLimitQuotaResponse_BucketAction{BucketAction: &rlqsv3.RateLimitQuotaResponse_BucketAction_AbandonAction_{
		AbandonAction: new(rlqsv3.RateLimitQuotaResponse_BucketAction_AbandonAction),
	}}
}

func tokenBucket(size, fill uint32, interval time.Duration) *typev3.RateLimitStrategy {
	return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
		MaxTokens: size, TokensPerFill: wrapperspb.UInt32(fill), FillInterval: durationpb.New(interval),
	}}}
}

// dry returns a bucket that is never filled again.
func dry(size uint32) *typev3.RateLimitStrategy { return tokenBucket(size, 1, 1000*time.Second) }

func blanket(rule typev3.RateLimitStrategy_BlanketRule) *typev3.RateLimitStrategy {
	return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: rule}}
}

// fact is a behavior of Envoy that RLQS stands on.
type fact struct {
	claim string
	kind  string
	holds func(b *bucket)
}

// hold runs all facts at once, each with a bucket, and reports each as a test.
func hold(t *testing.T, w *quotaWorld, facts []fact) {
	t.Helper()
	var running sync.WaitGroup
	all := make([]*bucket, len(facts))
	for i, f := range facts {
		all[i] = &bucket{quotaWorld: w, ctx: t.Context(), kind: f.kind, tenant: f.claim}
		running.Go(func() { f.holds(all[i]) })
	}
	running.Wait()
	for i, f := range facts {
		t.Run(f.claim, func(t *testing.T) {
			if len(all[i].wrong) > 0 {
				t.Error(strings.Join(all[i].wrong, "\n"))
			}
		})
	}
}

func TestFactsOfEnvoyThatRLQSStandsOn(t *testing.T) {
	t.Parallel()
	once(t)
	w := startQuotaWorld(t, func(server string) string { return server })
	hold(t, w, slices.Concat(reportFacts(), bucketFacts(), strategyFacts(), lifeFacts()))
	if w.server.streams != 1 {
		t.Errorf("Envoy has opened %d streams: all threads must share one", w.server.streams)
	}
}

func reportFacts() []fact {
	return []fact{
		{"a denied first request is reported at once and alone", "deny", func(b *bucket) {
			b.expect(b.take(1), 0, 0, "passed without an assignment")
			first := b.await(1)[0]
			if !first.alone || first.domain != "facts" || first.elapsed != 0 || first.allowed != 0 || first.denied != 1 {
				b.fail(fmt.Errorf("the report is %+v", first))
			}
		}},
		{"an allowed first request is reported at once and alone", "allow", func(b *bucket) {
			b.expect(b.take(1), 1, 1, "passed without an assignment")
			if first := b.await(1)[0]; !first.alone || first.allowed != 1 || first.denied != 0 {
				b.fail(fmt.Errorf("the report is %+v", first))
			}
		}},
		{"all buckets are reported each 5 seconds, with zeros, whatever reporting_interval is", "allow", func(b *bucket) {
			b.begin()
			all := b.await(3)
			gap := all[2].at.Sub(all[1].at)
			if all[1].alone || all[2].domain != "facts" || all[2].allowed != 0 || all[2].denied != 0 {
				b.fail(fmt.Errorf("the reports are %+v", all))
			}
			b.expect(int(gap.Milliseconds()), 4500, 5900, "ms between two reports")
		}},
		{"a bucket without no_assignment_behavior passes", "silent", func(b *bucket) {
			b.expect(b.take(3), 3, 3, "passed")
		}},
		{"requests without a matching bucket or its header pass and are not reported", "nothing", func(b *bucket) {
			b.expect(b.take(5), 5, 5, "passed without a match")
			a, err := b.tryOn(b.ctx, b.client, "/", "x-kind: deny")
			b.fail(err)
			b.expect(a.code, 200, 200, "status without the header of the bucket id")
			b.wait(5500 * time.Millisecond) // of all buckets there are reports
			if all := b.server.of(b.tenant); len(all) > 0 {
				b.fail(fmt.Errorf("reported: %+v", all))
			}
			if slices.Contains(b.server.tenants(), "") {
				b.fail(errors.New("a bucket without a tenant is reported"))
			}
		}},
		{"an assignment of an unknown bucket is dropped", "deny", func(b *bucket) {
			b.fail(b.server.await("a stream", func() bool { return b.server.stream != nil }))
			b.act(assign(blanket(typev3.RateLimitStrategy_ALLOW_ALL), forever))
			b.expect(b.take(3), 0, 0, "passed")
		}},
	}
}

func bucketFacts() []fact {
	return []fact{
		{"a first bucket starts full, and all threads share it", "deny", func(b *bucket) {
			b.begin()
			b.act(assign(dry(20), forever))
			b.expect(b.take(40), 20, 20, "passed of 20 tokens")
		}},
		{"the same bucket again keeps its tokens", "deny", func(b *bucket) {
			b.begin()
			b.act(assign(dry(10), forever))
			b.expect(b.take(4), 4, 4, "passed")
			b.act(assign(dry(10), forever))
			b.expect(b.drain(), 6, 6, "passed afterwards")
		}},
		{"a changed bucket keeps its fill ratio, in both directions", "deny", func(b *bucket) {
			b.begin()
			b.act(assign(dry(10), forever))
			b.expect(b.take(5), 5, 5, "passed of 10 tokens")
			b.act(assign(dry(40), forever))
			b.expect(b.take(10), 10, 10, "passed of the 20 tokens that 5 of 10 became")
			b.act(assign(dry(8), forever))
			b.expect(b.drain(), 2, 2, "passed of the 2 tokens that 10 of 40 became")
			b.act(assign(dry(100), forever))
			b.expect(b.drain(), 0, 0, "passed of an empty bucket that grew")
		}},
		{"a bucket with another fill alone keeps its fill ratio", "deny", func(b *bucket) {
			b.begin()
			b.act(assign(dry(10), forever))
			b.expect(b.take(6), 6, 6, "passed of 10 tokens")
			b.act(assign(tokenBucket(10, 2, 1000*time.Second), forever))
			b.expect(b.drain(), 4, 4, "passed of the rest")
		}},
		{"a bucket after DENY_ALL starts full", "deny", func(b *bucket) {
			b.begin()
			b.act(assign(dry(10), forever))
			b.expect(b.drain(), 10, 10, "passed")
			b.act(assign(blanket(typev3.RateLimitStrategy_DENY_ALL), forever))
			b.expect(b.take(3), 0, 0, "passed under DENY_ALL")
			b.act(assign(dry(10), forever))
			b.expect(b.drain(), 10, 10, "passed of the same bucket")
		}},
		{"a bucket after ALLOW_ALL starts full", "deny", func(b *bucket) {
			b.begin()
			b.act(assign(blanket(typev3.RateLimitStrategy_ALLOW_ALL), forever))
			b.expect(b.take(30), 30, 30, "passed under ALLOW_ALL")
			b.act(assign(dry(10), forever))
			b.expect(b.drain(), 10, 10, "passed")
		}},
		{"a bucket after expiry starts full", "deny", func(b *bucket) {
			b.begin()
			b.act(assign(dry(10), 2*time.Second))
			b.expect(b.drain(), 10, 10, "passed")
			b.wait(2 * time.Second)
			b.act(assign(dry(10), forever))
			b.expect(b.drain(), 10, 10, "passed of the same bucket")
		}},
		{"an abandoned bucket is forgotten, and its next request is reported at once", "allow", func(b *bucket) {
			b.begin()
			b.act(assign(dry(10), forever))
			b.expect(b.drain(), 10, 10, "passed")
			b.act(abandon())
			before := len(b.server.of(b.tenant))
			b.expect(b.take(1), 1, 1, "passed without an assignment")
			if next := b.await(before + 1)[before]; !next.alone || next.allowed != 1 {
				b.fail(fmt.Errorf("the report is %+v", next))
			}
			b.act(assign(dry(10), forever))
			b.expect(b.drain(), 10, 10, "passed of the same bucket")
		}},
		{"an acknowledged change is in force 250 ms later", "deny", changesSettle},
	}
}

// changesSettle changes between DENY_ALL and ALLOW_ALL while clients ask, and looks for answers of
// the rule before.
func changesSettle(b *bucket) {
	type answer struct {
		began  time.Time
		passed bool
	}
	b.begin()
	ctx, cancel := context.WithCancel(b.ctx)
	var mu sync.Mutex
	var all []answer
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				a, err := b.tryOn(b.ctx, b.client, "/", "x-kind: "+b.kind, "x-tenant: "+b.tenant)
				mu.Lock()
				if err == nil {
					all = append(all, answer{began, a.code == http.StatusOK})
				}
				mu.Unlock()
			}
		})
	}
	const changes = 10
	var acknowledged []time.Time
	for i := range changes {
		rule := typev3.RateLimitStrategy_BlanketRule(i % 2) // ALLOW_ALL is 0
		acknowledged = append(acknowledged, b.send(assign(blanket(rule), forever)))
		b.wait(quota.Settle + 50*time.Millisecond)
	}
	cancel()
	clients.Wait()
	late := 0
	for i, at := range acknowledged {
		for _, a := range all {
			settled := at.Add(quota.Settle)
			if i+1 < changes && a.began.After(settled) && a.began.Before(settled.Add(25*time.Millisecond)) && a.passed != (i%2 == 0) {
				late++
				break
			}
		}
	}
	b.expect(late, 0, 1, "changes of 10 that were not in force") // a machine may stand still
}
