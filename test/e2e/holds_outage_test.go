package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/test/parts"
)

// hold sends the begin or the end of a holder of alice, and reports whether the request passes.
func (c client) hold(t *testing.T, domain, phase, holder string, hits int) bool {
	t.Helper()
	return c.outcome(t.Context(), &ratelimitv3.RateLimitRequest{Domain: domain, Descriptors: []*commonv3.RateLimitDescriptor{{
		Entries:    []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "alice"}, {Key: phase, Value: holder}},
		HitsAddend: wrapperspb.UInt64(uint64(hits)),
	}}}) == "OK"
}

// crowded is a fleet whose requests are named by a sidecar and a number.
type crowded struct {
	*fleet
	t      *testing.T
	domain string
	number int
}

// begin sends the begin of a new holder to a sidecar, and returns its name.
func (c *crowded) begin(sidecar, hits int) (holder string, passed bool) {
	c.t.Helper()
	c.number++
	holder = fmt.Sprintf("%d-%d", sidecar, c.number)
	return holder, c.clients[sidecar].hold(c.t, c.domain, "request", holder, hits)
}

// end sends the end of a holder to its sidecar.
func (c *crowded) end(sidecar int, holder string, hits int) {
	c.t.Helper()
	if !c.clients[sidecar].hold(c.t, c.domain, "request_done", holder, hits) {
		c.t.Errorf("the end of %s was denied", holder)
	}
}

// fill begins holders at a sidecar until one is denied, which ends then. The result is the holders
// that were admitted.
func (c *crowded) fill(sidecar int) (holders []string) {
	c.t.Helper()
	for {
		holder, passed := c.begin(sidecar, 1)
		if !passed {
			c.end(sidecar, holder, 1)
			return holders
		}
		if holders = append(holders, holder); len(holders) > 100 {
			c.t.Fatal("a hundred requests have passed")
		}
	}
}

// awaitAway asks each sidecar until it decides without Redis.
func (c *crowded) awaitAway(before []int) {
	c.t.Helper()
	for i, s := range c.sidecars {
		parts.Eventually(c.t, func() string {
			if s.metric(c.t, "weir_store_opened_total") > before[i] {
				return ""
			}
			c.clients[i].hold(c.t, c.domain, "request", "a question", 0)
			return "the breaker has not opened"
		})
	}
}

// startCrowded starts two sidecars that share a Redis behind a proxy. fresh starts one that asks
// the Redis itself: after the outage, as limits are divided by the sidecars that were there before.
func startCrowded(t *testing.T, domain, rules string) (c *crowded, r *parts.Redis, p *parts.Proxy, fresh func() client) {
	t.Helper()
	r = startRedis(t, parts.RedisOptions{})
	p = parts.ProxyFor(t, r.Address())
	c = &crowded{fleet: &fleet{}, t: t, domain: domain}
	for range 2 {
		c.start(t, rules, urlOf(p.Address()), "--fleet-size=2")
	}
	c.awaitState(t, "closed")
	return c, r, p, sync.OnceValue(func() client {
		third := &fleet{}
		third.start(t, rules, urlOf(r.Address()), patientFleet)
		third.awaitState(t, "closed")
		return third.clients[0]
	})
}

// onOutages runs a test with each way in which Redis can be away. away begins an outage, and
// returns its end.
func onOutages(t *testing.T, test func(t *testing.T, away func(r *parts.Redis, p *parts.Proxy) (end func()))) {
	t.Helper()
	for name, d := range map[string]disturbance{"stopped": {stops: true}, "unreachable": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, func(r *parts.Redis, p *parts.Proxy) func() { return outage(t, r, p, d) })
		})
	}
	t.Run("each answer is lost", func(t *testing.T) {
		t.Parallel()
		test(t, func(_ *parts.Redis, p *parts.Proxy) func() {
			p.Mute()
			return p.Clear
		})
	})
}

