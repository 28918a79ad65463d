// Package headers has the values of the headers about limits that go to a client. Envoy's answers
// and the middleware of Go programs have the same.
package headers

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// UntilReset returns the seconds until the hits of a status would pass; until the key is idle, if
// they pass now or never.
func UntilReset(s *limiter.DescriptorStatus) uint64 {
	if s.OverLimit && !s.Never {
		return Seconds(s.Decision.RetryAfter)
	}
	return Seconds(s.Decision.ResetAfter)
}

// Room is room for the policies of a usual request, see AppendPolicies.
type Room [8]Policy

// Capacity returns the number in the header RateLimit-Limit.
func Capacity(s *limiter.DescriptorStatus) uint64 {
	return Shown(max(s.Limit.PerPeriod(), s.Limit.Capacity()))
}

// Wait returns RetryAfter in the seconds of the header Retry-After, at least 1.
func Wait(v *limiter.Verdict) (seconds uint64, ok bool) {
	wait, ok := RetryAfter(v)
	return max(Seconds(wait), 1), ok
}

// Nearest returns the status for the headers, nil when no descriptor has a limit. As in
// envoyproxy/ratelimit, the last status that is over limit and not a quota wins, else the first
// with the least remaining.
func Nearest(v *limiter.Verdict) *limiter.DescriptorStatus {
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

// RetryAfter returns the wait after which a request that is over limit would pass without other
// traffic. Every limit that denies alone must have room then, and at least one quota. Without such
// a wait ok is false.
func RetryAfter(v *limiter.Verdict) (wait time.Duration, ok bool) {
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

// Policy is a limit of a request as in draft-ietf-httpapi-ratelimit-headers-11. Section 3 has the
// quota (RateLimit-Policy), section 4 the rest of the quota (RateLimit).
type Policy struct {
	limit     *descriptors.Limit
	name      string // unique in one answer
	reported  bool   // a status reports the limit; the rest is set
	remaining uint64
	seconds   uint64
}

// AppendPolicies appends the limits that the request was charged for. Of several reports of one
// limit, the least remaining counts.
func AppendPolicies(all []Policy, v *limiter.Verdict) []Policy {
	for i := range v.Statuses {
		s := &v.Statuses[i]
		if s.Outcome != limiter.Limited {
			continue
		}
		for c := range v.Charged(i) { // of a rule with a table, not the limits in the rule
			if find(all, c.Limit) < 0 {
				all = append(all, Policy{limit: c.Limit, name: nameOf(all, c.Limit)})
			}
		}
		p := &all[find(all, s.Limit)]
		if !p.reported || s.Decision.Remaining < p.remaining {
			p.reported, p.remaining, p.seconds = true, s.Decision.Remaining, UntilReset(s)
		}
	}
	return all
}

func find(all []Policy, limit *descriptors.Limit) int {
	for i := range all {
		if all[i].limit == limit {
			return i
		}
	}
	return -1
}

// nameOf returns a name for a limit that no other one has.
func nameOf(all []Policy, limit *descriptors.Limit) string {
	base := cmp.Or(limit.Name, limit.PeriodName())
	name := base
	for n := 2; slices.ContainsFunc(all, func(p Policy) bool { return p.name == name }); n++ {
		name = base + "-" + strconv.Itoa(n)
	}
	return name
}

// AppendQuotas appends the value of the header RateLimit-Policy:
//
//	"minute";q=100;w=60, "daily";q=1000;w=86400
//
// A limit that is not full at Requests also has its capacity: `"second";q=20;w=1;burst=100`. A
// calendar's window has its true length. A period that is not whole seconds goes without its
// window, which the draft cannot express. Concurrency has a unit of its own there:
// `"concurrency";q=50;qu="concurrent-requests"`.
func AppendQuotas(b []byte, all []Policy) []byte {
	for i := range all {
		p := &all[i]
		b = appendItem(b, p.name, i == 0)
		b = appendParameter(b, ";q=", Shown(p.limit.PerPeriod()))
		if p.limit.Period == 0 {
			b = append(b, `;qu="concurrent-requests"`...)
		} else if length := windowOf(p.limit); length%time.Second == 0 {
			b = appendParameter(b, ";w=", uint64(length/time.Second))
		}
		if capacity := p.limit.Capacity(); capacity != p.limit.PerPeriod() {
			b = appendParameter(b, ";burst=", capacity)
		}
	}
	return b
}

// AppendLimits appends the value of the header RateLimit, such as `"minute";r=50;t=30`.
func AppendLimits(b []byte, all []Policy) []byte {
	first := true
	for i := range all {
		if p := &all[i]; p.reported {
			b = appendItem(b, p.name, first)
			b = appendParameter(appendParameter(b, ";r=", Shown(p.remaining)), ";t=", p.seconds)
			first = false
		}
	}
	return b
}

func appendParameter(b []byte, name string, value uint64) []byte {
	return strconv.AppendUint(append(b, name...), value, 10)
}

// windowOf returns the length of the limit's window: of a calendar, the true one.
func windowOf(l *descriptors.Limit) time.Duration {
	if l.Calendar == nil || l.Calendar.FirstHit() {
		return l.Period
	}
	start, end := l.Calendar.Window(algorithms.Instant(time.Now().UnixNano()))
	return end.Sub(start)
}

// appendItem begins an item of a list with its name as a String of RFC 9651, section 3.3.3, which
// knows printable ASCII only.
func appendItem(b []byte, name string, first bool) []byte {
	if !first {
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

// Shown returns hits as answers show them: Envoy's messages have 32 bits.
func Shown(hits uint64) uint64 { return min(hits, math.MaxUint32) }

// Seconds returns a duration in whole seconds, rounded up.
func Seconds(d time.Duration) uint64 {
	n := uint64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return n
}

// Each calls set with every header of an answer: the three about the nearest limit, RateLimit,
// RateLimit-Policy, and Retry-After over the limit. Each writes the values into the memory of b,
// and returns that memory for reuse.
func Each(b []byte, v *limiter.Verdict, set func(name, value string)) []byte {
	s := Nearest(v)
	if s == nil {
		return b
	}
	number := func(name string, value uint64) {
		b = strconv.AppendUint(b[:0], value, 10)
		set(name, string(b))
	}
	number("RateLimit-Limit", Capacity(s))
	number("RateLimit-Remaining", Shown(s.Decision.Remaining))
	number("RateLimit-Reset", UntilReset(s))
	var room Room
	policies := AppendPolicies(room[:0], v)
	b = AppendQuotas(b[:0], policies)
	set("RateLimit-Policy", string(b))
	b = AppendLimits(b[:0], policies)
	set("RateLimit", string(b))
	if wait, ok := Wait(v); ok && v.OverLimit {
		number("Retry-After", wait)
	}
	return b
}
