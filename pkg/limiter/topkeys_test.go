package limiter_test

import (
	"context"
	"errors"
	"fmt"
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

const topRules = `
domain: edge
default: {unit: hour, requests_per_unit: 100}
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 10}}
  - key: two
    rate_limits:
      - {unit: minute, requests_per_unit: 5}
      - {unit: hour, requests_per_unit: 100}
  - {key: shared, value: a*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 100, hold: {begin: request, end: done, at_most: 1h}}}
  - {key: slots, rate_limit: {algorithm: concurrency, max_in_flight: 4, hold: {begin: request, end: done, at_most: 1h}}}
`

// topFixture is a limiter that tracks keys, in a bubble.
type topFixture struct {
	fixture

	t *testing.T
	v limiter.Verdict
}

func newTopFixture(t *testing.T) *topFixture {
	t.Helper()
	return &topFixture{fixture: newFixtureWith(t, topRules, limiter.Options{TopKeys: 100}), t: t}
}

// ask asks so many times.
func (f *topFixture) ask(times int, texts ...string) {
	f.t.Helper()
	for range times {
		must.Do(f.t, f.Check(f.t.Context(), request("edge", texts...), &f.v))
	}
}

// top returns the top keys as text: the path, the entries, and "hits denied remaining/capacity".
func (f *topFixture) top(q limiter.TopQuery) []string {
	f.t.Helper()
	top := must.Get(f.TopKeys(f.t.Context(), q))(f.t)
	all := []string{}
	for _, k := range top.Keys {
		var entries []string
		for _, e := range k.Entries {
			entries = append(entries, e.Key+"="+e.Value)
		}
		text := fmt.Sprintf("%s %s %d %d %d/%d", k.Path, strings.Join(entries, ","), k.Hits, k.Denied, k.Remaining, k.Limit.Capacity())
		if k.HitsError+k.DeniedError > 0 || !k.Current {
			text += fmt.Sprintf(" errors %d %d current %t", k.HitsError, k.DeniedError, k.Current)
		}
		all = append(all, text)
	}
	return all
}

func (f *topFixture) want(q limiter.TopQuery, want ...string) {
	f.t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), f.top(q)); diff != "" {
		f.t.Errorf("top keys of %+v (-want +got):\n%s", q, diff)
	}
}

// bubble runs a test on a new fixture in a bubble.
func bubble(t *testing.T, run func(f *topFixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		run(newTopFixture(t))
	})
}

func TestTopKeysCountEveryHitOnce(t *testing.T) {
	bubble(t, func(f *topFixture) {
		f.ask(12, "user=a")       // two are denied
		f.ask(3, "user=b hits=3") // nine hits
		f.ask(9, "user=c")
		f.ask(1, "user=b hits=2")    // denied
		f.ask(2, "user=c refund")    // no hits, and two are left again
		f.ask(1, "user=d hits=0")    // a probe
		f.ask(1, "nothing=x hits=4") // the default
		f.ask(2, "two=t")
		f.ask(1, "shared=ab", "shared=ac")
		f.want(limiter.TopQuery{},
			"user user=a 12 2 0/10",
			"user user=b 11 2 0/10",
			"user user=c 9 0 3/10",
			"default nothing=x 4 0 96/100",
			"two two=t 2 0 98/100", // "1h" comes before "1m"
			"two two=t 2 0 3/5",
			"shared=a* shared=ab 2 0 98/100")
		f.want(limiter.TopQuery{Order: limiter.ByDenied}, "user user=a 12 2 0/10", "user user=b 11 2 0/10")
		f.want(limiter.TopQuery{Order: limiter.ByUsed, Most: 4},
			"user user=a 12 2 0/10", "user user=b 11 2 0/10", "user user=c 9 0 3/10", "two two=t 2 0 3/5")
		f.want(limiter.TopQuery{Path: "two", Most: 1}, "two two=t 2 0 98/100")
		f.want(limiter.TopQuery{Domain: "other"})
	})
}

func TestTopKeysOfHoldersAreTheirTrueHits(t *testing.T) {
	bubble(t, func(f *topFixture) {
		f.ask(2, "bucket=m,request=r hits=5") // the second repeats the first
		f.ask(1, "bucket=m,done=r hits=8")    // three more
		f.ask(1, "bucket=n,request=s hits=9")
		f.ask(1, "bucket=n,done=s hits=2") // gives seven back
		f.ask(1, "slots=u,request=1")
		f.ask(1, "slots=u,request=2")
		f.ask(1, "slots=u,done=1")
		f.want(limiter.TopQuery{}, "bucket bucket=n 9 0 98/100", "bucket bucket=m 8 0 92/100", "slots slots=u 2 0 3/4")
	})
}

