package app

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/test/parts"
)

// With Redis, remembered denials and leases, each change of a grant counts for the next request.
func TestAGrantCountsAtOnceBeforeRedis(t *testing.T) {
	r, err := parts.StartRedis(t.Context(), parts.NeedRedis(t, filepath.Join("..", "..")), t.TempDir(), parts.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	for n := range 4 {
		original, leases := n&1 > 0, n&2 > 0
		for _, algorithm := range []string{"fixed_window", "token_bucket", "sliding_window_counter", "sliding_window_log"} {
			t.Run(fmt.Sprintf("%s/original=%v,leases=%v", algorithm, original, leases), func(t *testing.T) {
				must.Get(r.Do(t.Context(), "FLUSHALL"))(t)
				o := redisstore.Options{Target: redisstore.Target{URLs: []string{"redis://" + r.Address()}}, Timeout: time.Second}
				if original {
					o.Counters.Name = descriptors.AppendOriginalKey
				}
				stores, err := NewStores(StoreOptions{Redis: &o, DenyCache: time.Minute, FleetSize: 1, Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				defer stores.Close()
				must.Do(t, stores.Unfit(t.Context()))
				l := must.Get(limiter.New(stores.Store, limiter.Options{Leased: leases, Now: time.Now}))(t)
				rules := must.First(descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(
					"domain: edge\ndescriptors: [{key: tenant, rate_limit: {algorithm: " + algorithm + ", unit: day, requests_per_unit: 1000, count_rejected: false}}]",
				)}}, descriptors.Options{}))(t)
				l.SetRules(rules)
				var v limiter.Verdict
				admits := func(hits int) (n int) {
					for range hits {
						req := limiter.Request{Domain: "edge"}
						d := req.Add()
						d.Entries = append(d.Entries, limiter.Entry{Key: "tenant", Value: "a"})
						must.Do(t, l.Check(t.Context(), &req, &v))
						if !v.OverLimit {
							n++
						}
					}
					return n
				}
				give := func(g limiter.Grant) {
					g.ID, g.Domain, g.Entries = "g", "edge", []limiter.Entry{{Key: "tenant", Value: "a"}}
					g.Until = time.Now().Add(time.Hour)
					l.ChangeGrants(nil, []*limiter.Grant{&g})
				}
				if n := admits(400); n != 400 { // with leases in hand
					t.Fatalf("got %d of 400 hits", n)
				}
				give(limiter.Grant{Gives: limiter.GivesRequests})
				if n := admits(50); n != 0 {
					t.Errorf("a block admits %d hits", n)
				}
				give(limiter.Grant{Gives: limiter.GivesRequests, Requests: 500})
				most := 100 // 400 of 500 were taken before
				if algorithm == "token_bucket" {
					most = 500 // the 600 of 1000 that are left are clamped
				}
				if n := admits(600); n > most || n < most && !leases { // leases that were under way are lost
					t.Errorf("under a lower limit: got %d hits, want %d", n, most)
				}
				if n := admits(20); n != 0 && !leases {
					t.Errorf("a spent key admits %d hits", n)
				}
				give(limiter.Grant{Gives: limiter.GivesUnlimited})
				if n := admits(50); n != 50 {
					t.Errorf("unlimited admits %d of 50 hits", n)
				}
				give(limiter.Grant{Gives: limiter.GivesRequests, Requests: 100_000}) // a spent bucket refills with time
				if n := admits(50); algorithm != "token_bucket" && n != 50 {
					t.Errorf("a remembered denial outlives the raised limit: got %d of 50 hits", n)
				}
				l.ChangeGrants([]string{"g"}, nil)
				if n := admits(600); n > 500 {
					t.Errorf("after the end of the grant: got %d hits", n)
				}
			})
		}
	}
}
