package server

import (
	"fmt"
	"strings"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
)

// appendMetadata appends the dynamic metadata of an answer to a RateLimitResponse, in the shape of
// envoyproxy/ratelimit:
//
//	{domain: "edge", descriptors: [{entries: ["user=alice"],
//	  limit: "requests_per_unit:2 unit:MINUTE", hitsAddend: 3}],
//	 hitsAddend: 2, metadata: {…}}
//
// limit and hitsAddend are absent when the request does not set them. A descriptor at the begin or
// the end of a holder also has hold: {phase: "begin", holder: "r1", hits: 3}. There hits are held
// after a begin, and until an end. A descriptor whose deciding limit a grant has changed also has
// grant: "ID", and one with hits that never pass never: true. metadata is merged from the rules that passed. The spaces in the text of limit,
// unlike there, never vary.
func (f form) appendMetadata(b []byte, r *limiter.Request, v *limiter.Verdict) ([]byte, error) {
	all := make([]any, len(r.Descriptors))
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		entries := make([]any, len(d.Entries))
		for n, e := range d.Entries {
			entries[n] = e.Key + "=" + e.Value
		}
		descriptor := map[string]any{"entries": entries}
		if d.Override != nil {
			descriptor["limit"] = overrideText(d.Override)
		}
		if d.Hits > 0 || d.Probe {
			descriptor["hitsAddend"] = d.Hits
		}
		if g := v.Statuses[i].Grant; g != nil {
			descriptor["grant"] = g.ID
		}
		if s := &v.Statuses[i]; s.OverLimit && s.Never && !f.original {
			descriptor["never"] = true
		}
		if s := &v.Statuses[i]; s.Hold != nil {
			phase, name := s.Rule.Holder(d.Entries)
			hold := map[string]any{"phase": "begin", "holder": name, "hits": s.Held}
			if phase == algorithms.HoldEnd {
				hold["phase"] = "end"
			}
			descriptor["hold"] = hold
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
func overrideText(o *limiter.Override) string {
	var fields []string
	if o.Requests != 0 {
		fields = append(fields, fmt.Sprintf("requests_per_unit:%d", o.Requests))
	}
	if o.Unit != 0 {
		fields = append(fields, fmt.Sprintf("unit:%v", typev3.RateLimitUnit(o.Unit)))
	}
	if o.Multiplier != 0 {
		fields = append(fields, fmt.Sprintf("unit_multiplier:{value:%d}", o.Multiplier))
	}
	return strings.Join(fields, " ")
}

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

// merge adds the missing keys of from to into. Maps are merged key by key; other values in into
// stay. The maps of from stay unchanged.
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
