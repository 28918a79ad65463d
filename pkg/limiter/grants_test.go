package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

const grantRules = `
domain: edge
default: {unit: minute, requests_per_unit: 7}
descriptors:
  - {key: tenant, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 10, burst: 40}}
  - key: several
    rate_limits:
      - {unit: second, requests_per_unit: 3, name: short}
      - {unit: day, requests_per_unit: 5}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: quota2, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: plan, value: "free_*", share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: log, rate_limit: {algorithm: sliding_window_log, unit: minute, requests_per_unit: 2}}
  - {key: slots, rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: begin, end: end, at_most: 1h}}}
  - {key: tokens, rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 10, hold: {begin: begin, end: end, at_most: 1h}}}
`

// granting is a limiter with grantRules, in a bubble.
type granting struct {
	fixture
	v limiter.Verdict
}

func newGranting(t *testing.T) *granting {
	t.Helper()
	return &granting{fixture: newFixtureWith(t, grantRules, limiter.Options{Now: time.Now})}
}

// entriesOf reads "a=b,c=d".
func entriesOf(text string) (entries []limiter.Entry) {
	for one := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(one, "=")
		entries = append(entries, limiter.Entry{Key: key, Value: value})
	}
	return entries
}

// check takes a hit and returns the status of the only descriptor.
func (g *granting) check(t *testing.T, entries string, change ...func(*limiter.Descriptor)) *limiter.DescriptorStatus {
	t.Helper()
	r := limiter.Request{Domain: "edge"}
	d := r.Add()
	d.Entries = append(d.Entries, entriesOf(entries)...)
	for _, c := range change {
		c(d)
	}
	must.Do(t, g.Check(context.Background(), &r, &g.v))
	return &g.v.Statuses[0]
}

// admits returns how many of 100 hits in a row pass.
func (g *granting) admits(t *testing.T, entries string) (n int) {
	t.Helper()
	for range 100 {
		if !g.check(t, entries).OverLimit {
			n++
		}
	}
	return n
}

// grant returns a grant for an hour.
func grant(id, entries string, gives limiter.Grant) *limiter.Grant {
	gives.ID, gives.Domain, gives.Entries = id, "edge", entriesOf(entries)
	if gives.Until.IsZero() {
		gives.Until = time.Now().Add(time.Hour)
	}
	gives.Given = time.Now()
	return &gives
}

func requests(n uint64) limiter.Grant {
	return limiter.Grant{Gives: limiter.GivesRequests, Requests: n}
}

var unlimited = limiter.Grant{Gives: limiter.GivesUnlimited}

func TestAGrantChangesTheNumbersOfOneKey(t *testing.T) {
	factor := func(f float64) limiter.Grant { return limiter.Grant{Gives: limiter.GivesFactor, Factor: f} }
	named := func(limit string, g limiter.Grant) limiter.Grant { g.Limit = limit; return g }
	for _, c := range []struct {
		name, entries string
		gives         limiter.Grant
		want          int // of 100 hits
	}{
		{"more", "tenant=a", requests(5), 5},
		{"less", "tenant=a", requests(1), 1},
		{"a block", "tenant=a", requests(0), 0},
		{"a factor", "tenant=a", factor(2.5), 5},
		{"a factor never blocks", "tenant=a", factor(0.0001), 1},
		{"unlimited", "tenant=a", unlimited, 100},
		{"a bucket keeps its proportion", "bucket=a", requests(5), 20},
		{"a bucket with a burst", "bucket=a", limiter.Grant{Gives: limiter.GivesRequests, Requests: 5, Burst: 7}, 7},
		{"a bucket by a factor", "bucket=a", factor(0.5), 20},
		{"the default limit", "other=a", requests(9), 9},
		{"a factor for several limits", "several=a", factor(2), 6},
		{"a block of several limits", "several=a", requests(0), 0},
		{"one of several by name", "several=a", named("short", requests(4)), 4}, // denied hits count, so the day is over, too
		{"one of several by name lets the other decide", "several=a", named("short", unlimited), 5},
		{"one of several by label", "several=a", named("fixed_window/1d", requests(2)), 2},
		{"all of several unlimited", "several=a", unlimited, 100},
		{"a pattern with one count", "plan=free_x", requests(4), 4},
		{"a log", "log=a", requests(3), 3},
		{"a quota", "quota=a", requests(3), 3},
		{"an unlimited quota", "quota=a", unlimited, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGranting(t)
				given := grant("g", c.entries, c.gives)
				must.Get(g.Grantable(given))(t)
				g.ChangeGrants(nil, []*limiter.Grant{given})
				if got := g.admits(t, c.entries); got != c.want {
					t.Errorf("got %d of 100 hits, want %d", got, c.want)
				}
				if s := g.check(t, c.entries); s.Never {
					t.Error("the status says that the hits never pass, although the grant ends")
				} else if s.Grant != given && !strings.HasPrefix(c.name, "one of several by name") {
					t.Errorf("the status names grant %v, want %v", s.Grant, given)
				}
				if other := strings.ReplaceAll(c.entries, "=", "=b"); c.entries != "plan=free_x" {
					if s := g.check(t, other); s.Grant != nil {
						t.Errorf("%s has the grant, too", other)
					}
				} else if s := g.check(t, "plan=free_y"); s.Grant != given {
					t.Error("plan=free_y shares the count of plan=free_x, and has no grant")
				}
			})
		})
	}
}

func TestAGrantEndsAtItsInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGranting(t)
		g.ChangeGrants(nil, []*limiter.Grant{grant("g", "tenant=a", limiter.Grant{Gives: limiter.GivesUnlimited, Until: time.Now().Add(time.Second)})})
		time.Sleep(time.Second - 1)
		if s := g.check(t, "tenant=a"); s.Outcome != limiter.Unlimited {
			t.Errorf("a nanosecond before its end: got outcome %v, want Unlimited", s.Outcome)
		}
		time.Sleep(time.Nanosecond)
		if s := g.check(t, "tenant=a"); s.Outcome != limiter.Limited || s.Grant != nil {
			t.Errorf("at its end: got outcome %v, grant %v", s.Outcome, s.Grant)
		}
	})
}

// The count of a key goes on when its grant comes and goes.
func TestTheCountGoesOnUnderAGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGranting(t)
		if n := g.admits(t, "bucket=a"); n != 40 {
			t.Fatalf("got %d hits of a bucket of 40", n)
		}
		g.ChangeGrants(nil, []*limiter.Grant{grant("g", "bucket=a", requests(100))}) // 400 at once
		if s := g.check(t, "bucket=a"); !s.OverLimit {
			t.Errorf("a spent bucket has %d hits as soon as it gets a grant", s.Decision.Remaining)
		}
		time.Sleep(6 * time.Second) // 10 hits by the grant
		if n := g.admits(t, "bucket=a"); n != 10 {
			t.Errorf("after 6 s: got %d hits, want 10", n)
		}
		g.ChangeGrants([]string{"g"}, nil)
		if n := g.admits(t, "bucket=a"); n != 0 {
			t.Errorf("at the end of the grant: got %d hits, want 0", n)
		}
		time.Sleep(6 * time.Second) // 1 hit by the rule
		if n := g.admits(t, "bucket=a"); n != 1 {
			t.Errorf("6 s after the end of the grant: got %d hits, want 1", n)
		}
	})
}

func TestOfTwoGrantsTheLaterOneCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGranting(t)
		first := grant("z", "tenant=a", requests(3))
		time.Sleep(time.Nanosecond)
		second := grant("a", "tenant=a", limiter.Grant{Gives: limiter.GivesRequests, Requests: 4, Until: time.Now().Add(time.Minute)})
		g.ChangeGrants(nil, []*limiter.Grant{second, first})
		if s := g.check(t, "tenant=a"); s.Grant != second {
			t.Errorf("got the grant %v, want the later one", s.Grant)
		}
		time.Sleep(time.Minute)
		if s := g.check(t, "tenant=a"); s.Grant != first {
			t.Errorf("after the end of the later one: got %v, want the earlier one", s.Grant)
		}
		named := grant("n", "several=a", limiter.Grant{Gives: limiter.GivesUnlimited, Limit: "short"})
		time.Sleep(time.Nanosecond)
		all := grant("l", "several=a", requests(1))
		g.ChangeGrants(nil, []*limiter.Grant{named, all})
		g.check(t, "several=a")
		if s := g.check(t, "several=a"); !s.OverLimit || s.Limit.Label() != "fixed_window/1d" {
			t.Errorf("a grant for one limit must count before one for all: got %+v", s)
		}
		block := grant("k", "several=a", requests(0))
		g.ChangeGrants(nil, []*limiter.Grant{block})
		var blocked int
		g.check(t, "several=a")
		for c := range g.v.Charged(0) {
			if c.Grant == block && !c.Decision.Allowed {
				blocked++
			}
		}
		if blocked != 2 {
			t.Errorf("a block of all limits: got %d blocked limits, want both", blocked)
		}
		same := grant("z", "tenant=b", requests(3))
		g.ChangeGrants(nil, []*limiter.Grant{same})
		if s := g.check(t, "tenant=a"); s.Grant != nil {
			t.Errorf("the same ID again: the earlier grant is still in force")
		}
	})
}

