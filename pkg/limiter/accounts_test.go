package limiter_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

const budgetRules = `
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 10, warn_at: [80%, 100%]}}
  - {key: drop, rate_limit: {unit: hour, requests_per_unit: 10, warn_at: [80%, 100%], count_rejected: false}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 10, warn_at: 80%}}
  - {key: tokens, rate_limit: {unit: hour, requests_per_unit: 100, warn_at: 80%, hold: {begin: request, end: done, at_most: 1h}}}
  - {key: leased, rate_limit: {unit: hour, requests_per_unit: 10, warn_at: 80%, sharing: leased}}
  - {key: one, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: ban, rate_limit: {unit: hour, requests_per_unit: 0, warn_at: 1%}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 10, warn_at: 80%}}
  - key: two
    rate_limits:
      - {unit: hour, requests_per_unit: 10, warn_at: 50%}
      - {unit: day, requests_per_unit: 20, warn_at: 10%}
`

// budgets is a limiter with the notices that it gave, in a bubble.
type budgets struct {
	fixture

	said []string
	v    limiter.Verdict
}

func newBudgets(tb testing.TB, s store.Store) *budgets {
	tb.Helper()
	b := new(budgets)
	o := limiter.Options{Now: time.Now, OnNotice: func(n *limiter.Notice) {
		text := fmt.Sprintf("%s %d%% %d/%d", n.Key[strings.LastIndexByte(n.Key, ':')+1:], n.Mark, n.Used, n.Of)
		if !n.Until.IsZero() {
			text += " " + n.Until.UTC().Format("02T15:04")
		}
		b.said = append(b.said, text)
	}}
	if s == nil {
		b.fixture = newFixtureWith(tb, budgetRules, o)
	} else {
		b.fixture = newFixtureOn(tb, s, budgetRules, o)
	}
	return b
}

// ask asks once, and checks the new notices, and the soft breach.
func (b *budgets) ask(breach bool, text string, notices ...string) {
	b.tb.Helper()
	b.said = nil
	must.Do(b.tb, b.Check(b.tb.Context(), request("edge", strings.Split(text, ";")...), &b.v))
	if !slices.Equal(b.said, notices) {
		b.tb.Errorf("%s: the notices %q; want %q", text, b.said, notices)
	}
	if b.v.SoftBreach != breach {
		b.tb.Errorf("%s: soft breach %t; want %t", text, b.v.SoftBreach, breach)
	}
}

func TestAKeyGetsANoticeOnceForEachMarkAndWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudgets(t, nil) // the clock begins at midnight
		b.ask(false, "user=a hits=7")
		b.ask(true, "user=a", "a#fixed_window/1h 80% 8/10 01T01:00")
		b.ask(true, "user=a")
		b.ask(true, "user=a", "a#fixed_window/1h 100% 10/10 01T01:00")
		b.ask(true, "user=a")
		b.ask(true, "user=a hits=4")
		b.ask(true, "user=b hits=10", "b#fixed_window/1h 80% 10/10 01T01:00", "b#fixed_window/1h 100% 10/10 01T01:00")
		time.Sleep(time.Hour)
		b.ask(false, "user=a")
		b.ask(true, "user=a hits=8", "a#fixed_window/1h 80% 9/10 01T02:00")
		for c := range b.Counts() {
			if want := map[uint8]uint64{80: 3, 100: 2}; c.Path == "user" && !cmp.Equal(c.Counts.Notices(), want) {
				t.Errorf("the metric counts %v; want %v", c.Counts.Notices(), want)
			}
		}
	})
}

func TestAMarkCrossedAgainAfterARefundIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudgets(t, nil)
		b.ask(true, "user=a hits=8", "a#fixed_window/1h 80% 8/10 01T01:00")
		b.ask(false, "user=a hits=5 refund")
		b.ask(true, "user=a hits=5")
		b.ask(false, "tokens=a,request=1 hits=10")
		b.ask(true, "tokens=a,request=2 hits=80", "a#fixed_window/1h 80% 90/100 01T01:00")
		b.ask(false, "tokens=a,done=2 hits=20")
		b.ask(true, "tokens=a,request=3 hits=60")
		b.ask(true, "tokens=a,done=3 hits=500")
	})
}

func TestADeniedChargeCrossesAMarkOnlyIfItCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudgets(t, nil)
		b.ask(false, "user=a hits=7")
		b.ask(true, "user=a hits=9", "a#fixed_window/1h 80% 10/10 01T01:00", "a#fixed_window/1h 100% 10/10 01T01:00")
		b.ask(false, "drop=a hits=7")
		b.ask(false, "drop=a hits=9")
		b.ask(true, "drop=a hits=1", "a#fixed_window/1h 80% 8/10 01T01:00")
		b.ask(false, "one=x")
		b.ask(false, "drop=b hits=8;one=x") // the other limit denies: nothing is charged
		b.ask(true, "drop=b hits=8", "b#fixed_window/1h 80% 8/10 01T01:00")
		b.ask(false, "ban=a")
		b.ask(true, "shadow=a hits=9", "a#fixed_window/1h 80% 9/10 01T01:00")
		b.ask(true, "two=a hits=5", "a#fixed_window/1h 50% 5/10 01T01:00", "a#fixed_window/1d 10% 5/20 02T00:00")
	})
}

func TestABucketGetsANoticeAgainAfterAPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudgets(t, nil)
		b.ask(true, "bucket=a hits=8", "a#token_bucket/1h 80% 8/10")
		for range 9 { // each hit crosses the mark anew
			time.Sleep(6 * time.Minute)
			b.ask(true, "bucket=a")
		}
		time.Sleep(12 * time.Minute)
		b.ask(false, "bucket=a")
		b.ask(true, "bucket=a", "a#token_bucket/1h 80% 8/10")
	})
}

// others is a store that other processes share, or that is away.
type others struct {
	store.Store

	used    uint64 // by the others
	without bool
}

func (o *others) TakeNow(charges []store.Charge, decisions []algorithms.Decision) (bool, bool) {
	admitted, decided := o.Store.TakeNow(charges, decisions)
	for i := range charges {
		decisions[i].Remaining -= min(o.used, decisions[i].Remaining)
		if o.without {
			charges[i].TellSource(store.Without)
		}
	}
	return admitted, decided
}

func TestOfSeveralProcessesTheOneThatCrossesGivesTheNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &others{Store: newMemory(t)}
		b := newBudgets(t, shared)
		b.ask(false, "user=a")
		shared.used = 8 // another one has crossed the mark
		b.ask(true, "user=a", "a#fixed_window/1h 100% 10/10 01T01:00")
		b.ask(true, "user=new")
		b.ask(true, "leased=a hits=1") // the first sight
		shared.used = 0
		b.ask(false, "leased=b")
		shared.used = 8 // leases of others
		b.ask(true, "leased=b", "b#fixed_window/1h 80% 10/10 01T01:00")
	})
}

func TestAnOutageGivesNoNoticesAndMissesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &others{Store: newMemory(t)}
		b := newBudgets(t, shared)
		b.ask(false, "user=a")
		shared.without = true
		b.ask(false, "user=a hits=8")
		shared.without = false
		b.ask(true, "user=a", "a#fixed_window/1h 80% 10/10 01T01:00", "a#fixed_window/1h 100% 10/10 01T01:00")
	})
}

func TestAResetBeginsTheMarksAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudgets(t, nil)
		b.ask(true, "user=a hits=8", "a#fixed_window/1h 80% 8/10 01T01:00")
		_, _, err := b.Reset(context.Background(), request("edge", "user=a"))
		must.Do(t, err)
		b.ask(true, "user=a hits=8", "a#fixed_window/1h 80% 8/10 01T01:00")
	})
}

func TestAccountsAreBoundedAndTheKeysThatUsedMostStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudgets(t, nil)
		for i := range 2 * limiter.MaxAccounts {
			b.ask(false, fmt.Sprintf("user=%d", i))
		}
		b.ask(false, "user=late hits=5")
		b.ask(true, "user=late hits=3", "late#fixed_window/1h 80% 8/10 01T01:00")
		for i := range limiter.MaxAccounts {
			b.ask(false, fmt.Sprintf("user=%d", 3*limiter.MaxAccounts+i))
		}
		b.ask(true, "user=late hits=2", "late#fixed_window/1h 100% 10/10 01T01:00")
		u := must.Get(b.Usage(t.Context(), limiter.UsageQuery{Domain: "edge", Path: "user"}))(t)
		if n := len(u.Keys); n == 0 || n > limiter.MaxAccounts || u.Keys[0].Used != 10 || u.LeftOut < 2*limiter.MaxAccounts {
			t.Errorf("usage has %d keys, the first with %d used hits, and %d were left out", n, u.Keys[0].Used, u.LeftOut)
		}
	})
}

func TestBudgetsAllocateNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	f := newFixtureWith(t, budgetRules, limiter.Options{Now: time.Now})
	var v limiter.Verdict
	for _, text := range []string{"user=a", "bucket=a", "two=a"} {
		r := request("edge", text)
		if got := testing.AllocsPerRun(100, func() { must.Do(t, f.Check(t.Context(), r, &v)) }); got != 0 {
			t.Errorf("%s: got %v allocations, want 0", text, got)
		}
	}
}

func newMemory(tb testing.TB) store.Store {
	tb.Helper()
	s := must.Get(memstore.New(memstore.Options{}))(tb)
	tb.Cleanup(s.Close)
	return s
}
