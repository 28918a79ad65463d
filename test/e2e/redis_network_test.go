package e2e

import (
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

func TestANetworkThatFailsCostsNoErrorAndWhenItIsBackTheLimitsHold(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		disturb func(*parts.Proxy)
		exact   bool // the requests during the fault have not reached Redis
	}{
		{"latency beyond the timeout", func(p *parts.Proxy) { p.Latency(2*fleetTimeout, fleetTimeout/5) }, false},
		{"connections reset", (*parts.Proxy).Reset, false},
		{"connections half open", (*parts.Proxy).HalfOpen, true},
		{"answers lost", (*parts.Proxy).Mute, false},
		{"nobody there", (*parts.Proxy).Down, true},
		{"garbage between answers", (*parts.Proxy).Garbage, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := startRedis(t, parts.RedisOptions{})
			p := parts.ProxyFor(t, r.Address())
			f := startFleet(t, urlOf(p.Address()))
			f.awaitState(t, "closed")
			f.holds(t)
			traffic := f.begin(t)
			user := f.use(t, 12, "window")

			before := f.opened(t)
			test.disturb(p)
			if got := f.admitted(t, 2, "window", user); got != 4 {
				t.Errorf("while it is broken %d of 4 requests passed", got)
			}
			f.awaitOpened(t, before)
			traffic.awaitMore(t, 50)

			p.Clear()
			if err := p.Up(); err != nil {
				t.Fatal(err)
			}
			f.awaitQuiet(t)
			if test.exact {
				f.left(t, few-12-4, "window", user)
			} else if got := f.clients[0].probe(t, "window", user); got > few-12-4 {
				t.Errorf("%d hits are left, want at most %d: hits may count twice, and never not at all", got, few-12-4)
			}
			f.holds(t)
			f.finish(t)
		})
	}
}

func TestConnectionsCutOnceAreMadeAnewWithoutAnError(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	p := parts.ProxyFor(t, r.Address())
	f := startFleet(t, urlOf(p.Address()))
	f.awaitState(t, "closed")
	traffic := f.begin(t)
	for range 10 {
		if err := p.Cut(); err != nil {
			t.Fatal(err)
		}
		traffic.awaitMore(t, 20)
	}
	f.awaitQuiet(t)
	f.holds(t)
	f.finish(t)
}