func TestGrantsStayWithDomainAndEntriesOverAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGranting(t)
		given := grant("g", "tenant=a", requests(5))
		g.ChangeGrants(nil, []*limiter.Grant{given})
		g.rules("domain: edge\ndescriptors: [{key: tenant, value: a, rate_limit: {unit: hour, requests_per_unit: 1}}]")
		if n := g.admits(t, "tenant=a"); n != 5 {
			t.Errorf("under a new rule: got %d hits, want 5", n)
		}
		g.rules("domain: edge\ndescriptors: [{key: other, rate_limit: {unit: hour, requests_per_unit: 1}}]")
		if s := g.check(t, "tenant=a"); s.Outcome != limiter.NoLimit || s.Grant != nil {
			t.Errorf("without a rule: got %+v", s)
		}
		if _, err := g.Grantable(given); !errors.Is(err, limiter.ErrNotGrantable) {
			t.Errorf("without a rule: got %v, want ErrNotGrantable", err)
		}
		g.ChangeGrants([]string{"g"}, nil) // harmless
		g.ChangeGrants(nil, []*limiter.Grant{given})
		g.rules("domain: edge\ndescriptors: [{key: tenant, rate_limit: {algorithm: sliding_window_log, unit: hour, requests_per_unit: 1}}]")
		if n := g.admits(t, "tenant=a"); n != 5 {
			t.Errorf("after the rule came back with another algorithm: got %d hits, want 5", n)
		}
	})
}

func TestGrantableRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGranting(t)
		for _, c := range []struct {
			name, entries string
			gives         limiter.Grant
			want          string
		}{
			{"a rule without limits", "free=a", requests(1), "no rule with a limit matches"},
			{"a name that is not there", "several=a", limiter.Grant{Gives: limiter.GivesRequests, Limit: "x"}, `rule several has the limits ["fixed_window/1s" "fixed_window/1d"]`},
			{"one number for several limits", "several=a", requests(1), `limit: "": rule several has several such limits: must be one of ["fixed_window/1s" "fixed_window/1d"], or give a factor`},
			{"too much for a log", "log=a", requests(20_000), "must be at most 10000"},
			{"a burst of a window", "tenant=a", limiter.Grant{Gives: limiter.GivesRequests, Requests: 1, Burst: 1}, "only token_bucket has a burst"},
		} {
			if _, err := g.Grantable(grant("g", c.entries, c.gives)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q", c.name, err, c.want)
			}
		}
		stray := grant("g", "tenant=a", requests(1))
		stray.Domain = "egde"
		if _, err := g.Grantable(stray); !errors.Is(err, limiter.ErrNotGrantable) || !strings.HasSuffix(err.Error(), `domain "egde" has no rules`) {
			t.Errorf("a domain without rules: got %v", err)
		}
	})
}

func TestOverridesHaveGrants(t *testing.T) {
	override := func(unit descriptors.Unit) func(*limiter.Descriptor) {
		return func(d *limiter.Descriptor) { d.Override = &limiter.Override{Requests: 50, Unit: unit} }
	}
	for _, c := range []struct {
		name  string
		unit  descriptors.Unit
		gives limiter.Grant
		want  string
	}{
		{"a block", descriptors.Hour, requests(0), "0"},
		{"unlimited", descriptors.Hour, unlimited, "unlimited"},
		{"a factor", descriptors.Hour, limiter.Grant{Gives: limiter.GivesFactor, Factor: 2}, "100"},
		{"a number per the period of the rule", descriptors.Minute, requests(60), "60"},
		{"a number per another period", descriptors.Hour, requests(60), "50"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGranting(t)
				g.ChangeGrants(nil, []*limiter.Grant{grant("g", "tenant=a", c.gives)})
				s, got := g.check(t, "tenant=a", override(c.unit)), "unlimited"
				if s.Outcome == limiter.Limited {
					got = fmt.Sprint(s.Limit.Requests)
				}
				if got != c.want {
					t.Errorf("got %s, want %s", got, c.want)
				}
			})
		})
	}
}

