package limiter_test

import (
	"fmt"
	"testing"

	"github.com/weirproxy/weir/pkg/limiter"
)

// heldRules have a limit on a user without holders, and with holders under two algorithms.
const heldRules = `
domain: edge
descriptors:
  - {key: plain, rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 4000000000}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 4000000000, hold: {begin: request, end: done, at_most: 1h}}}
  - {key: slots, rate_limit: {algorithm: concurrency, max_in_flight: 4000000, hold: {begin: request, end: done, at_most: 1h}}}
`

// pairs returns the requests of a limit: the begins and the ends of n holders in turns, or as many
// requests without holders.
func pairs(limit string, n int) (all []*limiter.Request) {
	for i := range n {
		begin, end := fmt.Sprintf("%s=user,request=%032x", limit, i), fmt.Sprintf("%s=user,done=%032x", limit, i)
		if limit == "plain" {
			begin, end = "plain=user", "plain=user"
		}
		all = append(all, request("edge", begin), request("edge", end))
	}
	return all
}

// BenchmarkCheckHolders is BenchmarkCheckOneKey with holders that begin and end in turns, beside so
// many others that hold meanwhile.
func BenchmarkCheckHolders(b *testing.B) {
	const holders = 1000
	for _, beside := range []int{0, 10_000} {
		for _, limit := range []string{"plain", "bucket", "slots"} {
			b.Run(fmt.Sprintf("%s/beside=%d", limit, beside), func(b *testing.B) {
				f := newFixture(b, heldRules)
				var v limiter.Verdict
				check := func(r *limiter.Request) {
					if err := f.Check(b.Context(), r, &v); err != nil || v.OverLimit {
						b.Fatalf("over limit %v, %v", v.OverLimit, err)
					}
				}
				all := pairs(limit, holders)
				for i, r := range pairs(limit, holders+beside)[2*holders:] {
					if i%2 == 0 {
						check(r)
					}
				}
				i := 0
				b.ReportAllocs()
				for b.Loop() {
					check(all[i])
					if i++; i == len(all) {
						i = 0
					}
				}
			})
		}
	}
}
