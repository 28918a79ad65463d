package server

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// softBreach is the header of answers about keys that have reached the first mark of warn_at, as in
// envoyproxy/ratelimit's pull request 1215. A rule with warn_at asks for the header.
const softBreach = "x-ratelimit-soft-breach"

func (h *Headers) append(b []byte, v *limiter.Verdict) []byte {
	if h.RateLimit {
		if s := nearest(v); s != nil {
			b = appendHeader(b, h.Limit, strconv.FormatUint(uint64(max(s.Limit.Requests, s.Limit.Capacity())), 10))
			b = appendHeader(b, h.Remaining, strconv.FormatUint(uint64(s.Decision.Remaining), 10))
			b = appendHeader(b, h.Reset, strconv.FormatUint(untilReset(s), 10))
		}
	}
	if h.IETF {
		if policies := policiesOf(v); len(policies) > 0 {
			quota, rest := fieldsOf(policies)
			b = appendHeader(appendHeader(b, "RateLimit-Policy", quota), "RateLimit", rest)
		}
	}
	if h.RetryAfter && v.OverLimit {
		if wait, ok := retryAfter(v); ok {
			b = appendHeader(b, "retry-after", strconv.FormatUint(max(seconds(wait), 1), 10))
		}
	}
	return b
}

// untilReset returns the seconds until the hits of a status would pass; until the key is idle, if
// they pass now or never.
func untilReset(s *limiter.DescriptorStatus) uint64 {
	if s.OverLimit && !s.Never {
		return seconds(s.Decision.RetryAfter)
	}
	return seconds(s.Decision.ResetAfter)
}

// appendHeader appends a config.core.v3.HeaderValue as one of response_headers_to_add.
func appendHeader(b []byte, name, value string) []byte {
	b, inner := open(b, 3)
	return shut(appendString(appendString(b, 1, name), 2, value), inner)
}

// nearest returns the status for the headers, nil when no descriptor has a limit. As in
// envoyproxy/ratelimit, the last status that is over limit and not a quota wins, else the first
// with the least remaining.
func nearest(v *limiter.Verdict) *limiter.DescriptorStatus {
	var best *limiter.DescriptorStatus
	denied := false
	for i := range v.Statuses {
		s := &v.Statuses[i]
		switch {
		case s.Outcome != limiter.Limited:
		case s.OverLimit && !isQuota(s):
			best, denied = s, true
		case !denied && (best == nil || s.Decision.Remaining < best.Decision.Remaining):
			best = s
		}
	}
	return best
}

// retryAfter returns the wait after which a request that is over limit would pass without other
// traffic. Every limit that denies alone must have room then, and at least one quota. Without such
// a wait ok is false.
func retryAfter(v *limiter.Verdict) (wait time.Duration, ok bool) {
	quota := time.Duration(-1) // -1: of all spent quotas, each one denies the hits for ever
	quotas, spent := 0, 0
	ok = true
	for i := range v.Statuses {
		s := &v.Statuses[i]
		switch {
		case s.Outcome != limiter.Limited, s.Group > 0:
		case !isQuota(s):
			if s.OverLimit {
				wait, ok = max(wait, s.Decision.RetryAfter), ok && !s.Never
			}
		default:
			quotas++
			if s.OverLimit {
				if spent++; !s.Never && (quota < 0 || s.Decision.RetryAfter < quota) {
					quota = s.Decision.RetryAfter
				}
			}
		}
	}
	if quotas > 0 && spent == quotas {
		wait, ok = max(wait, quota), ok && quota >= 0
	}
	if len(v.Groups) > 0 {
		first, can := groupAfter(v)
		wait, ok = max(wait, first), ok && can
	}
	return wait, ok
}

// groupAfter returns the wait until a group has room: until each of its limits has. Without such a
// wait ok is false.
func groupAfter(v *limiter.Verdict) (first time.Duration, ok bool) {
	for g := range v.Groups {
		wait, can := time.Duration(0), true
		for i := range v.Statuses {
			if s := &v.Statuses[i]; s.Group == g+1 && s.OverLimit {
				wait, can = max(wait, s.Decision.RetryAfter), can && !s.Never
			}
		}
		if can && (!ok || wait < first) {
			first, ok = wait, true
		}
	}
	return first, ok
}

