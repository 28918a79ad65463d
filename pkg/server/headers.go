package server

import (
	"strconv"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// append appends the headers to a RateLimitResponse, as its response_headers_to_add.
func (h *Headers) append(b []byte, v *limiter.Verdict) []byte {
	if h.RateLimit {
		if s := nearest(v); s != nil {
			b = appendHeader(b, h.Limit, strconv.FormatUint(uint64(s.Limit.Requests), 10))
			b = appendHeader(b, h.Remaining, strconv.FormatUint(uint64(s.Decision.Remaining), 10))
			b = appendHeader(b, h.Reset, strconv.FormatUint(wait(s), 10))
		}
	}
	if h.IETF {
		if policies := policiesOf(v); len(policies) > 0 {
			b = appendHeader(b, "RateLimit-Policy", policyField(policies))
			b = appendHeader(b, "RateLimit", limitField(policies))
		}
	}
	if h.RetryAfter && v.OverLimit {
		b = appendHeader(b, "retry-after", strconv.FormatUint(max(seconds(retryAfter(v)), 1), 10))
	}
	return b
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
// traffic. Every limit that denies alone must have room then, and at least one quota.
func retryAfter(v *limiter.Verdict) time.Duration {
	var wait, quota time.Duration
	quotas, spent := 0, 0
	for i := range v.Statuses {
		s := &v.Statuses[i]
		switch {
		case s.Outcome != limiter.Limited:
		case !isQuota(s):
			if s.OverLimit {
				wait = max(wait, s.Decision.RetryAfter)
			}
		default:
			quotas++
			if s.OverLimit {
				if spent++; spent == 1 || s.Decision.RetryAfter < quota {
					quota = s.Decision.RetryAfter
				}
			}
		}
	}
	if quotas > 0 && spent == quotas {
		wait = max(wait, quota)
	}
	return wait
}

// isQuota reports whether the limit counts as a quota. Shadow mode goes before quota mode.
func isQuota(s *limiter.DescriptorStatus) bool {
	return s.Quota && (s.Overridden || s.Rule == nil || !s.Rule.Shadow)
}