// A quota that a grant makes unlimited has room, so a second quota that is over does not deny the
// request.
func TestAnUnlimitedQuotaHasRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGranting(t)
		g.ChangeGrants(nil, []*limiter.Grant{grant("g", "quota=a", unlimited)})
		for range 3 {
			r := limiter.Request{Domain: "edge"}
			r.Add().Entries = entriesOf("quota=a")
			r.Add().Entries = entriesOf("quota2=a")
			if err := g.Check(t.Context(), &r, &g.v); err != nil || g.v.OverLimit {
				t.Fatalf("got over limit %v, error %v", g.v.OverLimit, err)
			}
		}
		if s := g.v.Statuses; s[0].Outcome != limiter.Unlimited || !s[1].OverLimit {
			t.Errorf("got %+v", s)
		}
		for range g.v.Charged(0) {
			t.Error("the unlimited quota was charged")
		}
	})
}

// A holder that began before a grant without limits gives its hits back at its end, and pays
// nothing.
func TestHoldersUnderGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGranting(t)
		if g.check(t, "slots=a,begin=r1").OverLimit || !g.check(t, "slots=a,begin=r2").OverLimit {
			t.Fatal("one slot: the first must pass, the second not")
		}
		two := grant("two", "slots=a", requests(2))
		g.ChangeGrants(nil, []*limiter.Grant{two})
		if s := g.check(t, "slots=a,begin=r2"); s.OverLimit || s.Grant != two {
			t.Errorf("two slots: got %+v", s)
		}
		g.ChangeGrants([]string{"two"}, []*limiter.Grant{grant("all", "slots=a", unlimited), grant("tokens", "tokens=a", unlimited)})
		if s := g.check(t, "slots=a,begin=r3"); s.Outcome != limiter.Unlimited {
			t.Errorf("without limits: got %+v", s)
		}
		for _, r := range []string{"r1", "r2", "r3"} {
			g.check(t, "slots=a,end="+r)
		}
		hits := func(n uint64) func(*limiter.Descriptor) { return func(d *limiter.Descriptor) { d.Hits = n } }
		g.check(t, "tokens=a,begin=r1", hits(3))
		g.check(t, "tokens=a,end=r1", hits(100))
		g.ChangeGrants([]string{"all", "tokens"}, nil)
		if g.check(t, "slots=a,begin=r4").OverLimit {
			t.Error("the slots of r1 and r2 are not free")
		}
		if s := g.check(t, "tokens=a,begin=r4", hits(1)); s.Decision.Remaining != 9 {
			t.Errorf("a request without limits was charged: %d tokens are left, want 9", s.Decision.Remaining)
		}
	})
}

// A reset forgets the count of a key also while a grant lets the key pass, and Explain names the
// grant.
func TestResetAndExplainUnderAGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGranting(t)
		g.admits(t, "tenant=a")
		all := grant("g", "tenant=a", unlimited)
		g.ChangeGrants(nil, []*limiter.Grant{all})
		r := limiter.Request{Domain: "edge"}
		r.Add().Entries = entriesOf("tenant=a")
		why, err := g.Explain(t.Context(), &r)
		if err != nil || why[0].Status.Grant != all || why[0].Status.Outcome != limiter.Unlimited {
			t.Errorf("got %+v, %v", why, err)
		}
		if _, n, err := g.Reset(t.Context(), &r); n != 1 || err != nil {
			t.Errorf("reset: got %d, %v", n, err)
		}
		five := grant("g", "tenant=a", requests(5))
		g.ChangeGrants(nil, []*limiter.Grant{five})
		why, err = g.Explain(t.Context(), &r)
		if err != nil || len(why[0].Limits) != 1 || why[0].Limits[0].Grant != five || why[0].Limits[0].Limit.Requests != 5 || why[0].Limits[0].Decision.Remaining != 4 {
			t.Errorf("got %+v, %v", why, err)
		}
	})
}
