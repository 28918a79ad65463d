package limiter_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

const learnedRules = `domain: edge
descriptors:
  - key: user
    rate_limit:
      requests_per_unit: 1000
      unit: hour
      hold: {begin: r, end: d, at_most: 10m, estimate: {learned: {quantile: 0.95, ceiling: 300}}}
  - key: small
    rate_limit:
      requests_per_unit: 100
      unit: hour
      hold: {begin: r, end: d, at_most: 10m, estimate: {learned: {quantile: 0.95, ceiling: 300}}}
  - key: two
    quota_mode: true
    rate_limits:
      - {requests_per_unit: 10, unit: minute, hold: &hold {begin: r, end: d, at_most: 10m, estimate: {learned: {ceiling: 300}}}}
      - {requests_per_unit: 10000, unit: hour, hold: *hold}
  - key: pt
    quota_mode: true
    group: pt
    rate_limit: {requests_per_unit: 100, unit: hour, hold: *hold}
  - key: od
    quota_mode: true
    group: od
    rate_limit: {requests_per_unit: 1000, unit: hour, hold: *hold}
  - key: sent
    rate_limit: {requests_per_unit: 1000, unit: hour, hold: {begin: r, end: d, at_most: 10m, estimate: sent}}
  - key: ban
    rate_limit: {requests_per_unit: 0, unit: hour}
`

// teach ends that many holders of a descriptor that never began, each with a cost. The descriptor
// has the text %s where its holder goes.
func (f fixture) teach(descriptor string, n int, cost int) {
	f.tb.Helper()
	for i := range n {
		text := strings.Replace(descriptor, "%s", fmt.Sprintf("d=taught-%d-%d", cost, i), 1)
		f.check(request("edge", fmt.Sprintf("%s hits=%d", text, cost)))
	}
}

const enough = algorithms.LearnedFrom

func TestABeginHoldsWhatTheEndsBeforeHaveCost(t *testing.T) {
	for name, steps := range map[string][]step{
		"as sent, up to the ceiling, until enough ends were seen": {
			{[]string{"user=a,r=1 hits=200"}, "OK ok:800/1000"},
			{[]string{"user=a,r=2 hits=500"}, "OK ok:500/1000"},
			{[]string{"user=a,r=3 hits=0"}, "OK ok:200/1000"}, // nobody has estimated: the ceiling
			{[]string{"user=a,r=4 hits=0"}, "OVER over:200/1000"},
			{[]string{"user=a,d=3 hits=10"}, "OK ok:490/1000"},
		},
		"learned": {
			{[]string{"teach user=a,%s"}, "20 of 10"},
			{[]string{"user=a,r=1 hits=200"}, "OK ok:790/1000"},
			{[]string{"user=a,r=2 hits=0"}, "OK ok:780/1000"},
			{[]string{"user=a,r=2 hits=0"}, "OK ok:780/1000"}, // a repeat
			{[]string{"user=a,d=1 hits=300"}, "OK ok:490/1000"},
			{[]string{"user=a,d=2 hits=0"}, "OK ok:500/1000"},
			{[]string{"user=a,r=3 hits=1"}, "OK ok:488/1000"}, // 10 was too little once
		},
		"one end too few": {
			{[]string{"teach user=a,%s"}, "19 of 10"},
			{[]string{"user=a,r=1 hits=200"}, "OK ok:610/1000"},
		},
		"never above the ceiling": {
			{[]string{"teach user=a,%s"}, "20 of 900"},
			{[]string{"wait 1h0m0s"}, ""},
			{[]string{"user=a,r=1 hits=1"}, "OK ok:700/1000"},
		},
		"above the limit it is cut": {
			{[]string{"teach small=a,%s"}, "20 of 200"},
			{[]string{"wait 1h0m0s"}, ""},
			{[]string{"small=a,r=1 hits=1"}, "OK ok:0/100"},
			{[]string{"small=a,d=1 hits=30"}, "OK ok:70/100"},
			{[]string{"wait 1h0m0s"}, ""},
			{[]string{"small=a,r=2 hits=1"}, "OK ok:0/100"}, // the slot is free
		},
		"each key by itself": {
			{[]string{"teach user=a,%s"}, "20 of 10"},
			{[]string{"user=b,r=1 hits=200"}, "OK ok:800/1000"},
		},
		"each model by itself": {
			{[]string{"teach user=a,usage=1/0/0/1/m,%s"}, "20 of 10"},
			{[]string{"user=a,usage=1/0/0/1/m,r=1 hits=200"}, "OK ok:790/1000"},
			{[]string{"user=a,usage=1/0/0/1/n,r=2 hits=200"}, "OK ok:590/1000"},
			{[]string{"user=a,r=3 hits=200"}, "OK ok:390/1000"},
			{[]string{"user=a,usage=text,r=4 hits=200"}, "OK ok:190/1000"},
			{[]string{"user=a,usage=9/1/0/6/m,r=5 hits=200"}, "OK ok:180/1000"},
		},
		"failed requests teach nothing": {
			{[]string{"teach user=a,%s"}, "20 of 10"},
			{[]string{"teach user=a,%s"}, "50 of 0"},
			{[]string{"user=a,r=1 hits=200"}, "OK ok:790/1000"},
		},
		"an end in a request that is denied teaches": {
			{[]string{"user=a,d=1 hits=10", "ban=x"}, "OVER ok:990/1000 over:0/0"},
			{[]string{"teach user=a,%s"}, "19 of 10"},
			{[]string{"user=a,r=1 hits=200"}, "OK ok:790/1000"},
		},
		"two limits of a quota": {
			{[]string{"teach two=a,%s"}, "20 of 10"},
			{[]string{"wait 1m0s"}, ""},
			{[]string{"two=a,r=1 hits=9"}, "OK ok:0/10"},
			{[]string{"two=a,r=2 hits=9"}, "OVER over:0/10"}, // one quota, although the second limit has room
			{[]string{"two=a,r=3 hits=9", "two=b,r=3 hits=9"}, "OK over:0/10 ok:1/10"},
		},
		"groups": {
			{[]string{"teach pt=a,%s"}, "20 of 1"},
			{[]string{"teach od=a,%s"}, "20 of 40"},
			{[]string{"pt=a,r=1 hits=9", "od=a,r=1 hits=9"}, "OK ok:79/100 ok:200/1000"},
			{[]string{"pt=a,d=2 hits=79"}, "OK ok:0/100"},
		},
		"as sent, where the rule says so": {
			{[]string{"teach sent=a,%s"}, "20 of 10"},
			{[]string{"sent=a,r=1 hits=200"}, "OK ok:600/1000"},
			{[]string{"sent=a,r=2 hits=0"}, "OK ok:600/1000"},
		},
		"an override has no estimate": {
			{[]string{"user=a,r=1 hits=400 override=500"}, "OK ok:100/500"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				newFixture(t, learnedRules).run(steps)
			})
		})
	}
}

func TestWhatWasLearnedEndsWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must.Get(memstore.New(memstore.Options{SweepInterval: 2000 * time.Hour}))(t)
		defer s.Close()
		f := newFixtureOn(t, s, learnedRules, limiter.Options{})
		f.teach("user=a,%s", enough, 10)
		time.Sleep(algorithms.LearnedLife - time.Hour)
		if got := f.check(request("edge", "user=a,r=1 hits=200")); got != "OK ok:990/1000" {
			t.Errorf("an hour before: got %s", got)
		}
		time.Sleep(time.Hour)
		f.teach("user=a,%s", 1, 10)
		if got := f.check(request("edge", "user=a,r=2 hits=200")); got != "OK ok:790/1000" {
			t.Errorf("after one more end: got %s; want the estimate that was sent", got)
		}
	})
}

// newLearned is a fixture with a limit of money, of 1000 millionths.
func newLearned(tb testing.TB) fixture {
	tb.Helper()
	f := newFixtureOn(tb, newMemory(tb), "", limiter.Options{})
	rules, warnings, err := descriptors.Load([]descriptors.Source{{
		Name: "rules.yaml", Data: []byte(`domain: edge
descriptors:
  - key: team
    rate_limit:
      budget: 0.001
      unit: hour
      prices: {table: p.csv, unknown: deny}
      hold: {begin: r, end: d, at_most: 10m, estimate: {learned: {ceiling: 0.0004}}}
`),
		Table: func(name string) (*descriptors.Table, error) {
			return descriptors.NewTable(name, []byte(prices+"free,0,0,0,0\n")), nil
		},
	}}, descriptors.Options{})
	if err != nil || len(warnings) > 0 {
		tb.Fatal(err, warnings)
	}
	f.SetRules(rules)
	return f
}

