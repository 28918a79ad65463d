package limiter_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

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