func TestTopKeysOfOverrides(t *testing.T) {
	bubble(t, func(f *topFixture) {
		f.ask(3, "unknown=x override=2")
		f.ask(2, "user=a override=7")
		f.want(limiter.TopQuery{}, "override unknown=x 3 1 0/2", "user user=a 2 0 5/7")
		f.want(limiter.TopQuery{Path: "override"}, "override unknown=x 3 1 0/2")
	})
}

func TestTopKeysForgetTheOldestHits(t *testing.T) {
	race.Without(t)
	bubble(t, func(f *topFixture) {
		time.Sleep(2 * time.Second) // a hit at the end of a slice may count for either slice
		for range 20 {              // minutes
			f.ask(1, "nothing=steady")
			time.Sleep(time.Minute)
		}
		top, err := f.TopKeys(f.t.Context(), limiter.TopQuery{Window: limiter.LongWindow})
		if err != nil || len(top.Keys) != 1 || top.Keys[0].Hits < 9 || top.Keys[0].Hits > 10 {
			f.t.Errorf("ten minutes: got %+v, %v; want 9 or 10 hits", top.Keys, err)
		}
		if top.Covers < 9*time.Minute || top.Covers > 10*time.Minute {
			f.t.Errorf("ten minutes cover %v", top.Covers)
		}
		f.want(limiter.TopQuery{}) // the last minute has no hit
		f.ask(4, "nothing=steady")
		f.want(limiter.TopQuery{}, "default nothing=steady 4 0 76/100")
		time.Sleep(54 * time.Second)
		f.want(limiter.TopQuery{}, "default nothing=steady 4 0 76/100")
		time.Sleep(6 * time.Second)
		f.want(limiter.TopQuery{})
		time.Sleep(10 * time.Minute)
		if top, _ := f.TopKeys(f.t.Context(), limiter.TopQuery{}); top.Tracked != 0 {
			f.t.Errorf("after ten minutes without hits %d keys are tracked; want none", top.Tracked)
		}
		time.Sleep(24 * time.Hour) // no timer runs, and the next hit is not one of yesterday
		f.ask(1, "user=new")
		f.want(limiter.TopQuery{Window: limiter.LongWindow}, "user user=new 1 0 9/10")
	})
}

// The busy rule has more keys than are tracked, each with more hits than the keys of the quiet
// rule.
func TestTopKeysOfAQuietRuleStayBesideABusyOne(t *testing.T) {
	bubble(t, func(f *topFixture) {
		for range 18 { // slices of five seconds
			for n := range 600 {
				f.ask(5, fmt.Sprint("nothing=", n))
			}
			for n := range 5 {
				f.ask(1, fmt.Sprint("user=", n))
			}
			time.Sleep(5 * time.Second)
		}
		top, err := f.TopKeys(f.t.Context(), limiter.TopQuery{Path: "user"})
		if err != nil || len(top.Keys) != 5 {
			f.t.Fatalf("got %+v, %v; want the 5 keys of the rule", top.Keys, err)
		}
		for _, k := range top.Keys {
			if k.Hits < 10 || k.Hits > 12 {
				f.t.Errorf("%s: got %d hits of the last minute; want 11", k.Key, k.Hits)
			}
		}
	})
}

func TestTopKeysFollowTheRules(t *testing.T) {
	bubble(t, func(f *topFixture) {
		f.ask(3, "user=a")
		f.ask(2, "two=t")
		f.rules("\n\n" + strings.NewReplacer("requests_per_unit: 10}", "requests_per_unit: 20}", "key: two", "key: three").Replace(topRules))
		f.want(limiter.TopQuery{}, "user user=a 3 0 17/20", "default two=t 2 0 98/100") // the default counts under the same key of an hour
		top, err := f.TopKeys(f.t.Context(), limiter.TopQuery{Path: "user"})
		if err != nil || len(top.Keys) != 1 || top.Keys[0].Rule.Line != 7 {
			f.t.Errorf("after a reload: got %+v, %v; want the new line", top.Keys, err)
		}
		f.rules("domain: other\n")
		f.want(limiter.TopQuery{})
	})
}

func TestTopKeysOfALongText(t *testing.T) {
	bubble(t, func(f *topFixture) {
		long := strings.Repeat("x", 1000)
		f.ask(3, "user="+long)
		top, err := f.TopKeys(f.t.Context(), limiter.TopQuery{Path: "user"})
		if err != nil || len(top.Keys) != 1 {
			f.t.Fatalf("got %+v, %v", top, err)
		}
		k := top.Keys[0]
		if !k.Cut || k.Hits != 3 || k.Remaining != 7 || k.Entries != nil || !strings.HasPrefix(k.Key, "edge|user=xxx") || len(k.Key) > 600 {
			f.t.Errorf("got %+v", k)
		}
	})
}

// failing is a store whose Peek fails.
type failing struct{ *memstore.Store }

func (failing) Peek(context.Context, []store.Charge, []algorithms.Decision) error {
	return errors.New("away")
}

