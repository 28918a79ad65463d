package server

import (
	"fmt"
	"reflect"
	"slices"
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
// grant: "ID", and one with hits that never pass never: true. If a descriptor is over limit, all
// have code: "OK" or "OVER_LIMIT", and limitName of a limit with a name. metadata is merged from
// the rules that passed. The spaces in the text of limit, unlike there, never vary.
//
// passedDescriptors: [{backend_name: "a"}] has the entries of the quotas with room.
// priority_groups: [{name: "pt"}] has the groups with room, in order, and is there without
// Options.DynamicMetadata too.
func (f form) appendMetadata(b []byte, r *limiter.Request, v *limiter.Verdict) ([]byte, error) {
	fields := make(map[string]any)
	if f.metadata {
		f.describe(fields, r, v)
	}
	var groups []any // in the shape that Envoy's priority_group reads
	for name := range v.WithRoom() {
		groups = append(groups, map[string]any{"name": name})
	}
	if len(groups) > 0 {
		fields["priority_groups"] = groups
	}
	if len(fields) == 0 {
		return b, nil
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

// describe adds all fields but priority_groups.
func (f form) describe(fields map[string]any, r *limiter.Request, v *limiter.Verdict) {
	all, passed := make([]any, len(r.Descriptors)), []any{}
	over := !f.original && slices.ContainsFunc(v.Statuses, func(s limiter.DescriptorStatus) bool { return s.OverLimit })
	for i := range r.Descriptors {
		d, s := &r.Descriptors[i], &v.Statuses[i]
		descriptor := descriptorFields(d, s)
		if over {
			addCode(descriptor, s)
		}
		all[i] = descriptor
		if !f.original && hasRoom(v, s) {
			passed = append(passed, identity(s.Rule.WithoutHolder(d.Entries)))
		}
	}
	fields["domain"], fields["descriptors"] = r.Domain, all
	if r.Hits != 0 {
		fields["hitsAddend"] = r.Hits
	}
	if metadata := f.passedMetadata(v); len(metadata) > 0 {
		fields["metadata"] = metadata
	}
	if len(passed) > 0 {
		fields["passedDescriptors"] = passed
	}
}

func descriptorFields(d *limiter.Descriptor, s *limiter.DescriptorStatus) map[string]any {
	entries := make([]any, len(d.Entries))
	for n, e := range d.Entries {
		entries[n] = e.Key + "=" + e.Value
	}
	fields := map[string]any{"entries": entries}
	if d.Override != nil {
		fields["limit"] = overrideText(d.Override)
	}
	if d.Hits > 0 || d.Probe {
		fields["hitsAddend"] = d.Hits
	}
	if s.Grant != nil {
		fields["grant"] = s.Grant.ID
	}
	if s.Hold != nil {
		phase, name := s.Rule.Holder(d.Entries)
		hold := map[string]any{"phase": "begin", "holder": name, "hits": s.Held}
		if phase == algorithms.HoldEnd {
			hold["phase"] = "end"
		}
		fields["hold"] = hold
	}
	return fields
}

func addCode(fields map[string]any, s *limiter.DescriptorStatus) {
	fields["code"] = "OK"
	if s.OverLimit {
		fields["code"] = "OVER_LIMIT"
	}
	if s.OverLimit && s.Never {
		fields["never"] = true
	}
	if s.Outcome == limiter.Limited && s.Limit.Name != "" {
		fields["limitName"] = s.Limit.Name
	}
}

// hasRoom reports whether a descriptor is a quota that has room, with its group.
func hasRoom(v *limiter.Verdict, s *limiter.DescriptorStatus) bool {
	if s.OverLimit || s.Overridden || s.Rule == nil || !s.Rule.Quota || s.Rule.Shadow {
		return false
	}
	return s.Group == 0 || v.Groups[s.Group-1].Room
}

func identity(entries []limiter.Entry) map[string]any {
	fields := make(map[string]any, len(entries))
	for _, e := range entries {
		fields[e.Key] = e.Value
	}
	return fields
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

func (f form) passedMetadata(v *limiter.Verdict) map[string]any {
	all := make(map[string]any)
	for i := range v.Statuses {
		s := &v.Statuses[i]
		if s.Outcome == limiter.Limited && !s.OverLimit && !s.Overridden && (s.Group == 0 || v.Groups[s.Group-1].Room) {
			f.merge(all, s.Rule.Metadata)
		}
	}
	return all
}

// merge adds the missing keys of from to into. Maps are merged key by key. Lists are joined, and
// each element is there once; envoyproxy/ratelimit keeps the first list. Other values in into stay.
// The maps and lists of from stay unchanged.
func (f form) merge(into, from map[string]any) {
	for key, value := range from {
		below, isMap := value.(map[string]any)
		has, taken := into[key]
		switch {
		case !taken && isMap:
			next := make(map[string]any, len(below))
			f.merge(next, below)
			into[key] = next
		case !taken:
			into[key] = value
		case isMap:
			if into, ok := has.(map[string]any); ok {
				f.merge(into, below)
			}
		case !f.original:
			into[key] = joined(has, value)
		}
	}
}

// joined returns a list with the elements of both values. A value that is no list stays.
func joined(has, value any) any {
	list, is := has.([]any)
	more, both := value.([]any)
	if !is || !both {
		return has
	}
	all := slices.Clone(list)
	for _, e := range more {
		if !slices.ContainsFunc(all, func(x any) bool { return reflect.DeepEqual(x, e) }) {
			all = append(all, e)
		}
	}
	return all
}
