package server

import (
	"slices"
	"strconv"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// policy is a limit of a request, as draft-ietf-httpapi-ratelimit-headers-11 has them: what is promised in general
// (section 3, field RateLimit-Policy) and what is left (section 4, field RateLimit).
type policy struct {
	limit     *descriptors.Limit
	name      string // unique in one answer
	reported  bool   // a status is about it, with:
	remaining uint32
	seconds   uint64
}

// policiesOf returns the limits of all rules that apply to the request. Where several descriptors report the same limit, it
// is the one with the least remaining that counts.
func policiesOf(v *limiter.Verdict) []policy {
	var all []policy
	for i := range v.Statuses {
		s := &v.Statuses[i]
		if s.Outcome != limiter.Limited {
			continue
		}
		if s.Overridden {
			all = add(all, s.Limit)
		} else {
			for n := range s.Rule.Limits {
				all = add(all, &s.Rule.Limits[n])
			}
		}
		p := &all[slices.IndexFunc(all, func(p policy) bool { return p.limit == s.Limit })]
		if !p.reported || s.Decision.Remaining < p.remaining {
			p.reported, p.remaining, p.seconds = true, s.Decision.Remaining, wait(s)
		}
	}
	return all
}

// add adds a policy for a limit, unless it has one.
func add(all []policy, limit *descriptors.Limit) []policy {
	if slices.ContainsFunc(all, func(p policy) bool { return p.limit == limit }) {
		return all
	}
	usual := policyName(limit)
	name := usual
	for n := 2; slices.ContainsFunc(all, func(p policy) bool { return p.name == name }); n++ {
		name = usual + "-" + strconv.Itoa(n)
	}
	return append(all, policy{limit: limit, name: name})
}

// policyName returns the name of a limit as configured, else its period: "minute", "7day", "1.5s".
func policyName(limit *descriptors.Limit) string {
	switch {
	case limit.Name != "":
		return limit.Name
	case limit.Unit == descriptors.UnitUnknown:
		return limit.Period.String()
	case limit.Multiplier > 1:
		return strconv.FormatUint(uint64(limit.Multiplier), 10) + limit.Unit.String()
	default:
		return limit.Unit.String()
	}
}

// policyField returns the value of RateLimit-Policy: `"minute";q=100;w=60, "daily";q=1000;w=86400`. A period that is not
// whole seconds goes without its window, which the draft cannot express.
func policyField(all []policy) string {
	var b []byte
	for i := range all {
		b = appendItem(b, all[i].name)
		b = strconv.AppendUint(append(b, ";q="...), uint64(all[i].limit.Requests), 10)
		if period := all[i].limit.Period; period%time.Second == 0 {
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

// appendItem begins an item of a list with its name as a String of RFC 9651, section 3.3.3, which knows printable ASCII only.
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
