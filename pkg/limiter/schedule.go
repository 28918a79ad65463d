package limiter

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// now returns the instant that decides about schedules.
func (l *Limiter) now() algorithms.Instant {
	if l.options.Now == nil {
		return algorithms.Instant(time.Now().UnixNano()) //nolint:forbidigo // a schedule must not stand still in a program without a clock
	}
	return algorithms.Instant(l.options.Now().UnixNano())
}

// waitForEdges ends the wait of a denial where a schedule gives the limit larger numbers before.
// The same hits may pass from then on. Grants replace the numbers of a schedule, and end too.
func (v *Verdict) waitForEdges(r *Request) {
	for i := range v.charges {
		d, t := &v.decisions[i], &v.terms[i]
		if d.Allowed || t.grant != nil || t.limit.Schedule() == nil || t.aside() {
			continue
		}
		c := &v.charges[i]
		if at, rises := rises(v.Statuses[c.Rule].Rule, t.limit, r.Descriptors[c.Rule].Entries, v.now); rises {
			d.RetryAfter = min(d.RetryAfter, at.Sub(v.now))
		}
	}
}

// rises is descriptors.Limit.Rises of the limit of a rule that has the schedule of limit.
func rises(r *descriptors.Rule, limit *descriptors.Limit, entries []Entry, now algorithms.Instant) (algorithms.Instant, bool) {
	for n := range r.Limits {
		if r.Limits[n].Schedule() == limit.Schedule() {
			var own descriptors.Limit
			r.LimitFor(n, entries, &own)
			return own.Rises(now)
		}
	}
	return 0, false
}
