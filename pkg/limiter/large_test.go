package limiter_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// Budgets of more than 4294.967295, which are limits of more than 32 bits.

// A request costs 4000.00 at most here: 1000 million tokens of the output at 4.00 for a million.
func TestALargeBudgetIsExactToTheMillionth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newPriced(t, limiter.Options{})
		want := f.wants
		want("large=a,usage=0/0/0/1000000000/small,r=1", "OK ok:246000000000/250000000000")
		want("large=a,usage=1/1/0/1000000/small,d=1", "OK ok:249995999999/250000000000") // 4000000.1 is rounded up once
		for i := range 62 {
			f.check(request("edge", fmt.Sprintf("large=a,usage=0/0/0/1000000000/small,r=more-%d", i)))
		}
		want("large=a,usage=0/0/0/1000000000/small,r=2", "OVER over:1995999999/250000000000")
		want("large=a,usage=1995999999/0/0/0/small,r=2", "OK ok:0/250000000000")
		want("large=a,usage=1/0/0/0/small,r=3", "OVER over:0/250000000000")
		want("large=b,usage=1/0/0/0/large,r=1", "OVER over:0/250000000000") // a model without a price
		want("large=b,usage=0/0/0/4000000000000/small,r=2", "OK ok:245705032705/250000000000")
		want("large=b,usage=0/0/0/0/small,d=2", "OK ok:250000000000/250000000000")
	})
}

func TestAChangeOfALargeBudgetKeepsWhatWasUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := reloading(t, ruleWith("budget: 4000, unit: month, count_rejected: false"))
		f.check(request("edge", "user=a hits=3999999999"))
		for _, tt := range []struct {
			rule string
			left uint64
		}{
			{"budget: 4294.967296, unit: month, count_rejected: false", 294_967_297},
			{"budget: 250000.00, unit: month, count_rejected: false", 246_000_000_001},
			{"budget: 250000.00, unit: month, count_rejected: false, align: {to: calendar}", 246_000_000_001},
			{"budget: 9007199254.740991, unit: day, count_rejected: false", 9_007_195_254_740_992},
			{"budget: 4000.000001, unit: day, count_rejected: false", 2},
			{"budget: 4000, unit: day, count_rejected: false", 1},
			{"budget: 1, unit: day, count_rejected: false", 0},
			{"budget: 250000.00, unit: day, count_rejected: false", 246_000_000_001},
		} {
			f.rules(ruleWith(tt.rule))
			if got := f.left("user=a"); got != tt.left {
				t.Errorf("%s: %d are left; want %d", tt.rule, got, tt.left)
			}
		}
	})
}

func TestGrantsReachLargeBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &granting{fixture: newFixtureWith(t, ruleWith("budget: 250000.00, unit: day"), limiter.Options{Now: time.Now})}
		for _, tt := range []struct {
			gives limiter.Grant
			want  uint64
		}{
			{requests(300_000_000_001), 300_000_000_001},
			{requests(5), 5},
			{limiter.Grant{Gives: limiter.GivesFactor, Factor: 1.5}, 375_000_000_000},
			{limiter.Grant{Gives: limiter.GivesFactor, Factor: 1_000_000}, 9_007_199_254_740_991},
		} {
			g.ChangeGrants(nil, []*limiter.Grant{grant("1", "user=a", tt.gives)})
			if got := g.check(t, "user=a").Limit.PerPeriod(); got != tt.want {
				t.Errorf("%+v: the limit is %d; want %d", tt.gives, got, tt.want)
			}
		}
		g.ChangeGrants([]string{"1"}, nil)
		much := func(d *limiter.Descriptor) { d.Hits = 4_000_000_000 }
		for range 70 { // the last ones are denied, and count
			g.check(t, "user=b", much)
		}
		add := grant("2", "user=b", limiter.Grant{Gives: limiter.GivesAdd, Requests: 10_000_000_000, Reason: "r"})
		must.Do(t, g.TopUp(context.Background(), add))
		g.ChangeGrants(nil, []*limiter.Grant{add})
		if s := g.check(t, "user=b", much); add.Over != 30_000_000_000 || s.Limit.PerPeriod() != 290_000_000_000 || s.Decision.Remaining != 6_000_000_000 {
			t.Errorf("after 280000.00 of 250000.00 and 10000.00 more: over is %d, and %d of %d remain", add.Over, s.Decision.Remaining, s.Limit.PerPeriod())
		}
	})
}

func TestTopKeysAndUsageOfALargeBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must.Get(memstore.New(memstore.Options{}))(t)
		t.Cleanup(s.Close)
		o := limiter.Options{TopKeys: 10, Now: time.Now}
		rule := ruleWith("budget: 250000.00, unit: day, warn_at: 80%")
		for _, away := range []bool{false, true} {
			f := &topFixture{t: t, fixture: newFixtureOn(t, s, rule, o)}
			if away {
				f.fixture = newFixtureOn(t, failing{s}, rule, o)
			}
			f.ask(25, "user=a hits=4000000000")
			top := must.Get(f.TopKeys(t.Context(), limiter.TopQuery{}))(t)
			used := uint64(100_000_000_000)
			if away {
				used *= 2
			}
			if k := top.Keys[0]; k.Remaining != 250_000_000_000-used || k.Used != float64(used)/250e9 || k.Current == away {
				t.Errorf("away %t: %d remain, and %v is used; want %d", away, k.Remaining, k.Used, 250_000_000_000-used)
			}
			usage := must.Get(f.Usage(t.Context(), limiter.UsageQuery{Domain: "edge", Path: "user"}))(t)
			if k := usage.Keys[0]; k.Used != used || k.Of != 250_000_000_000 {
				t.Errorf("away %t: %d of %d are used; want %d", away, k.Used, k.Of, used)
			}
		}
	})
}

func TestMarksOfALargeBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		f := newFixtureWith(t, ruleWith("budget: 250000.00, unit: day, warn_at: [80%, 100%]"), limiter.Options{
			Now:      time.Now,
			OnNotice: func(n *limiter.Notice) { said = append(said, fmt.Sprintf("%d%% %d/%d", n.Mark, n.Used, n.Of)) },
		})
		for range 63 {
			f.check(request("edge", "user=a hits=4000000000"))
		}
		if diff := cmp.Diff([]string{"80% 200000000000/250000000000", "100% 250000000000/250000000000"}, said); diff != "" {
			t.Errorf("notices (-want +got):\n%s", diff)
		}
	})
}
