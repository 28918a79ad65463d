package statistics

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// remembering is a store that says of every decision that an earlier denial made it.
type remembering struct{ store.Store }

func (s remembering) TakeNow(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	admitted, decided = s.Store.TakeNow(charges, decisions)
	for i := range charges {
		charges[i].TellSource(store.Memory)
	}
	return admitted, decided
}

func TestTheLocalCacheIsTheMemoryOfDenials(t *testing.T) {
	const rules = `domain: d
descriptors:
- {key: k, detailed_metric: true, ` + hour + `}
- {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: free, rate_limit: {unlimited: true}}
`
	f := newFixture(t, rules, limiter.Options{})
	s := must.Get(memstore.New(memstore.Options{MaxKeys: 1000}))(t)
	t.Cleanup(s.Close)
	f.Limiter = must.Get(limiter.New(remembering{s}, limiter.Options{Remembered: true}))(t)
	f.set(rules)
	f.reader = must.Get(New(Options{Limiter: f.Limiter, LocalCache: func() int { return 7 }}))(t)
	f.ask("d", "k=a", 10) // passes
	f.ask("d", "k=a", 3)
	f.ask("d", "k=a", 1)
	f.ask("d", "shadow=a", 2)
	f.ask("d", "free=a", 1)
	f.ask("d", "k=b", 1) // passes
	want := map[string]uint64{"entryCount": 7, "hitCount": 3, "lookupCount": 5, "missCount": 2}
	if diff := cmp.Diff(want, maps.Collect(f.reader.gauges())); diff != "" {
		t.Errorf("gauges (-want +got):\n%s", diff)
	}
	text := f.text()
	for name, n := range map[string]uint64{"d.k_a": 4, "d.k_b": 0, "d.shadow": 2} {
		if got := text[name+".over_limit_with_local_cache"]; got != n {
			t.Errorf("%s: got %d hits denied from memory, want %d", name, got, n)
		}
	}
	page := scrape(t, must.Get(f.reader.NewCollector(CollectorOptions{}))(t))
	for _, line := range []string{
		`ratelimit_service_rate_limit_over_limit_with_local_cache{domain="d",key1="k_a",key2="",key3=""} 4`,
		"ratelimit_localcache_hitCount 3", "ratelimit_localcache_entryCount 7",
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("Prometheus: got\n%s\nwant %s", page, line)
		}
	}
}
