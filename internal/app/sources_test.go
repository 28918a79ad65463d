package app

import (
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
)

// Each source is seen once through the stores as they serve, in the order of a day: asked, then
// leased, then denied, then Redis goes.
func TestADecisionSaysItsSource(t *testing.T) {
	redis := redisForLeases(t)
	s := leasing(t, 5*time.Second, "redis://"+redis.Address())
	l := must.Get(limiter.New(s.Store, limiter.Options{Leased: true}))(t)
	_, err := l.Load(descriptors.Source{Name: "rules.yaml", Data: []byte(`{domain: edge, descriptors: [
		{key: hot, rate_limit: {unit: year, requests_per_unit: 1000000000}},
		{key: few, rate_limit: {unit: year, requests_per_unit: 1}},
		{key: slots, rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: from, end: to, at_most: 1m}}}]}`)})
	if err != nil {
		t.Fatal(err)
	}
	r, v := &limiter.Request{Domain: "edge"}, limiter.Verdict{TellSource: true}
	entry := r.Add()
	check := func(text string, want store.Source, times int) {
		t.Helper()
		entry.Entries = entry.Entries[:0]
		for key := range strings.FieldsSeq(text) {
			entry.Entries = append(entry.Entries, limiter.Entry{Key: key, Value: "a"})
		}
		for range times {
			must.Do(t, l.Check(t.Context(), r, &v))
			if v.Statuses[0].Source == want {
				explained(t, l, r, want)
				return
			}
		}
		t.Errorf("%s: the last source is %q, want %q", text, v.Statuses[0].Source, want)
	}
	check("hot", store.Asked, 1)
	check("hot", store.Lease, 100_000)
	check("few", store.Asked, 1)
	check("few", store.Asked, 1)    // denied
	check("few", store.Memory, 100) // an answer is forgotten after a second
	check("slots from", store.Asked, 1)
	check("slots to", store.Asked, 1)
	redis.Kill()
	check("slots from", store.Without, 100_000)
	check("slots to", store.Without, 1)
	check("hot", store.Without, 1_000_000)
}

// explained checks that Explain says the source of the counts too. Explain asks Redis where a
// request is denied from memory, and about holders.
func explained(t *testing.T, l *limiter.Limiter, r *limiter.Request, want store.Source) {
	t.Helper()
	if want == store.Memory {
		want = store.Asked
	}
	all := must.Get(l.Explain(t.Context(), r))(t)
	if got := all[0].Limits[0].Source; got != want {
		t.Errorf("%v: Explain says %q, want %q", r.Descriptors[0].Entries, got, want)
	}
}
