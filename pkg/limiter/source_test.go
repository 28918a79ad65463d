package limiter_test

import (
	"context"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
)

// tells is a store that tells the source of each charge by the number of its hits left: 1 left is
// the first source.
type tells struct{}

func (tells) Take(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	for i := range charges {
		decisions[i] = algorithms.Decision{Allowed: true, Remaining: charges[i].Limit.Requests}
		if left := charges[i].Left; left != nil {
			*left = store.State{Source: store.Source(charges[i].Limit.Requests)}
		}
	}
	return true, nil
}

func TestAStatusTellsTheSourceOfItsDecision(t *testing.T) {
	l := newFixtureOn(t, storetest.Of(tells{}), `{domain: edge, descriptors: [
		{key: asked, rate_limit: {unit: day, requests_per_unit: 1}},
		{key: leased, rate_limits: [{unit: day, requests_per_unit: 3}, {unit: hour, requests_per_unit: 2}]},
		{key: without, rate_limit: {unit: day, requests_per_unit: 4}}]}`, limiter.Options{})
	r := request("edge", "without=x", "none=x", "leased=x", "asked=x")
	v := limiter.Verdict{TellSource: true}
	for _, tell := range []bool{true, false, true} { // the same verdict again
		v.TellSource = tell
		must.Do(t, l.Check(t.Context(), r, &v))
		want := []store.Source{store.Without, 0, store.Lease, store.Asked}
		if !tell {
			want = make([]store.Source, 4)
		}
		for i, s := range v.Statuses {
			if s.Source != want[i] {
				t.Errorf("tell %t, descriptor %d: got the source %v, want %v", tell, i, s.Source, want[i])
			}
			for c := range v.Charged(i) {
				if tell != (c.Source == store.Source(c.Limit.Requests)) {
					t.Errorf("tell %t, descriptor %d: got the source %v of a limit of %d", tell, i, c.Source, c.Limit.Requests)
				}
			}
		}
	}
}
