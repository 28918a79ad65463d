package server

import (
	"strconv"

	"github.com/weirproxy/weir/internal/headers"
	"github.com/weirproxy/weir/pkg/limiter"
)

// softBreach is the header of answers about keys that have reached the first mark of warn_at, as in
// envoyproxy/ratelimit's pull request 1215. A rule with warn_at asks for the header.
const softBreach = "x-ratelimit-soft-breach"

func (h *Headers) append(b []byte, v *limiter.Verdict) []byte {
	if h.RateLimit {
		if s := headers.Nearest(v); s != nil {
			b = appendNumberHeader(b, h.Limit, headers.Capacity(s))
			b = appendNumberHeader(b, h.Remaining, headers.Shown(s.Decision.Remaining))
			b = appendNumberHeader(b, h.Reset, headers.UntilReset(s))
		}
	}
	if h.IETF {
		var room headers.Room
		if policies := headers.AppendPolicies(room[:0], v); len(policies) > 0 {
			quotas, header, inner := openHeader(b, "RateLimit-Policy")
			b = shut(shut(headers.AppendQuotas(quotas, policies), inner), header)
			limits, header, inner := openHeader(b, "RateLimit")
			b = shut(shut(headers.AppendLimits(limits, policies), inner), header)
		}
	}
	if h.RetryAfter && v.OverLimit {
		if wait, ok := headers.Wait(v); ok {
			b = appendNumberHeader(b, "retry-after", wait)
		}
	}
	return b
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
