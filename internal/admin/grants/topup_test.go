package grants

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// adding returns a grant of more hits for tenant=NAME.
func adding(name string, hits uint32) limiter.Grant {
	g := of(name, hits)
	g.Gives, g.Until = limiter.GivesAdd, time.Time{}
	return g
}

func TestAddedHitsOutliveARestartAndEndWithTheWindow(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := in(t, dir) // the clock begins with a minute
		first, _ := p.give(t, adding("a", 3))
		second, replaced := p.give(t, adding("a", 4))
		if replaced != nil || first.ID == second.ID {
			t.Errorf("grant %s replaced %v", second.ID, replaced)
		}
		p.give(t, of("a", 10))
		p.wantLimit(t, "a", 17)
		p.end()
		p = in(t, dir)
		p.wantLimit(t, "a", 17)
		all := p.List()
		if len(all) != 3 || !all[0].Until.Equal(time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC)) {
			t.Errorf("the list is %v", all)
		}
		if _, _, err := p.Revoke(t.Context(), first.ID, "me"); err != nil {
			t.Error(err)
		}
		p.wantLimit(t, "a", 14)
		time.Sleep(time.Minute - 1)
		p.wantLimit(t, "a", 14)
		time.Sleep(time.Nanosecond)
		p.wantLimit(t, "a", 10)
		if text := p.log.String(); strings.Count(text, `msg="a grant has ended"`) > 1 {
			t.Errorf("the log:\n%s", text)
		}
	})
}

func TestAddedHitsFollowStepsOfTheWallClock(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var c clock
		c.step(time.Hour)
		p := c.at(t, dir)
		p.give(t, adding("a", 3))
		for range 2 {
			for _, step := range []struct {
				ahead time.Duration
				want  uint32
			}{{time.Hour + 10*time.Second, 5}, {2 * time.Hour, 2}, {time.Hour, 5}, {time.Minute, 2}, {time.Hour, 5}} {
				c.step(step.ahead)
				p.wantLimit(t, "a", step.want)
			}
			p.end()
			p = c.at(t, dir)
			p.wantLimit(t, "a", 5)
		}
	})
}

func TestAddedHitsAreRefusedWithAllMistakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, nil)
		g := adding("a", 3)
		g.Until = time.Now().Add(time.Hour)
		if _, _, err := p.Grant(t.Context(), g); err == nil || err.Error() != "grant: until: goes not with add, as the window has an end" {
			t.Errorf("with an end: got %v", err)
		}
		g = adding("a", 0)
		g.Reason = ""
		if _, _, err := p.Grant(t.Context(), g); !errors.Is(err, limiter.ErrInvalidGrant) ||
			err.Error() != "grant: add: 0: must be at least 1\ngrant: reason: 0 bytes, must be 1 to 500" {
			t.Errorf("got %v", err)
		}
		p.give(t, of("a", 0))
		if _, _, err := p.Grant(t.Context(), adding("a", 3)); !errors.Is(err, limiter.ErrInvalidGrant) {
			t.Errorf("beside a block: got %v", err)
		}
		if n := len(p.List()); n != 1 {
			t.Errorf("%d grants, want the block", n)
		}
	})
}

func TestAddedHitsSumUpOverAllProcessesOfOneRedis(t *testing.T) {
	r := startRedis(t)
	a, b := join(t, r), join(t, r)
	for _, p := range []*process{a, b} {
		p.load(t, "domain: edge\ndescriptors: [{key: tenant, rate_limit: {unit: year, requests_per_unit: 2}}]\n")
	}
	a.give(t, adding("x", 3))
	given, _ := b.give(t, adding("x", 4))
	soonLimit(t, "x", 9, a, b)
	c := join(t, r)
	c.load(t, "domain: edge\ndescriptors: [{key: tenant, rate_limit: {unit: year, requests_per_unit: 2}}]\n")
	c.wantLimit(t, "x", 9)
	if _, _, err := a.Revoke(t.Context(), given.ID, "me"); err != nil {
		t.Error(err)
	}
	soonLimit(t, "x", 5, a, b, c)
}
