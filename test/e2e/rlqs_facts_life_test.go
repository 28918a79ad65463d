package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/weirproxy/weir/pkg/quota"
	"github.com/weirproxy/weir/test/parts"
)

// filled empties a bucket, waits, and returns the tokens that the bucket has got meanwhile, and the
// bounds of the time for them.
func (b *bucket) filled(d time.Duration) (got int, least, most float64) {
	first := time.Now()
	b.drain()
	emptied := time.Now()
	b.wait(d)
	least = time.Since(emptied).Seconds()
	got = b.drain()
	return got, least, time.Since(first).Seconds()
}

// expectFill empties a bucket and expects that it fills at a rate.
func (b *bucket) expectFill(perSecond float64, d time.Duration) {
	got, least, most := b.filled(d)
	b.expect(got, int(perSecond*least)-1, int(perSecond*most)+1, fmt.Sprintf("tokens in about %v, at %g/s", d, perSecond))
}

func strategyFacts() []fact {
	return []fact{
		{"a bucket fills all the time, whatever its interval is", "deny", func(b *bucket) {
			b.begin()
			b.act(assign(tokenBucket(20, 100, 10*time.Second), forever))
			b.expectFill(10, time.Second)
		}},
		{"a change of the interval alone is ignored", "deny", func(b *bucket) {
			b.begin()
			b.act(assign(tokenBucket(20, 10, time.Second), forever))
			b.expectFill(10, time.Second)
			b.act(assign(tokenBucket(20, 10, 1000*time.Second), forever))
			b.expectFill(10, time.Second)
		}},
		{"an interval of half a second is no limit", "deny", func(b *bucket) {
			b.begin()
			b.act(assign(tokenBucket(1, 1, 500*time.Millisecond), forever))
			b.expect(b.take(40), 40, 40, "passed")
		}},
		{"an interval of 1.5 seconds is one second", "deny", func(b *bucket) {
			b.begin()
			b.act(assign(tokenBucket(40, 10, 1500*time.Millisecond), forever))
			b.expectFill(10, 3*time.Second)
		}},
		{"requests_per_time_unit is skipped", "deny", func(b *bucket) {
			b.begin()
			b.act(assign(dry(10), forever))
			b.act(assign(&typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_RequestsPerTimeUnit_{
				RequestsPerTimeUnit: &typev3.RateLimitStrategy_RequestsPerTimeUnit{RequestsPerTimeUnit: 1, TimeUnit: typev3.RateLimitUnit_HOUR},
			}}, forever))
			b.expect(b.drain(), 10, 10, "passed of the bucket before")
		}},
		{"an action without an assignment ends the one before", "allow", func(b *bucket) {
			b.begin()
			b.act(assign(blanket(typev3.RateLimitStrategy_DENY_ALL), forever))
			b.expect(b.take(3), 0, 0, "passed under DENY_ALL")
			b.act(new(rlqsv3.RateLimitQuotaResponse_BucketAction))
			b.expect(b.take(5), 5, 5, "passed")
		}},
	}
}

func lifeFacts() []fact {
	expires := func(of string, s *typev3.RateLimitStrategy, before, after int) func(b *bucket) {
		return func(b *bucket) {
			b.begin()
			b.act(assign(s, 2*time.Second))
			b.expect(b.take(5), before, before, "passed of 5 before the end")
			b.wait(2 * time.Second)
			b.expect(b.take(5), after, after, "passed of 5 "+of)
		}
	}
	deny, allow := blanket(typev3.RateLimitStrategy_DENY_ALL), blanket(typev3.RateLimitStrategy_ALLOW_ALL)
	return []fact{
		{"an assignment without a time to live expires at once", "allow", func(b *bucket) {
			b.begin()
			b.act(assign(deny, 0))
			b.expect(b.take(5), 5, 5, "passed")
		}},
		{"a time to live below one second is none", "allow", func(b *bucket) {
			b.begin()
			b.act(assign(deny, 999*time.Millisecond))
			b.expect(b.take(5), 5, 5, "passed")
		}},
		{"each assignment begins the time to live anew", "allow", func(b *bucket) {
			b.begin()
			for range 3 {
				b.act(assign(deny, 2*time.Second))
				b.wait(time.Second)
			}
			b.expect(b.take(5), 0, 0, "passed after 3 s")
			b.wait(1500 * time.Millisecond)
			b.expect(b.take(5), 5, 5, "passed after the end")
		}},
		{"after expiry DENY_ALL denies, if expired_assignment_behavior says so", "deny", expires("by the fallback", allow, 5, 0)},
		{"after expiry no_assignment_behavior counts, if there is no fallback", "allow", expires("without a fallback", deny, 0, 5)},
		{"a fallback without a timeout ends at once", "brief", expires("by a fallback without a timeout", allow, 5, 0)},
		{"reuse_last_assignment is ignored", "reuse", expires("by reuse_last_assignment", allow, 5, 0)},
		{"a fallback bucket keeps the fill ratio, and ends with its timeout", "bucket", func(b *bucket) {
			b.begin()
			b.act(assign(dry(10), 2*time.Second))
			b.expect(b.take(5), 5, 5, "passed")
			b.wait(2 * time.Second)
			b.expect(b.take(3), 2, 2, "passed of the 2 tokens that 5 of 10 became")
			b.wait(2 * time.Second)
			b.act(assign(dry(4), forever))
			b.expect(b.drain(), 4, 4, "passed of a bucket after the fallback")
		}},
	}
}

