package compare

import (
	"strings"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// mostHits bounds the hits of one request. A limit above it is asked for one hit.
const mostHits = 1 << 30

// Askable reports whether the entries of the rule can be made up. Not a default: it has no entries.
// Not a rule with a pattern other than wildcards, or with a holder.
func Askable(r *descriptors.Rule) bool {
	for _, l := range r.Levels {
		if l.Match != nil {
			return false
		}
	}
	return len(r.Levels) > 0 && !r.Holds()
}

// Asks returns requests that show a rule: up to its limit and beyond, with another last value, and
// with one entry more. Each rule of all that it replaces is asked with it and alone. The mark
// stands in the place of each value that the rule leaves open. A new mark has new counts.
func Asks(r *descriptors.Rule, all []*descriptors.Rule, mark string) (asks []*Request) {
	entries := entriesOf(r, mark)
	for _, hits := range steps(r) {
		asks = append(asks, request(r.Domain, hits, entries))
	}
	last := len(r.Levels) - 1
	if r.Levels[last].Value != "" {
		other := append(entriesOf(r, mark)[:last], &commonv3.RateLimitDescriptor_Entry{Key: r.Levels[last].Key, Value: mark + "-other"})
		asks = append(asks, request(r.Domain, 1, other))
	}
	more := append(entriesOf(r, mark), &commonv3.RateLimitDescriptor_Entry{Key: mark, Value: mark})
	asks = append(asks, request(r.Domain, 1, more))
	for _, name := range r.Replaces {
		for _, replaced := range all {
			if replaced.Domain == r.Domain && replaced.Name == name && replaced != r && Askable(replaced) {
				asks = append(asks, request(r.Domain, 1, entriesOf(replaced, mark), entries), request(r.Domain, 1, entriesOf(replaced, mark)))
			}
		}
	}
	return asks
}

// steps returns the hits of requests after each other, the last of which is over the limit.
func steps(r *descriptors.Rule) []uint32 {
	least := uint32(mostHits)
	for i := range r.Limits {
		least = min(least, r.Limits[i].Requests)
	}
	if r.Unlimited || len(r.Limits) == 0 || least == 0 || least >= mostHits {
		return []uint32{1}
	}
	if least == 1 {
		return []uint32{1, 1}
	}
	return []uint32{1, least - 1, 1}
}

func entriesOf(r *descriptors.Rule, mark string) []*commonv3.RateLimitDescriptor_Entry {
	entries := make([]*commonv3.RateLimitDescriptor_Entry, len(r.Levels))
	for i, l := range r.Levels {
		text := strings.ReplaceAll(l.Value, "*", mark)
		if l.Value == "" {
			text = mark
		}
		entries[i] = &commonv3.RateLimitDescriptor_Entry{Key: l.Key, Value: text}
	}
	return entries
}

// Nobody returns a request of a domain without rules, which counts nowhere.
func Nobody(mark string) *Request {
	return request(mark, 1, []*commonv3.RateLimitDescriptor_Entry{{Key: mark, Value: mark}})
}

func request(domain string, hits uint32, all ...[]*commonv3.RateLimitDescriptor_Entry) *Request {
	r := &Request{Domain: domain, HitsAddend: hits}
	for _, entries := range all {
		r.Descriptors = append(r.Descriptors, &commonv3.RateLimitDescriptor{Entries: entries})
	}
	return r
}

// FromRecord returns a recorded request as Envoy sends it.
func FromRecord(from *limiter.Request) *Request {
	r := &Request{Domain: from.Domain, HitsAddend: from.Hits}
	for i := range from.Descriptors {
		d := &from.Descriptors[i]
		to := &commonv3.RateLimitDescriptor{IsNegativeHits: d.Refund}
		for _, e := range d.Entries {
			to.Entries = append(to.Entries, &commonv3.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value})
		}
		if d.Hits > 0 || d.Probe {
			to.HitsAddend = wrapperspb.UInt64(d.Hits)
		}
		if o := d.Override; o != nil {
			to.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: o.Requests, Unit: typev3.RateLimitUnit(o.Unit)}
		}
		r.Descriptors = append(r.Descriptors, to)
	}
	return r
}
