package server

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

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
			p.reported, p.remaining, p.seconds = true, s.Decision.Remaining, wait(s)
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

// policyField returns the value of RateLimit-Policy: `"minute";q=100;w=60, "daily";q=1000;w=86400`.
// A period that is not whole seconds goes without its window, which the draft cannot express.
// Concurrency has a unit of its own there: `"concurrency";q=50;qu="concurrent-requests"`.
func policyField(all []policy) string {
	var b []byte
	for i := range all {
		b = appendItem(b, all[i].name)
		b = strconv.AppendUint(append(b, ";q="...), uint64(all[i].limit.Requests), 10)
		if period := all[i].limit.Period; period == 0 {
			b = append(b, `;qu="concurrent-requests"`...)
		} else if period%time.Second == 0 {
			b = strconv.AppendUint(append(b, ";w="...), uint64(period/time.Second), 10)
		}
	}
	return string(b)
}

// limitField returns the value of RateLimit: `"minute";r=50;t=30`.
func limitField(all []policy) string {
	var b []byte
	for i := range all {
		if !all[i].reported {
			continue
		}
		b = appendItem(b, all[i].name)
		b = strconv.AppendUint(append(b, ";r="...), uint64(all[i].remaining), 10)
		b = strconv.AppendUint(append(b, ";t="...), all[i].seconds, 10)
	}
	return string(b)
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