func TestFactsOfAStreamThatIsSlowOrCut(t *testing.T) {
	t.Parallel()
	once(t)
	var line *parts.Proxy
	w := startQuotaWorld(t, func(server string) string {
		line = parts.ProxyFor(t, server)
		return line.Address()
	})
	hold(t, w, []fact{{"a time to live counts from the arrival", "allow", func(b *bucket) {
		b.begin()
		line.Latency(1500*time.Millisecond, 0)
		sent := time.Now()
		read := b.send(assign(blanket(typev3.RateLimitStrategy_DENY_ALL), 2*time.Second))
		line.Latency(0, 0)
		b.expect(int(read.Sub(sent).Milliseconds()), 1400, 5000, "ms until the assignment was read")
		b.wait(time.Until(sent.Add(2*time.Second + quota.Settle)))
		b.expect(b.take(3), 0, 0, "passed two seconds after the send")
		b.wait(time.Until(read.Add(2*time.Second + quota.Settle)))
		b.expect(b.take(3), 3, 3, "passed two seconds after the arrival")
	}}})
	hold(t, w, []fact{{"assignments outlast their stream, and the next one begins with all buckets", "allow", func(b *bucket) {
		const life = 12 * time.Second
		b.begin()
		b.act(assign(dry(10), life))
		assigned := time.Now()
		b.expect(b.take(4), 4, 4, "passed before the cut")
		b.fail(line.Cut())
		b.expect(b.take(4), 4, 4, "passed without a stream")
		var last usage
		b.fail(b.server.await("a report of the second stream", func() bool {
			all := b.server.reports[b.tenant]
			last = all[len(all)-1]
			return last.stream == 2
		}))
		if last.alone {
			b.fail(fmt.Errorf("the first report of the second stream is %+v", last))
		}
		b.expect(b.drain(), 2, 2, "passed of the rest")
		b.wait(time.Until(assigned.Add(life + quota.Settle)))
		b.expect(b.take(3), 3, 3, "passed after the end of the time to live of the first stream")
		b.act(assign(dry(10), forever))
		b.expect(b.drain(), 10, 10, "passed by an assignment of the second stream")
	}}})
}

func TestABucketTakesKilobytesInEnvoy(t *testing.T) {
	t.Parallel()
	once(t)
	w := startQuotaWorld(t, func(server string) string { return server })
	b := &bucket{quotaWorld: w, ctx: t.Context(), kind: "deny", tenant: "first"}
	b.client = http.DefaultClient // one connection
	allocated := func() int {
		text, err := w.Get(parts.Soon(t), "/memory")
		if err != nil {
			t.Fatal(err)
		}
		var memory struct{ Allocated string }
		if err := json.Unmarshal([]byte(text), &memory); err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(memory.Allocated)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const buckets = 1000
	var before int
	for i := range buckets + 100 {
		if i == 100 {
			before = allocated()
		}
		b.tenant = fmt.Sprint("tenant-", i)
		b.begin()
		b.send(assign(dry(10), forever))
	}
	each := (allocated() - before) / buckets
	t.Logf("%d bytes of Envoy for a bucket", each)
	if b.expect(each, 500, 30_000, "bytes of a bucket"); len(b.wrong) > 0 {
		t.Error(b.wrong)
	}
}