func TestTopKeysWithoutTheStoreAreOfTheLastDecision(t *testing.T) {
	s := must.Get(memstore.New(memstore.Options{}))(t)
	t.Cleanup(s.Close)
	f := &topFixture{fixture: newFixtureOn(t, failing{s}, topRules, limiter.Options{TopKeys: 10}), t: t}
	f.ask(4, "user=a")
	f.want(limiter.TopQuery{Order: limiter.ByUsed}, "user user=a 4 0 6/10 errors 0 0 current false")
}

func TestTopKeysRefuseOtherWindows(t *testing.T) {
	f := newFixtureWith(t, topRules, limiter.Options{TopKeys: 10})
	if _, err := f.TopKeys(t.Context(), limiter.TopQuery{Window: time.Hour}); err == nil || err.Error() != "window: 1h0m0s: must be 1m0s or 10m0s" {
		t.Errorf("got %v", err)
	}
	if _, err := newFixture(t, topRules).TopKeys(t.Context(), limiter.TopQuery{}); !errors.Is(err, limiter.ErrNoTopKeys) {
		t.Errorf("without tracked keys: got %v", err)
	}
}

func TestUsedIsTheHighestAndThe99thPercentOfEachRule(t *testing.T) {
	bubble(t, func(f *topFixture) {
		if got := f.Used(); got != nil {
			f.t.Errorf("before the first hit: got %+v", got)
		}
		f.ask(20, "user=full") // nothing is left
		f.ask(5, "user=half")
		f.ask(1, "user=idle hits=0")
		f.ask(1, "bucket=m,request=r hits=25")
		f.ask(2, "unknown=x override=4")
		used := func() map[string]limiter.RuleUsed {
			all := make(map[string]limiter.RuleUsed)
			for _, u := range f.Used() {
				all[u.Path] = u
			}
			return all
		}
		want := map[string]limiter.RuleUsed{
			"user":     {Domain: "edge", Path: "user", Keys: 2, Highest: 1, P99: 1},
			"bucket":   {Domain: "edge", Path: "bucket", Keys: 1, Highest: 0.25, P99: 0.25},
			"override": {Domain: "edge", Path: "override", Keys: 1, Highest: 0.5, P99: 0.5},
		}
		if diff := cmp.Diff(want, used()); diff != "" {
			f.t.Errorf("used (-want +got):\n%s", diff)
		}
		time.Sleep(30 * time.Second)
		for n := range 60 { // together with the keys before: 62
			f.ask(1, fmt.Sprintf("user=u%d", n))
		}
		if got := used()["user"]; got.Keys != 62 || got.Highest != 1 || got.P99 != 1 {
			f.t.Errorf("got %+v", got)
		}
		time.Sleep(31 * time.Second)
		if got := used()["user"]; got.Keys != 60 || got.Highest != 0.1 || got.P99 != 0.1 {
			f.t.Errorf("a minute later: got %+v", got)
		}
		f.rules("domain: edge\n")
		if got := f.Used(); len(got) != 0 && got[0].Path != "override" {
			f.t.Errorf("without the rules: got %+v", got)
		}
	})
}

// The end of a text is cut off also where the cut is right behind an entry. The entries before it
// may lead to another rule.
func TestTopKeysOfCutTextsHaveNoRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTopFixture(t)
		for n := 400; n < 500; n++ {
			f.ask(1, "user="+strings.Repeat("x", n)+",more="+strings.Repeat("y", 100))
		}
		top, err := f.TopKeys(t.Context(), limiter.TopQuery{})
		if err != nil || len(top.Keys) < 90 {
			t.Fatalf("got %d keys, %v", len(top.Keys), err)
		}
		for _, k := range top.Keys {
			if !k.Cut || k.Rule != nil {
				t.Errorf("got the rule %s, cut %t, for a key of %d bytes", k.Path, k.Cut, len(k.Key))
			}
		}
	})
}

// Rules without limits have no keys that compete: their hits say nothing about the weight of
// others.
func TestAnUnlimitedRuleDoesNotHideWhichRulesAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rules = `
domain: edge
descriptors:
  - {key: free, rate_limit: {unlimited: true}}
  - {key: busy, rate_limit: {unit: hour, requests_per_unit: 1000000}}
  - {key: quiet, rate_limit: {unit: hour, requests_per_unit: 1000000}}
`
		f := &topFixture{fixture: newFixtureWith(t, rules, limiter.Options{TopKeys: 40}), t: t}
		for slice := range 18 {
			f.ask(1, "free=x hits=1000000000")
			for n := range 400 {
				f.ask(8, fmt.Sprintf("busy=%d", n))
				if n%100 == slice%100 {
					f.ask(1, fmt.Sprintf("quiet=%d", n/100))
				}
			}
			time.Sleep(5 * time.Second)
		}
		if got := f.top(limiter.TopQuery{Path: "quiet"}); len(got) != 4 {
			t.Errorf("got the keys %q of the quiet rule; want 4", got)
		}
	})
}
