package limiter

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// BenchmarkGrantLookup looks up keys among some grants: keys with a grant, and keys without. Each
// key is another one than before.
func BenchmarkGrantLookup(b *testing.B) {
	const keys = 4096
	for _, n := range []int{1, 100_000} {
		table, all := newGrantTable(), make(keyGrants)
		for i := range n {
			all[fmt.Sprintf("4:edge|6:tenant=12:tenant%06d", i)] = []*Grant{{}}
		}
		table.change(all)
		for _, with := range []bool{true, false} {
			var bases [keys][]byte
			for i := range bases {
				bases[i] = fmt.Appendf(nil, "4:edge|6:tenant=12:tenant%06d", i*n/keys)
				if !with {
					bases[i][0] = '5'
				}
			}
			b.Run(fmt.Sprintf("grants=%d/found=%v", n, with), func(b *testing.B) {
				i := 0
				for b.Loop() {
					if (table.find(bases[i%keys]) != nil) != with {
						b.Fatal("wrong")
					}
					i++
				}
			})
		}
	}
}

// BenchmarkCheckWithGrants is a decision in memory with as many grants for other keys, and for the
// key itself.
func BenchmarkCheckWithGrants(b *testing.B) {
	for _, c := range []struct {
		name   string
		others int
		own    bool
	}{{"none", 0, false}, {"100000 others", 100_000, false}, {"own", 100_000, true}} {
		b.Run(c.name, func(b *testing.B) {
			s := must.Get(memstore.New(memstore.Options{MaxKeys: 1000}))(b)
			defer s.Close()
			l := must.Get(New(s, Options{Now: time.Now}))(b)
			rules, _, err := descriptors.Load([]descriptors.Source{{Name: "r", Data: []byte(
				"domain: edge\ndescriptors: [{key: tenant, rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 4000000000}}]",
			)}}, descriptors.Options{})
			if err != nil {
				b.Fatal(err)
			}
			l.SetRules(rules)
			var grants []*Grant
			for i := range c.others {
				grants = append(grants, &Grant{
					ID: fmt.Sprint(i), Domain: "edge", Entries: []Entry{{Key: "tenant", Value: fmt.Sprint("other", i)}},
					Gives: GivesRequests, Requests: 3_000_000_000, Until: time.Now().Add(time.Hour),
				})
			}
			if c.own {
				own := *grants[0]
				own.ID, own.Entries = "own", []Entry{{Key: "tenant", Value: "a"}}
				grants = append(grants, &own)
			}
			l.ChangeGrants(nil, grants)
			r := Request{Domain: "edge"}
			r.Add().Entries = []Entry{{Key: "tenant", Value: "a"}}
			var v Verdict
			b.ReportAllocs()
			for b.Loop() {
				if decided, err := l.CheckNow(&r, &v); !decided || err != nil || v.OverLimit || (v.Statuses[0].Grant != nil) != c.own {
					b.Fatal(decided, err, v.OverLimit)
				}
			}
		})
	}
}
