package shared

import (
	"math"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// nothing is denial.hits where no hits of the key were denied.
const nothing = math.MaxInt64

// denial is a key of a denied request: the state that the remote store left, with the hits counted
// here since. Package algorithms decides on that state at the store's instant now. Other processes
// can only have taken more since. So a denial is wrong only after a refund or a reset elsewhere,
// and only for Options.Denials. Fewer hits than were denied are for the remote store, and so is
// another limit. A denial has no clock and no lock. A time.Duration is an instant by Store.now.
type denial struct {
	limit algorithms.Limit
	hits  int64               // fewest that were denied; nothing for another key of the request
	until algorithms.Instant  // when these hits would pass if nothing else came
	told  algorithms.Instant  // of the answer, by the store's clock
	heard time.Duration       // when the answer came
	state store.State         // as the request left the key, with the hits counted here since
	log   algorithms.Decision // of an algorithm without a state
}

// newDenial returns the denial of the key of a charge of a denied request; nil if memory could not
// answer with it. Without a state, a decision does not say how hits that count change a key, nor
// when more hits than ever fit would pass.
func newDenial(c *store.Charge, told *store.State, decision *algorithms.Decision, now time.Duration) *denial {
	if c.Hits < 0 || !c.Limit.Algorithm.HasState() && c.Limit.Requests > 0 && (c.CountRejected || c.Hits > int64(c.Limit.Requests)) {
		return nil
	}
	d := &denial{limit: c.Limit, hits: nothing, told: told.Now, heard: now, state: *told, log: *decision}
	if !decision.Allowed && (c.Hits > 0 || c.Limit.Algorithm == algorithms.Escalation) {
		d.hits, d.until = c.Hits, d.told.Add(decision.RetryAfter)
	}
	return d
}

// instant returns the instant by the store's clock: the one of the answer, and the time since.
func (d *denial) instant(now time.Duration) algorithms.Instant { return d.told.Add(now - d.heard) }

// decide decides a charge at an instant by the store's clock, and reports whether the denial
// suffices. A denial of maxAge or older does not.
func (d *denial) decide(c *store.Charge, at algorithms.Instant, maxAge time.Duration, to *algorithms.Decision) bool {
	age := at.Sub(d.told)
	if d.limit != c.Limit || age >= maxAge || age < 0 {
		return false
	}
	if !c.Limit.Algorithm.HasState() {
		return d.decideLog(c, age, to)
	}
	state := d.state
	*to = state.Take(c.Limit, at, c.Hits, c.CountRejected)
	return to.Allowed || c.Hits >= d.hits && at < d.until
}

// decideLog is decide for an algorithm without a state: the decision counts down with the age of
// the answer.
func (d *denial) decideLog(c *store.Charge, age time.Duration, to *algorithms.Decision) bool {
	*to = d.log
	switch {
	case c.Limit.Requests == 0:
		return c.Hits >= d.hits // always denied, with the same waits
	case c.CountRejected:
		return false
	}
	to.ResetAfter = max(to.ResetAfter-age, 0)
	if to.Allowed {
		return c.Hits <= int64(to.Remaining)
	}
	to.RetryAfter -= age
	return c.Hits == d.hits && to.RetryAfter > 0
}

// left returns the decision about a charge that would have been allowed, as the denied request
// leaves its key.
func (d *denial) left(c *store.Charge, at algorithms.Instant) algorithms.Decision {
	state := d.state
	to := state.Take(c.Limit, at, 0, false)
	to.Allowed, to.RetryAfter = true, 0
	return to
}
