package limiter_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

const pricedRules = `domain: edge
descriptors:
  - key: team
    rate_limits:
      - {budget: 0.001, unit: hour, prices: {table: p.csv, unknown: deny}, hold: {begin: r, end: d, at_most: 10m}}
      - {algorithm: token_bucket, requests_per_unit: 1000, unit: minute, hold: {begin: r, end: d, at_most: 10m}}
  - key: much
    rate_limit: {budget: 4000, unit: hour, prices: {table: p.csv, unknown: deny}, hold: {begin: r, end: d, at_most: 10m}}
  - key: large
    rate_limit: {budget: 250000.00, unit: month, align: {to: calendar}, prices: {table: p.csv, unknown: deny}, hold: {begin: r, end: d, at_most: 10m}}
  - key: hits
    rate_limit: {requests_per_unit: 4000000000, unit: hour, hold: {begin: r, end: d, at_most: 10m}}
  - key: all
    rate_limit: {budget: 0.001, unit: hour, prices: {table: others.csv, unknown: default}, hold: {begin: r, end: d, at_most: 10m}}
`

const prices = "model,input,cached_input,cache_write,output\nsmall,1,0.1,2,4\n"

func newPriced(tb testing.TB, o limiter.Options) fixture {
	tb.Helper()
	s := must.Get(memstore.New(memstore.Options{}))(tb)
	tb.Cleanup(s.Close)
	f := newFixtureOn(tb, s, "", o)
	tables := map[string]string{"p.csv": prices, "others.csv": prices + "*,100,100,100,100\n"}
	rules, warnings, err := descriptors.Load([]descriptors.Source{{
		Name: "rules.yaml", Data: []byte(pricedRules),
		Table: func(name string) (*descriptors.Table, error) {
			return descriptors.NewTable(name, []byte(tables[name])), nil
		},
	}}, descriptors.Options{})
	if err != nil || len(warnings) > 0 {
		tb.Fatal(err, warnings)
	}
	f.SetRules(rules)
	return f
}

// A budget has 1000 millionths. A token of the input costs 1 of these, a cached one 0.1, one of the
// output 4.
func TestABudgetIsChargedPrices(t *testing.T) {
	for name, steps := range map[string][]step{
		"an estimate, and then the price": {
			{[]string{"team=a,usage=100/0/0/100/small,r=1 hits=200"}, "OK ok:500/1000"},
			{[]string{"team=a,usage=100/90/0/10/small,d=1 hits=110"}, "OK ok:890/1000"}, // tokens; money: 10 + 9 + 40
			{[]string{"team=a,usage=600/0/0/0/small,r=2 hits=600"}, "OK ok:290/1000"},
			{[]string{"team=a,usage=400/0/0/0/small,r=3 hits=1"}, "OVER over:341/1000"},
			{[]string{"team=b,usage=400/0/0/0/small,r=3 hits=1"}, "OK ok:600/1000"},
		},
		"cached tokens cost a tenth": {
			{[]string{"all=a,usage=500/500/0/0/small,r=1"}, "OK ok:950/1000"},
			{[]string{"all=a,usage=500/500/0/0/small,d=1"}, "OK ok:950/1000"},
			{[]string{"all=a,usage=50/0/50/0/small,r=2"}, "OK ok:850/1000"},
		},
		"an unknown model is denied": {
			{[]string{"team=a,usage=1/0/0/0/large,r=1"}, "OVER over:0/1000"},
			{[]string{"team=a,usage=1/0/0/0/small,d=1"}, "OK ok:1000/1000"}, // the begin was denied
			{[]string{"team=a,usage=1000/0/0/0/small,r=2"}, "OK ok:0/1000"},
		},
		"an end of an unknown model leaves the estimate": {
			{[]string{"team=a,usage=100/0/0/0/small,r=1 hits=100"}, "OK ok:900/1000"},
			{[]string{"team=a,usage=1/0/0/0/large,d=1 hits=1"}, "OK ok:900/1000"},
			{[]string{"team=a,usage=0/0/0/0/small,r=2 hits=0"}, "OK ok:900/1000"},
			{[]string{"wait 1h0m0s"}, ""},
			{[]string{"team=a,usage=0/0/0/0/small,r=2 hits=0"}, "OK ok:1000/1000"},
		},
		"an end of an unknown model frees the slot of its estimate": {
			{[]string{"team=a,usage=600/0/0/600/small,r=1 hits=1"}, "OK ok:0/1000"},
			{[]string{"team=a,usage=1/0/0/0/large,d=1 hits=1"}, "OK ok:0/1000"},
			{[]string{"wait 1h0m0s"}, ""},
			{[]string{"team=a,usage=600/0/0/600/small,r=2 hits=1"}, "OK ok:0/1000"},
		},
		"hits of 0 and refunds have no price": {
			{[]string{"team=a,usage=100/0/0/0/small,r=1 hits=0"}, "OK ok:1000/1000"},
			{[]string{"team=a,usage=100/0/0/0/small,r=1 hits=3 refund"}, "OK ok:1000/1000"},
			{[]string{"team=a,usage=100/0/0/0/small,r=1 hits=100"}, "OK ok:900/1000"},
			{[]string{"team=a,usage=100/0/0/0/small,d=1 hits=0"}, "OK ok:1000/1000"},
		},
		"a default price": {
			{[]string{"all=a,usage=3/0/0/4/large,r=1"}, "OK ok:300/1000"},
			{[]string{"all=a,usage=3/0/0/0/other,d=1"}, "OK ok:700/1000"},
		},
		"an estimate above the budget is cut": {
			{[]string{"all=a,usage=3/0/0/4000000000/large,r=1"}, "OK ok:0/1000"},
			{[]string{"all=a,usage=3/0/0/1/large,d=1"}, "OK ok:600/1000"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newPriced(t, limiter.Options{})
				for i, s := range steps {
					if s.ask[0] == "wait 1h0m0s" {
						time.Sleep(time.Hour)
					} else if got := f.check(request("edge", s.ask...)); got != s.want {
						t.Errorf("step %d, %v: got %s; want %s", i, s.ask, got, s.want)
					}
				}
			})
		})
	}
}

func TestAUsageThatIsNotOneChargesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newPriced(t, limiter.Options{})
		f.check(request("edge", "team=a,usage=100/0/0/0/small,r=1 hits=100"))
		for _, text := range []string{"team=a,usage=,r=2", "team=a,usage=1/2/0/0/small,r=2", "team=a,usage=-1/0/0/0/small,d=1", "team=a,usage=tokens,d=1"} {
			var v limiter.Verdict
			err := f.Check(t.Context(), request("edge", text), &v)
			invalid, ok := errors.AsType[*limiter.InvalidError](err)
			if !ok || len(invalid.Violations) != 1 || invalid.Violations[0].Field != limiter.FieldUsage || invalid.Violations[0].Entry != 1 {
				t.Errorf("%s: got %v; want a mistake in its usage", text, err)
			}
		}
		if got := f.check(request("edge", "team=a,usage=40/0/0/0/small,d=1 hits=40")); got != "OK ok:960/1000" {
			t.Errorf("the end: got %s", got)
		}
	})
}

func TestAModelWithoutAPriceIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notices []string
		f := newPriced(t, limiter.Options{OnNotice: func(n *limiter.Notice) {
			notices = append(notices, fmt.Sprintf("%s %q %d of %d", n.Rule.Path, n.Model, n.Estimate, n.Of))
		}})
		f.check(request("edge", "team=a,usage=1/0/0/0/a/large,r=1"))
		f.check(request("edge", "team=a,usage=1/0/0/0/a/large,d=1"))
		f.check(request("edge", "team=a,usage=600/0/0/600/small,r=2 hits=1"))
		want := []string{`team "a/large" 0 of 0`, `team "" 3000 of 1000`}
		if diff := cmp.Diff(want, notices); diff != "" {
			t.Errorf("notices (-want +got):\n%s", diff)
		}
	})
}

func TestAPricedDecisionDoesNotAllocate(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	f := newPriced(t, limiter.Options{})
	begin, end := request("edge", "team=a,usage=1/0/0/1/small,r=1 hits=2"), request("edge", "team=a,usage=1/1/0/0/small,d=1 hits=1")
	var v limiter.Verdict
	if n := testing.AllocsPerRun(1000, func() {
		if f.Check(t.Context(), begin, &v) != nil || f.Check(t.Context(), end, &v) != nil {
			t.Fail()
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAnExplanationSaysThatAModelHasNoPrice(t *testing.T) {
	f := newPriced(t, limiter.Options{})
	for ask, want := range map[string]bool{
		"team=a,usage=10/0/0/0/small,r=2": false, "team=a,usage=10/0/0/0/large,r=2": true, "team=a,usage=10/0/0/0/large,d=2": true,
		"all=a,usage=10/0/0/0/large,r=2": false, "team=a,usage=0/0/0/0/large,d=2": false,
	} {
		all := must.Get(f.Explain(t.Context(), request("edge", ask)))(t)
		if got := all[0].Limits[0].NoPrice; got != want {
			t.Errorf("%s: no price %t; want %t", ask, got, want)
		}
	}
}

func TestAPricedRuleIsExplainedResetAndReleasedWithoutAUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newPriced(t, limiter.Options{})
		f.check(request("edge", "team=a,usage=100/0/0/0/small,r=1 hits=100"))
		team := []limiter.Entry{{Key: "team", Value: "a"}}
		if _, held, err := f.Holders(t.Context(), "edge", team, 5); err != nil || len(held) != 2 {
			t.Errorf("Holders: %v, %v", held, err)
		}
		if _, forgotten, err := f.Reset(t.Context(), request("edge", "team=a")); err != nil || forgotten != 2 {
			t.Errorf("Reset: %d, %v", forgotten, err)
		}
		all, err := f.Explain(t.Context(), request("edge", "team=a,usage=10/0/0/0/small,r=2 hits=10"))
		if err != nil || len(all[0].Limits) != 2 || all[0].Limits[0].Decision.Remaining != 990 {
			t.Errorf("Explain: %+v, %v", all, err)
		}
	})
}

// BenchmarkPrices decides the begins and the ends of a thousand requests with a usage, under a
// limit of hits and under a budget.
func BenchmarkPrices(b *testing.B) {
	for _, key := range []string{"hits", "much"} {
		b.Run(key, func(b *testing.B) {
			f := newPriced(b, limiter.Options{})
			var all []*limiter.Request
			for i := range 1000 {
				all = append(all, request("edge", fmt.Sprintf("%s=a,usage=100/0/0/100/small,r=%d hits=200", key, i)),
					request("edge", fmt.Sprintf("%s=a,usage=100/64/0/23/small,d=%d hits=123", key, i)))
			}
			var v limiter.Verdict
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				if err := f.Check(b.Context(), all[i], &v); err != nil || v.OverLimit {
					b.Fatalf("over limit %v, %v", v.OverLimit, err)
				}
				if i++; i == len(all) {
					i = 0
				}
			}
		})
	}
}