func TestSlotsAroundAnOutageAreHeldOnceAndFreedByTheirEnds(t *testing.T) {
	t.Parallel()
	onOutages(t, func(t *testing.T, away func(*parts.Redis, *parts.Proxy) func()) {
		t.Helper()
		c, r, p, fresh := startCrowded(t, "e2e", slots(10, long))
		held := map[int][]string{}
		for range 2 {
			for i := range 2 {
				holder, passed := c.begin(i, 1)
				if !passed {
					t.Fatal("a begin with Redis was denied")
				}
				held[i] = append(held[i], holder)
			}
		}
		for _, client := range c.clients {
			awaitLeft(t, client, "e2e", "alice", 6) // each sidecar has seen four slots held
		}
		breakers := c.opened(t)
		end := away(r, p)
		c.awaitAway(breakers)
		for i := range 2 {
			got := c.fill(i)
			if len(got) != 3 {
				t.Errorf("sidecar %d admits %d requests, want half of the six free slots", i, len(got))
			}
			held[i] = append(held[i], got...)
		}
		c.end(0, held[0][0], 1) // has begun with Redis: no sidecar knows whether that frees a slot
		held[0] = held[0][1:]
		if got := c.fill(0); len(got) != 0 {
			t.Errorf("sidecar 0 admits %d requests after the end of a holder that only Redis knows, want none", len(got))
		}
		last := held[1][len(held[1])-1]
		c.end(1, last, 1)
		held[1] = held[1][:len(held[1])-1]
		if got := c.fill(1); len(got) != 1 {
			t.Errorf("sidecar 1 admits %d requests after the end of a holder that it knows, want one", len(got))
		} else {
			held[1] = append(held[1], got...)
		}
		end()
		awaitLeft(t, fresh(), "e2e", "alice", 1) // nine requests are in flight
		for i := range 2 {
			for _, holder := range held[i] {
				c.end(i, holder, 1)
			}
		}
		awaitLeft(t, fresh(), "e2e", "alice", 10)
		c.awaitState(t, "closed")
		for i := range 2 {
			awaitLeft(t, c.clients[i], "e2e", "alice", 10)
		}
	})
}

func TestSlotsAreFreeAtMostLaterIfNoEndComesAfterAnOutage(t *testing.T) {
	t.Parallel()
	const atMost = 5 * time.Second
	c, r, p, fresh := startCrowded(t, "e2e", slots(10, atMost))
	begun := time.Now()
	c.begin(0, 2)
	c.begin(1, 2)
	for _, client := range c.clients {
		awaitLeft(t, client, "e2e", "alice", 6) // each sidecar has seen four slots held
	}
	breakers := c.opened(t)
	end := outage(t, r, p, disturbance{stops: true})
	c.awaitAway(breakers)
	held := 4
	for i := range 2 {
		held += len(c.fill(i))
	}
	if time.Since(begun) < atMost && held != 10 {
		t.Errorf("%d slots are held, want ten", held)
	}
	c.sidecars[1].stopped = true
	c.sidecars[1].Kill()
	end()
	awaitLeft(t, fresh(), "e2e", "alice", 10)
	c.sidecars = c.sidecars[:1]
	c.awaitState(t, "closed")
	parts.Eventually(t, func() string { // slots stay divided until each sidecar has told its holders, also the killed one
		if _, passed := c.begin(0, 10); !passed {
			return "ten slots are free, and a request for ten is denied"
		}
		return ""
	})
}

func TestTokensAroundAnOutageAreChargedTheTruth(t *testing.T) {
	t.Parallel()
	onOutages(t, func(t *testing.T, away func(*parts.Redis, *parts.Proxy) func()) {
		t.Helper()
		const limit = 10_000
		c, r, p, fresh := startCrowded(t, "llm", tokens(limit))
		type request struct {
			sidecar int
			holder  string
			passed  bool
		}
		truth, running := 0, []request{}
		begin := func(n, hits int) {
			for i := range n {
				holder, passed := c.begin(i%2, hits)
				running = append(running, request{i % 2, holder, passed})
			}
		}
		end := func(n int) {
			for range n {
				q := running[0]
				running = running[1:]
				cost := 20 + len(running)
				c.end(q.sidecar, q.holder, cost)
				if q.passed {
					truth += cost
				}
			}
		}
		begin(20, 50)
		end(6)
		for _, client := range c.clients {
			awaitLeft(t, client, "llm", "alice", limit-truth-14*50)
		}
		breakers := c.opened(t)
		back := away(r, p)
		begin(20, 60)
		c.awaitAway(breakers)
		begin(20, 30)
		begin(4, limit) // denied
		end(24)
		back()
		begin(4, 40)
		end(len(running))
		awaitLeft(t, fresh(), "llm", "alice", limit-truth)
	})
}
