package limiter_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// manyRules returns a document of n tenants, each with a limit per user, nested two deep.
func manyRules(n int) string {
	var b strings.Builder
	b.WriteString("domain: edge\ndefaults: {algorithm: token_bucket}\ndescriptors:\n")
	b.WriteString("  - {key: tenant, descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 100000}}]}\n")
	for i := range n - 1 {
		fmt.Fprintf(&b, "  - {key: tenant, value: big-%d, descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 100000}}]}\n", i)
	}
	return b.String()
}

// topKeys is the keys that benchmarks track: as many as the programs, or WEIR_BENCH_TOP_KEYS, to
// compare with none.
func topKeys() int {
	if n, err := strconv.Atoi(os.Getenv("WEIR_BENCH_TOP_KEYS")); err == nil {
		return n
	}
	return 1000
}

// BenchmarkCheck is match, key, one charge and the metrics, on random ones of a million keys, with
// few rules and many. The keys are a thousand tenants of a thousand users, so that reading the
// names costs no memory access beside those measured.
func BenchmarkCheck(b *testing.B) {
	const names = 1000
	for _, rules := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			s := must.Get(memstore.New(memstore.Options{MaxKeys: 2 * names * names}))(b)
			defer s.Close()
			l := must.Get(limiter.New(s, limiter.Options{TopKeys: topKeys()}))(b)
			fixture{l, b}.rules(manyRules(rules))
			var tenants, users [names]string
			for i := range names {
				tenants[i], users[i] = fmt.Sprintf("tenant-%03d", i), fmt.Sprintf("user-%03d", i)
			}
			r := &limiter.Request{Domain: "edge"}
			d := r.Add()
			d.Entries = append(d.Entries, descriptors.Entry{Key: "tenant"}, descriptors.Entry{Key: "user"})
			var v limiter.Verdict
			check := func(n uint64) {
				d.Entries[0].Value, d.Entries[1].Value = tenants[n%names], users[n/names%names]
				if err := l.Check(b.Context(), r, &v); err != nil {
					b.Fatal(err)
				}
			}
			for n := range uint64(names * names) {
				check(n)
			}
			seed := uint64(1)
			b.ReportAllocs()
			for b.Loop() {
				seed = seed*6364136223846793005 + 1442695040888963407
				check(seed >> 33)
			}
			if got := s.Stats().Keys; got != names*names {
				b.Fatalf("the store has %d keys; want %d", got, names*names)
			}
		})
	}
}

// BenchmarkCheckOneKey is the same on one key, without the cost of memory accesses.
func BenchmarkCheckOneKey(b *testing.B) {
	for _, rules := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			f := newFixtureWith(b, manyRules(rules), limiter.Options{TopKeys: topKeys()})
			r := request("edge", "tenant=t,user=u")
			var v limiter.Verdict
			b.ReportAllocs()
			for b.Loop() {
				if err := f.Check(b.Context(), r, &v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCheckCalendar is decisions without and with a calendar, in Berlin's summer time.
func BenchmarkCheckCalendar(b *testing.B) {
	const calendar = ", align: {to: calendar, zone: Europe/Berlin}"
	for _, c := range []struct{ name, algorithm, align string }{
		{"window", "fixed_window", ""},
		{"window/month", "fixed_window", calendar},
		{"counter", "sliding_window_counter", ""},
		{"counter/month", "sliding_window_counter", calendar},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := newFixtureWith(b, "domain: edge\ndescriptors:\n- {key: user, rate_limit: {algorithm: "+c.algorithm+
				", unit: month, requests_per_unit: 4000000000"+c.align+"}}\n", limiter.Options{})
			r := request("edge", "user=u")
			var v limiter.Verdict
			b.ReportAllocs()
			for b.Loop() {
				if err := f.Check(b.Context(), r, &v); err != nil || v.OverLimit {
					b.Fatal(err)
				}
			}
		})
	}
}

// heldRules have a limit on a user without holders, with holders under two algorithms, and one that
// learns.
const heldRules = `
domain: edge
descriptors:
  - {key: plain, rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 4000000000}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 4000000000, hold: {begin: request, end: done, at_most: 1h}}}
  - {key: slots, rate_limit: {algorithm: concurrency, max_in_flight: 4000000, hold: {begin: request, end: done, at_most: 1h}}}
  - key: learned
    rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 4000000000, hold: {begin: request, end: done, at_most: 1h, estimate: {learned: {ceiling: 9}}}}
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
		for _, limit := range []string{"plain", "bucket", "slots", "learned"} {
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