// isQuota reports whether the limit counts as a quota. Shadow mode goes before quota mode.
func isQuota(s *limiter.DescriptorStatus) bool {
	return s.Quota && (s.Overridden || s.Rule == nil || !s.Rule.Shadow)
}

// policy is a limit of a request as in draft-ietf-httpapi-ratelimit-headers-11. Section 3 has the
// quota (RateLimit-Policy), section 4 the rest of the quota (RateLimit).
type policy struct {
	limit     *descriptors.Limit
	name      string // unique in one answer
	reported  bool   // a status reports the limit; the rest is set
	remaining uint32
	seconds   uint64
}

// policiesOf returns the limits that the request was charged for. Of several reports of one limit,
// the least remaining counts.
func policiesOf(v *limiter.Verdict) []policy {
	var all []policy
	for i := range v.Statuses {
		s := &v.Statuses[i]
		if s.Outcome != limiter.Limited {
			continue
		}
		for c := range v.Charged(i) { // of a rule with a table, not the limits in the rule
			all = add(all, c.Limit)
		}
		p := &all[slices.IndexFunc(all, func(p policy) bool { return p.limit == s.Limit })]
		if !p.reported || s.Decision.Remaining < p.remaining {
			p.reported, p.remaining, p.seconds = true, s.Decision.Remaining, untilReset(s)
		}
	}
	return all
}

// add adds a policy for a limit, unless there is one.
func add(all []policy, limit *descriptors.Limit) []policy {
	if slices.ContainsFunc(all, func(p policy) bool { return p.limit == limit }) {
		return all
	}
	base := cmp.Or(limit.Name, limit.PeriodName())
	name := base
	for n := 2; slices.ContainsFunc(all, func(p policy) bool { return p.name == name }); n++ {
		name = base + "-" + strconv.Itoa(n)
	}
	return append(all, policy{limit: limit, name: name})
}

// fieldsOf returns the values of RateLimit-Policy and RateLimit:
//
//	"minute";q=100;w=60, "daily";q=1000;w=86400
//	"minute";r=50;t=30
//
// A limit that is not full at Requests also has its capacity: `"second";q=20;w=1;burst=100`. A
// calendar's window has its true length. A period that is not whole seconds goes without its
// window, which the draft cannot express. Concurrency has a unit of its own there:
// `"concurrency";q=50;qu="concurrent-requests"`.
func fieldsOf(all []policy) (policies, limits string) {
	var quota, rest []byte
	for i := range all {
		p := &all[i]
		quota = fmt.Appendf(appendItem(quota, p.name), ";q=%d", p.limit.Requests)
		if p.limit.Period == 0 {
			quota = append(quota, `;qu="concurrent-requests"`...)
		} else if length := windowOf(p.limit, time.Now()); length%time.Second == 0 {
			quota = fmt.Appendf(quota, ";w=%d", length/time.Second)
		}
		if capacity := p.limit.Capacity(); capacity != p.limit.Requests {
			quota = fmt.Appendf(quota, ";burst=%d", capacity)
		}
		if p.reported {
			rest = fmt.Appendf(appendItem(rest, p.name), ";r=%d;t=%d", p.remaining, p.seconds)
		}
	}
	return string(quota), string(rest)
}

// windowOf returns the length of the limit's window at an instant: of a calendar, the true one.
func windowOf(l *descriptors.Limit, now time.Time) time.Duration {
	if l.Calendar == nil || l.Calendar.FirstHit() {
		return l.Period
	}
	start, end := l.Calendar.Window(algorithms.Instant(now.UnixNano()))
	return end.Sub(start)
}

// appendItem begins an item of a list with its name as a String of RFC 9651, section 3.3.3, which
// knows printable ASCII only.
func appendItem(b []byte, name string) []byte {
	if len(b) > 0 {
		b = append(b, ", "...)
	}
	b = append(b, '"')
	for _, r := range name {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r > '~':
			b = append(b, '?')
		default:
			b = append(b, byte(r))
		}
	}
	return append(b, '"')
}
