package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/limiter"
)

const addRules = grantRules + `  - {key: ban, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: counter, rate_limit: {algorithm: sliding_window_counter, unit: minute, requests_per_unit: 2}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 5, align: {to: calendar, day: 2}}}
  - {key: first, rate_limit: {unit: day, requests_per_unit: 5, align: {to: first_hit}}}
`

func newAdding(t *testing.T) *granting {
	t.Helper()
	return &granting{fixture: newFixtureWith(t, addRules, limiter.Options{Now: time.Now})}
}

// add gives a key more hits, as a Keeper does, and returns the grant.
func (g *granting) add(t *testing.T, id, entries string, hits uint64) *limiter.Grant {
	t.Helper()
	add := grant(id, entries, limiter.Grant{Gives: limiter.GivesAdd, Requests: hits, Reason: "r"})
	must.Do(t, g.TopUp(context.Background(), add))
	must.Do(t, add.Validate(time.Now()))
	g.ChangeGrants(nil, []*limiter.Grant{add})
	return add
}

// wantAdmits checks how many of 100 further hits pass.
func (g *granting) wantAdmits(t *testing.T, entries string, want int) {
	t.Helper()
	if got := g.admits(t, entries); got != want {
		t.Errorf("%s: %d hits pass, want %d", entries, got, want)
	}
}

// Denied hits count in a fixed_window. Added hits are above these.
func TestAddedHitsSumUpAndEndWithTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newAdding(t) // the clock begins with a minute
		g.wantAdmits(t, "tenant=a", 2)
		g.add(t, "1", "tenant=a", 3)
		time.Sleep(59 * time.Second)
		three := func(d *limiter.Descriptor) { d.Hits = 3 }
		if g.check(t, "tenant=a", three).OverLimit || !g.check(t, "tenant=a", three).OverLimit {
			t.Error("three added hits are not one request of three")
		}
		g.add(t, "2", "tenant=a", 1)
		g.add(t, "3", "tenant=a", 4)
		g.wantAdmits(t, "tenant=b", 2)
		time.Sleep(time.Second - 1)
		g.wantAdmits(t, "tenant=a", 5)
		time.Sleep(time.Nanosecond)
		g.wantAdmits(t, "tenant=a", 2)
	})
}

func TestAddedHitsAreBesideOtherGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newAdding(t)
		g.add(t, "1", "tenant=a", 3)
		put := func(other limiter.Grant) { g.ChangeGrants(nil, []*limiter.Grant{grant("other", "tenant=a", other)}) }
		put(requests(5))
		if s := g.check(t, "tenant=a"); s.Grant.ID != "other" || s.Limit.Requests != 8 {
			t.Errorf("the limit is %d by grant %s, want 8 by the other one", s.Limit.Requests, s.Grant.ID)
		}
		put(limiter.Grant{Gives: limiter.GivesFactor, Factor: 2})
		if s := g.check(t, "tenant=a"); s.Limit.Requests != 7 {
			t.Errorf("the limit is %d, want 7", s.Limit.Requests)
		}
		put(requests(0)) // a block counts alone
		g.wantAdmits(t, "tenant=a", 0)
		put(unlimited)
		g.wantAdmits(t, "tenant=a", 100)
		g.ChangeGrants([]string{"other"}, nil)
		if s := g.check(t, "tenant=a"); s.Grant.ID != "1" || s.Limit.Requests != 5 {
			t.Errorf("the limit is %d by grant %s, want 5 by grant 1", s.Limit.Requests, s.Grant.ID)
		}
	})
}

func TestAddedHitsAreForTheWindowOfTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newAdding(t) // 1 January 2000, 00:00
		month := g.add(t, "1", "month=a", 4)
		if got, want := fmt.Sprint(month.From.UTC(), month.Until.UTC()), "1999-12-02 00:00:00 +0000 UTC 2000-01-02 00:00:00 +0000 UTC"; got != want {
			t.Errorf("the month is %s, want %s", got, want)
		}
		g.wantAdmits(t, "month=a", 9)
		time.Sleep(time.Until(month.Until) - 1)
		g.wantAdmits(t, "month=a", 0)
		time.Sleep(time.Nanosecond)
		g.wantAdmits(t, "month=a", 5)

		time.Sleep(30 * time.Minute)
		add := grant("2", "first=a", limiter.Grant{Gives: limiter.GivesAdd, Requests: 2})
		if err := g.TopUp(t.Context(), add); !errors.Is(err, limiter.ErrInvalidGrant) {
			t.Errorf("a key without a window: got %v", err)
		}
		g.wantAdmits(t, "first=a", 5)
		time.Sleep(time.Hour)
		first := g.add(t, "2", "first=a", 2)
		if got := time.Until(first.Until); got != 23*time.Hour {
			t.Errorf("the window ends in %v, want 23h", got)
		}
		g.wantAdmits(t, "first=a", 2)
	})
}

func TestAddedHitsHaveNoEffectBeforeTheirWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead := time.Hour
		g := &granting{fixture: newFixtureWith(t, addRules, limiter.Options{Now: func() time.Time { return time.Now().Add(ahead) }})}
		g.add(t, "1", "tenant=a", 3)
		if s := g.check(t, "tenant=a"); s.Limit.Requests != 5 {
			t.Errorf("the limit is %d, want 5", s.Limit.Requests)
		}
		ahead = 0 // the clock goes back to an earlier window
		if s := g.check(t, "tenant=a"); s.Limit.Requests != 2 {
			t.Errorf("after the step the limit is %d, want 2", s.Limit.Requests)
		}
	})
}

func TestHitsCannotBeAddedEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newAdding(t)
		g.ChangeGrants(nil, []*limiter.Grant{grant("b", "tenant=blocked", requests(0)), grant("u", "tenant=free", unlimited)})
		for range limiter.MaxAdds {
			g.add(t, fmt.Sprint(time.Now().UnixNano()), "tenant=many", 1)
			time.Sleep(time.Nanosecond)
		}
		for _, c := range []struct {
			entries, limit string
			hits           uint64
			want           string
		}{
			{"bucket=a", "", 1, "grant: add: 1: token_bucket/1m has no windows that begin anew, must be fixed_window; give requests or a factor"},
			{"counter=a", "", 1, "grant: add: 1: sliding_window_counter/1m has no windows that begin anew, must be fixed_window; give requests or a factor"},
			{"ban=a", "", 1, "grant: add: 1: fixed_window/1m denies every hit; give requests"},
			{"several=a", "", 1, `grant: limit: "": rule several has several such limits: must be one of ["fixed_window/1s" "fixed_window/1d"], or give a factor`},
			{"several=a", "short", 1, ""},
			{"tenant=blocked", "", 1, "grant: add: 1: grant b blocks the key until 2000-01-01T01:00:00Z; revoke that grant first"},
			{"tenant=free", "", 1, "grant: add: 1: grant u lets everything pass until 2000-01-01T01:00:00Z"},
			{"tenant=a", "", 4294967294, ""},
			{"tenant=a", "", 9007199254740990, "grant: add: 9007199254740990: must be at most 9007199254740989, as the limit is 2 now"},
			{"tenant=many", "", 1, "grant: add: 1: 100 grants add hits to this window, must be at most 100"},
		} {
			add := grant("x", c.entries, limiter.Grant{Gives: limiter.GivesAdd, Requests: c.hits, Limit: c.limit})
			if _, err := g.Grantable(add); c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
				t.Errorf("%s:\ngot  %v\nwant %s", c.entries, err, c.want)
			}
		}
	})
}

func TestAddedHitsOfAReloadedRuleStayWithinItsAlgorithm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newAdding(t)
		g.add(t, "1", "tenant=a", 3)
		g.rules("domain: edge\ndescriptors: [{key: tenant, rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 4}}]\n")
		if s := g.check(t, "tenant=a"); s.Limit.Requests != 4 || s.Grant != nil {
			t.Errorf("the limit is %d by %v, want 4 without a grant", s.Limit.Requests, s.Grant)
		}
	})
}
