package server

import (
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weirproxy/weir/internal/headers"
	"github.com/weirproxy/weir/pkg/limiter"
)

// envoy.service.ratelimit.v3.RateLimitResponse.Code.
const (
	codeOK        = 1
	codeOverLimit = 2
)

type form struct {
	exact    bool // durations are in nanoseconds, and hits that never pass have none; else in seconds, for Envoy
	original bool // see Options.Original
	metadata bool // see Options.DynamicMetadata
}

func (f form) appendResponse(b []byte, v *limiter.Verdict) []byte {
	b = appendVarint(b, 1, code(v.OverLimit))
	for i := range v.Statuses {
		var inner int
		b, inner = open(b, 2)
		b = shut(f.appendStatus(b, &v.Statuses[i]), inner)
	}
	return b
}

// appendStatus appends the fields of a RateLimitResponse.DescriptorStatus.
func (f form) appendStatus(b []byte, s *limiter.DescriptorStatus) []byte {
	b = appendVarint(b, 1, code(s.OverLimit))
	switch s.Outcome {
	case limiter.Limited:
		var inner int
		b, inner = open(b, 2)
		b = shut(appendLimit(b, s), inner)
		b = appendVarint(b, 3, headers.Shown(s.Decision.Remaining))
		if d, ok := f.wait(s); ok {
			b, inner = open(b, 4)
			b = shut(f.appendDuration(b, d), inner)
		}
	case limiter.Unlimited:
		b = appendVarint(b, 3, math.MaxUint32)
	case limiter.NoLimit, limiter.Replaced:
	}
	return b
}

// appendLimit appends the fields of a RateLimitResponse.RateLimit.
func appendLimit(b []byte, s *limiter.DescriptorStatus) []byte {
	b = appendVarint(b, 1, headers.Shown(s.Limit.PerPeriod()))
	b = appendVarint(b, 2, uint64(s.Limit.Unit))
	if s.Limit.Name != "" {
		b = appendString(b, 3, s.Limit.Name)
	}
	if s.Limit.Multiplier > 1 {
		var inner int
		b, inner = open(b, 4)
		b = shut(appendVarint(b, 1, uint64(s.Limit.Multiplier)), inner)
	}
	return b
}

// wait returns duration_until_reset. Over limit, the wait ends when the same hits would pass, else
// when the key is idle. A limit in shadow mode always reports the latter. Hits that never pass have
// no such wait. Envoy gets one: without one, its own retry-after would be 1.
func (f form) wait(s *limiter.DescriptorStatus) (d time.Duration, ok bool) {
	if !s.OverLimit {
		return s.Decision.ResetAfter, true
	}
	return s.Decision.RetryAfter, !f.exact || !s.Never
}

// appendDuration appends the fields of a google.protobuf.Duration. Envoy drops fractions of
// seconds.
func (f form) appendDuration(b []byte, d time.Duration) []byte {
	if f.exact {
		return appendVarint(appendVarint(b, 1, uint64(d/time.Second)), 2, uint64(d%time.Second))
	}
	return appendVarint(b, 1, headers.Seconds(d))
}

func code(overLimit bool) uint64 {
	if overLimit {
		return codeOverLimit
	}
	return codeOK
}

// appendVarint appends a field with a number of at most 15. As in proto3, a value of 0 is not
// written.
func appendVarint(b []byte, number protowire.Number, value uint64) []byte {
	switch {
	case value == 0:
		return b
	case value < 0x80:
		return append(b, byte(number<<3), byte(value))
	}
	return protowire.AppendVarint(append(b, byte(number<<3)), value)
}

func appendString(b []byte, number protowire.Number, value string) []byte {
	return append(appendLength(b, number, len(value)), value...)
}

// appendLength begins a field of n bytes, with a number of at most 15.
func appendLength(b []byte, number protowire.Number, n int) []byte {
	if n < 0x80 {
		return append(b, bytesTag(number), byte(n))
	}
	return protowire.AppendVarint(append(b, bytesTag(number)), uint64(n))
}

func bytesTag(number protowire.Number) byte { return byte(number<<3) | byte(protowire.BytesType) }

// open begins a message in a field with a number of at most 15. The caller appends the fields of
// the message, and calls shut.
func open(b []byte, number protowire.Number) (opened []byte, inner int) {
	b = append(b, bytesTag(number), 0)
	return b, len(b)
}

// shut ends a message with fields from inner on: it writes the length before them, where open left
// one byte.
func shut(b []byte, inner int) []byte {
	length := len(b) - inner
	if length < 0x80 {
		b[inner-1] = byte(length)
		return b
	}
	more := protowire.SizeVarint(uint64(length)) - 1
	for range more {
		b = append(b, 0)
	}
	copy(b[inner+more:], b[inner:inner+length])
	protowire.AppendVarint(b[:inner-1], uint64(length))
	return b
}
