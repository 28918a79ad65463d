package server

import (
	"cmp"
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
			b = appendNumberHeader(b, h.Limit, shown(max(s.Limit.PerPeriod(), s.Limit.Capacity())))
			b = appendNumberHeader(b, h.Remaining, shown(s.Decision.Remaining))
			b = appendNumberHeader(b, h.Reset, untilReset(s))
		}
	}
	if h.IETF {
		var room [8]policy
		if policies := appendPolicies(room[:0], v); len(policies) > 0 {
			b = appendLimits(appendQuotas(b, policies), policies)
		}
	}
	if h.RetryAfter && v.OverLimit {
		if wait, ok := retryAfter(v); ok {
			b = appendNumberHeader(b, "retry-after", max(seconds(wait), 1))
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
	b = appendLength(b, 3, sizeOf(len(name))+sizeOf(len(value)))
	return appendString(appendString(b, 1, name), 2, value)
}

func appendNumberHeader(b []byte, name string, value uint64) []byte {
	b, header, inner := openHeader(b, name)
	return shut(shut(strconv.AppendUint(b, value, 10), inner), header)
}

// openHeader begins a header. The caller appends its value, and calls shut for inner and header.
func openHeader(b []byte, name string) (opened []byte, header, inner int) {
	b, header = open(b, 3)
	b, inner = open(appendString(b, 1, name), 2)
	return b, header, inner
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
	remaining uint64
	seconds   uint64
}

// appendPolicies appends the limits that the request was charged for. Of several reports of one
// limit, the least remaining counts.
func appendPolicies(all []policy, v *limiter.Verdict) []policy {
	for i := range v.Statuses {
		s := &v.Statuses[i]
		if s.Outcome != limiter.Limited {
			continue
		}
		for c := range v.Charged(i) { // of a rule with a table, not the limits in the rule
			if find(all, c.Limit) < 0 {
				all = append(all, policy{limit: c.Limit, name: nameOf(all, c.Limit)})
			}
		}
		p := &all[find(all, s.Limit)]
		if !p.reported || s.Decision.Remaining < p.remaining {
			p.reported, p.remaining, p.seconds = true, s.Decision.Remaining, untilReset(s)
		}
	}
	return all
}

func find(all []policy, limit *descriptors.Limit) int {
	for i := range all {
		if all[i].limit == limit {
			return i
		}
	}
	return -1
}

// nameOf returns a name for a limit that no other one has.
func nameOf(all []policy, limit *descriptors.Limit) string {
	base := cmp.Or(limit.Name, limit.PeriodName())
	name := base
	for n := 2; slices.ContainsFunc(all, func(p policy) bool { return p.name == name }); n++ {
		name = base + "-" + strconv.Itoa(n)
	}
	return name
}

// appendQuotas appends the header RateLimit-Policy:
//
//	"minute";q=100;w=60, "daily";q=1000;w=86400
//
// A limit that is not full at Requests also has its capacity: `"second";q=20;w=1;burst=100`. A
// calendar's window has its true length. A period that is not whole seconds goes without its
// window, which the draft cannot express. Concurrency has a unit of its own there:
// `"concurrency";q=50;qu="concurrent-requests"`.
func appendQuotas(b []byte, all []policy) []byte {
	b, header, inner := openHeader(b, "RateLimit-Policy")
	for i := range all {
		p := &all[i]
		b = appendItem(b, p.name, i == 0)
		b = appendParameter(b, ";q=", shown(p.limit.PerPeriod()))
		if p.limit.Period == 0 {
			b = append(b, `;qu="concurrent-requests"`...)
		} else if length := windowOf(p.limit); length%time.Second == 0 {
			b = appendParameter(b, ";w=", uint64(length/time.Second))
		}
		if capacity := p.limit.Capacity(); capacity != p.limit.PerPeriod() {
			b = appendParameter(b, ";burst=", capacity)
		}
	}
	return shut(shut(b, inner), header)
}

// appendLimits appends the header RateLimit, such as `"minute";r=50;t=30`.
func appendLimits(b []byte, all []policy) []byte {
	b, header, inner := openHeader(b, "RateLimit")
	first := true
	for i := range all {
		if p := &all[i]; p.reported {
			b = appendItem(b, p.name, first)
			b = appendParameter(appendParameter(b, ";r=", shown(p.remaining)), ";t=", p.seconds)
			first = false
		}
	}
	return shut(shut(b, inner), header)
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
