package server

import (
	"strconv"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/pkg/limiter"
)

// appendMetadata appends the dynamic metadata of an answer to a RateLimitResponse. It has the shape of envoyproxy/ratelimit:
//
//	{domain: "edge", descriptors: [{entries: ["user=alice"], limit: "requests_per_unit:2 unit:MINUTE", hitsAddend: 3}],
//	 hitsAddend: 2, metadata: {…}}
//
// where limit and both hitsAddend stand only where the request has them, and metadata is that of the rules that passed,
// merged. The text of limit, unlike there, is always spaced the same.
func appendMetadata(b []byte, r *limiter.Request, v *limiter.Verdict) ([]byte, error) {
	all := make([]any, len(r.Descriptors))
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		entries := make([]any, len(d.Entries))
		for n, e := range d.Entries {
			entries[n] = e.Key + "=" + e.Value
		}
		descriptor := map[string]any{"entries": entries}
		if d.HasOverride {
			descriptor["limit"] = overrideText(d.Override)
		}
		if d.HasHits {
			descriptor["hitsAddend"] = d.Hits
		}
		all[i] = descriptor
	}
	fields := map[string]any{"domain": r.Domain, "descriptors": all}
	if r.Hits != 0 {
		fields["hitsAddend"] = r.Hits
	}
	if passed := passedMetadata(v); len(passed) > 0 {
		fields["metadata"] = passed
	}
	metadata, err := structpb.NewStruct(fields)
	if err != nil {
		return b, err
	}
	b, inner := open(b, 6)
	if b, err = (proto.MarshalOptions{Deterministic: true}).MarshalAppend(b, metadata); err != nil {
		return b, err
	}
	return shut(b, inner), nil
}

// overrideText returns a RateLimitOverride in the text format of protobuf.
func overrideText(o limiter.Override) string {
	var b []byte
	space := func() {
		if len(b) > 0 {
			b = append(b, ' ')
		}
	}
	if o.Requests != 0 {
		b = strconv.AppendUint(append(b, "requests_per_unit:"...), uint64(o.Requests), 10)
	}
	if o.Unit != 0 {
		space()
		b = append(append(b, "unit:"...), typev3.RateLimitUnit(o.Unit).String()...)
	}
	if o.HasMultiplier {
		space()
		b = append(strconv.AppendUint(append(b, "unit_multiplier:{value:"...), uint64(o.Multiplier), 10), '}')
	}
	return string(b)
}

// passedMetadata returns the metadata of the rules whose limits passed, merged in the order of the descriptors.
func passedMetadata(v *limiter.Verdict) map[string]any {
	all := make(map[string]any)
	for i := range v.Statuses {
		s := &v.Statuses[i]
		if s.Outcome == limiter.Limited && !s.OverLimit && !s.Overridden {
			merge(all, s.Rule.Metadata)
		}
	}
	return all
}

// merge adds to into what it does not have. Maps are merged key by key; of anything else the first stays. It changes no map
// of from.
func merge(into, from map[string]any) {
	for key, value := range from {
		below, isMap := value.(map[string]any)
		has, taken := into[key]
		switch {
		case !taken && isMap:
			next := make(map[string]any, len(below))
			merge(next, below)
			into[key] = next
		case !taken:
			into[key] = value
		case isMap:
			if into, ok := has.(map[string]any); ok {
				merge(into, below)
			}
		}
	}
}