// A token of the input costs 1 millionth, one of the output 4.
func TestMoneyIsLearnedInMillionths(t *testing.T) {
	for name, steps := range map[string][]step{
		"a sent estimate has its price, up to the ceiling": {
			{[]string{"team=a,usage=100/0/0/10/small,r=1 hits=110"}, "OK ok:860/1000"},
			{[]string{"team=a,usage=100/0/0/100/small,r=2 hits=200"}, "OK ok:460/1000"},
		},
		"prices are learned": {
			{[]string{"teach team=a,usage=12/0/0/2/small,%s"}, "20 of 14"},
			{[]string{"wait 1h"}, ""},
			{[]string{"team=a,usage=900/0/0/0/small,r=1 hits=900"}, "OK ok:980/1000"},
			{[]string{"team=a,usage=0/0/0/0/small,r=2 hits=0"}, "OK ok:960/1000"},
		},
		"without an estimate the ceiling is held": {
			{[]string{"team=a,usage=0/0/0/0/small,r=1 hits=0"}, "OK ok:600/1000"},
			{[]string{"team=a,usage=0/0/0/0/small,r=2 hits=5"}, "OK ok:200/1000"},
			{[]string{"team=a,usage=10/0/0/0/small,d=1 hits=10"}, "OK ok:590/1000"},
		},
		"a model without a price is denied": {
			{[]string{"team=a,usage=0/0/0/0/large,r=1 hits=0"}, "OVER over:0/1000"},
			{[]string{"team=a,usage=5/0/0/0/large,r=2 hits=5"}, "OVER over:0/1000"},
			{[]string{"team=a,usage=5/0/0/0/large,d=2 hits=5"}, "OK ok:1000/1000"},
		},
		"a free model holds nothing": {
			{[]string{"team=a,usage=9/0/0/9/free,r=1 hits=18"}, "OK ok:1000/1000"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				newLearned(t).run(steps)
			})
		})
	}
}

// waiting is a store that always waits, as a shared one does.
type waiting struct {
	store.Store
	away func() bool // decides without the shared store, as for on_store_error: allow
}

func (w *waiting) TakeNow(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	if !w.away() {
		return false, false
	}
	for i := range charges {
		decisions[i] = algorithms.Decision{Allowed: true, Remaining: charges[i].Limit.Capacity()}
	}
	return true, true
}

func TestTwoProcessesLearnTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := false
		shared := &waiting{newMemory(t), func() bool { return away }}
		a, b := newFixtureOn(t, shared, learnedRules, limiter.Options{}), newFixtureOn(t, shared, learnedRules, limiter.Options{})
		b.check(request("edge", "user=a,d=1 hits=10"))
		a.teach("user=a,%s", enough-1, 10)
		if got := a.check(request("edge", "user=a,r=1 hits=200")); got != "OK ok:790/1000" {
			t.Errorf("the process that has seen the ends: got %s", got)
		}
		// The other one holds the estimate that was sent once, which brings the number.
		if got := b.check(request("edge", "user=a,r=2 hits=200")); got != "OK ok:590/1000" {
			t.Errorf("the first begin of the other process: got %s", got)
		}
		if got := b.check(request("edge", "user=a,r=3 hits=200")); got != "OK ok:580/1000" {
			t.Errorf("the second one: got %s", got)
		}
		a.teach("user=a,%s", 30, 2)
		a.teach("user=a,%s", 300, 1)
		for i := range 100 { // some of these ask
			b.check(request("edge", fmt.Sprintf("user=b,r=%d", i), fmt.Sprintf("user=a,r=x%d", i)))
		}
		time.Sleep(time.Hour)
		if got := b.check(request("edge", "user=a,r=4 hits=200")); got < "OK ok:994/1000" {
			t.Errorf("after cheaper requests: got %s", got)
		}
		away = true
		b.check(request("edge", "user=a,d=4 hits=200"))
		away = false
		if got := b.check(request("edge", "user=a,r=5 hits=200")); got < "OK ok:988/1000" {
			t.Errorf("after an outage: got %s", got)
		}
	})
}

func TestWhatWasLearnedIsKeptInASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := must.Get(memstore.New(memstore.Options{Savable: true}))(t)
		defer before.Close()
		f := newFixtureOn(t, before, learnedRules, limiter.Options{})
		f.teach("user=a,%s", enough, 10)
		var snapshot bytes.Buffer
		must.Get(before.Save(&snapshot))(t)
		after := must.Get(memstore.New(memstore.Options{Savable: true}))(t)
		defer after.Close()
		must.Get(after.Load(&snapshot))(t)
		f = newFixtureOn(t, after, learnedRules, limiter.Options{})
		if got := f.check(request("edge", "user=a,r=1 hits=200")); got != "OK ok:790/1000" {
			t.Errorf("got %s, want 10 held beside 200 used", got)
		}
	})
}

func TestKeysThatLearnStandBesideTheirLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, learnedRules, limiter.Options{TopKeys: 100, Now: time.Now})
		f.teach("user=a,%s", enough, 10)
		for _, text := range []string{"user=a,r=1 hits=5", "user=a,r=2 hits=5", "user=a,d=2 hits=5"} {
			var v limiter.Verdict
			must.Do(t, f.Check(t.Context(), request("edge", text), &v))
			n := 0
			for c := range v.Charged(0) {
				if n++; strings.Contains(string(c.Key), "learned") {
					t.Errorf("%s: charged %s", text, c.Key)
				}
			}
			if n != 1 {
				t.Errorf("%s: %d limits", text, n)
			}
		}
		keys, _, err := f.Reset(t.Context(), request("edge", "user=a"))
		if err != nil || len(keys) != 1 {
			t.Errorf("reset %q: %v", keys, err)
		}
		if got := f.check(request("edge", "user=a,r=3 hits=200")); got != "OK ok:990/1000" {
			t.Errorf("after a reset: got %s; what was learned stays", got)
		}
	})
}

func TestExplainSaysWhatIsLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &waiting{newMemory(t), func() bool { return false }}
		f := newFixtureOn(t, shared, learnedRules, limiter.Options{})
		explain := func() limiter.LimitState {
			all := must.Get(f.Explain(t.Context(), request("edge", "user=a,r=1 hits=200")))(t)
			if len(all[0].Limits) != 1 {
				t.Fatalf("%d limits", len(all[0].Limits))
			}
			return all[0].Limits[0]
		}
		if got := explain(); got.Learned != 0 || got.Decision.Remaining != 800 {
			t.Errorf("before: learned %d, %d remain", got.Learned, got.Decision.Remaining)
		}
		f.teach("user=a,%s", enough, 10)
		f = newFixtureOn(t, shared, learnedRules, limiter.Options{}) // a process that was told no number
		if got := explain(); got.Learned != 10 || got.Decision.Remaining != 790 {
			t.Errorf("after: learned %d, %d remain", got.Learned, got.Decision.Remaining)
		}
	})
}

// Costs are lognormal, and eight requests run at a time.
func TestLearnedEstimatesCoverTheirPartOfTheCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, `domain: edge
descriptors:
  - key: user
    rate_limit:
      requests_per_unit: 4000000000
      unit: year
      hold: {begin: r, end: d, at_most: 10m, estimate: {learned: {ceiling: 1000000}}}
`)
		var covered, total int
		var mu sync.Mutex // guards both
		var group sync.WaitGroup
		for worker := range 8 {
			group.Go(func() {
				r := rand.New(rand.NewPCG(uint64(worker), 1)) //nolint:gosec // repeats
				var v limiter.Verdict
				for i := range 700 {
					cost := 1 + uint64(500*math.Exp(r.NormFloat64()))
					name := fmt.Sprintf("%d-%d", worker, i)
					must.Do(t, f.Check(t.Context(), request("edge", "user=a,r="+name+" hits=1000"), &v))
					held := v.Statuses[0].Held
					time.Sleep(time.Duration(1+r.IntN(2000)) * time.Millisecond)
					must.Do(t, f.Check(t.Context(), request("edge", fmt.Sprintf("user=a,d=%s hits=%d", name, cost)), &v))
					mu.Lock()
					if i >= 75 {
						total++
						if cost <= uint64(held) {
							covered++
						}
					}
					mu.Unlock()
				}
			})
		}
		group.Wait()
		if part := float64(covered) / float64(total); total != 5000 || part < 0.93 || part > 0.97 {
			t.Errorf("covered %d of %d", covered, total)
		}
	})
}

func TestALearnedEstimateAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	f := newFixture(t, learnedRules)
	f.teach("user=a,usage=1/0/0/1/m,%s", enough, 1)
	var v limiter.Verdict
	for _, text := range []string{"user=a,usage=1/0/0/1/m,r=1 hits=5", "user=a,usage=1/0/0/1/m,d=1 hits=1", "user=b,r=1 hits=1"} {
		r := request("edge", text)
		if got := testing.AllocsPerRun(100, func() { must.Do(t, f.Check(t.Context(), r, &v)) }); got != 0 {
			t.Errorf("%s: got %v allocations, want 0", text, got)
		}
	}
}
