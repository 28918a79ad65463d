package limiter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
)

func TestRequestsNeedAPartThatHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newFixtureWith(t, `
domain: edge
descriptors:
  - key: tenant
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 100, sharing: divided}
  - key: other
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 100}
`, limiter.Options{Now: time.Now}).Limiter
		wanted := ""
		begun := time.Now()
		now := func() time.Duration { return time.Since(begun) }
		l.ShareParts("name", now, func(domain string, entries []limiter.Entry) { wanted += domain + " " + entries[0].Value + "," })
		passes := func(key string) (n int) {
			for range 50 {
				if must.Get(l.Allow(t.Context(), "edge", limiter.Entry{Key: key, Value: "acme"}))(t).Allowed {
					n++
				}
			}
			return n
		}
		if n := passes("tenant"); n != 0 || len(wanted) != 50*len("edge acme,") {
			t.Errorf("%d requests pass without a part, and want %q", n, wanted)
		}
		of := must.Get(l.DividendInOrder("edge", []limiter.Entry{{Key: "tenant", Value: "acme"}}))(t)
		part := new(limiter.Part)
		l.SetPart(part, of.Base, algorithms.Limit{
			Algorithm: algorithms.TokenBucket, Requests: 7, Period: time.Second,
		}, false)
		if n := passes("tenant"); n != 0 {
			t.Errorf("%d requests pass by a part that does not hold yet", n)
		}
		l.KeepParts(now() + 2*time.Second)
		if n := passes("tenant"); n != 7 || part.Asked() != 50 {
			t.Errorf("%d requests pass, and the part was asked for %d hits; want 7 and 50", n, part.Asked())
		}
		time.Sleep(2*time.Second + time.Nanosecond)
		if n := passes("tenant"); n != 0 {
			t.Errorf("%d requests pass by a part that does not hold any more", n)
		}
		l.KeepParts(now() + time.Second)
		if n := passes("tenant"); n != 7 {
			t.Errorf("%d requests pass by a part that holds again; want 7", n)
		}
		if n := passes("other"); n != 50 {
			t.Errorf("%d requests pass of a rule without sharing: divided; want 50", n)
		}
	})
}
