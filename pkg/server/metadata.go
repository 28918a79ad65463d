package server

import (
	"encoding/binary"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protowire"

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
//
// The names in a map are in order.
func (f form) appendMetadata(b []byte, r *limiter.Request, v *limiter.Verdict) []byte {
	w := structWriter{b: b}
	w.begin(6)
	empty := len(w.b)
	if f.metadata {
		f.describe(&w, r, v)
	}
	rooms := len(w.b)
	for name := range v.WithRoom() {
		if len(w.b) == rooms { // in the shape that Envoy's priority_group reads
			w.list("priority_groups")
		}
		w.element()
		w.text("name", name)
		w.end(2)
	}
	switch len(w.b) {
	case empty:
		return b
	case rooms:
	default:
		w.end(3)
	}
	w.end(1)
	return w.b
}

// describe writes all fields but priority_groups.
func (f form) describe(w *structWriter, r *limiter.Request, v *limiter.Verdict) {
	over := false
	for i := range v.Statuses {
		over = over || !f.original && v.Statuses[i].OverLimit
	}
	w.list("descriptors")
	for i := range r.Descriptors {
		w.element()
		w.descriptor(&r.Descriptors[i], &v.Statuses[i], over)
		w.end(2)
	}
	w.end(3)
	w.text("domain", r.Domain)
	if r.Hits != 0 {
		w.number("hitsAddend", float64(r.Hits))
	}
	if metadata := f.passedMetadata(v); len(metadata) > 0 {
		w.field("metadata")
		w.b = appendValue(w.b, metadata)
		w.end(2)
	}
	passed := len(w.b)
	for i := range r.Descriptors {
		s := &v.Statuses[i]
		if f.original || !hasRoom(v, s) {
			continue
		}
		if len(w.b) == passed {
			w.list("passedDescriptors")
		}
		w.element()
		w.entries(s.Rule.WithoutHolder(r.Descriptors[i].Entries))
		w.end(2)
	}
	if len(w.b) > passed {
		w.end(3)
	}
}

// descriptor writes the fields of a descriptor. over says that one of the request is over limit.
func (w *structWriter) descriptor(d *limiter.Descriptor, s *limiter.DescriptorStatus, over bool) {
	switch {
	case over && s.OverLimit:
		w.text("code", "OVER_LIMIT")
	case over:
		w.text("code", "OK")
	}
	w.list("entries")
	for i := range d.Entries {
		e := &d.Entries[i]
		w.begin(1)
		w.begin(3)
		w.b = append(append(append(w.b, e.Key...), '='), e.Value...)
		w.end(2)
	}
	w.end(3)
	if s.Grant != nil {
		w.text("grant", s.Grant.ID)
	}
	if d.Hits > 0 || d.Probe {
		w.number("hitsAddend", float64(d.Hits))
	}
	if s.Hold != nil {
		_, name := s.Rule.Holder(d.Entries)
		w.field("hold")
		w.begin(5)
		w.number("hits", float64(s.Held))
		w.text("holder", name)
		if s.Hold.Phase == algorithms.HoldEnd {
			w.text("phase", "end")
		} else {
			w.text("phase", "begin")
		}
		w.end(3)
	}
	if d.Override != nil {
		w.field("limit")
		w.begin(3)
		w.b = appendOverride(w.b, d.Override)
		w.end(3)
	}
	if over && s.Outcome == limiter.Limited && s.Limit.Name != "" {
		w.text("limitName", s.Limit.Name)
	}
	if over && s.OverLimit && s.Never {
		w.bool("never", true)
	}
}

// entries writes the entries of a descriptor as fields. Of entries with the same key, the last one
// counts.
func (w *structWriter) entries(all []limiter.Entry) {
	var room [8]limiter.Entry
	sorted := append(room[:0], all...)
	slices.SortStableFunc(sorted, func(a, b limiter.Entry) int { return strings.Compare(a.Key, b.Key) })
	for i, e := range sorted {
		if i+1 == len(sorted) || sorted[i+1].Key != e.Key {
			w.text(e.Key, e.Value)
		}
	}
}

// hasRoom reports whether a descriptor is a quota that has room, with its group.
func hasRoom(v *limiter.Verdict, s *limiter.DescriptorStatus) bool {
	if s.OverLimit || s.Overridden || s.Rule == nil || !s.Rule.Quota || s.Rule.Shadow {
		return false
	}
	return s.Group == 0 || v.Groups[s.Group-1].Room
}

// appendOverride appends a RateLimitOverride in the text format of protobuf.
func appendOverride(b []byte, o *limiter.Override) []byte {
	begin := len(b)
	next := func(name string) {
		if len(b) > begin {
			b = append(b, ' ')
		}
		b = append(b, name...)
	}
	if o.Requests != 0 {
		next("requests_per_unit:")
		b = strconv.AppendUint(b, uint64(o.Requests), 10)
	}
	if o.Unit != 0 {
		next("unit:")
		b = append(b, typev3.RateLimitUnit(o.Unit).String()...)
	}
	if o.Multiplier != 0 {
		next("unit_multiplier:{value:")
		b = append(strconv.AppendUint(b, uint64(o.Multiplier), 10), '}')
	}
	return b
}

// passedMetadata returns the metadata of the rules that passed. The caller must not change it.
func (f form) passedMetadata(v *limiter.Verdict) (all map[string]any) {
	merged := false
	for i := range v.Statuses {
		s := &v.Statuses[i]
		passed := s.Outcome == limiter.Limited && !s.OverLimit && !s.Overridden && (s.Group == 0 || v.Groups[s.Group-1].Room)
		switch {
		case !passed || len(s.Rule.Metadata) == 0:
		case all == nil:
			all = s.Rule.Metadata
		default:
			if !merged {
				first := all
				all, merged = make(map[string]any, len(first)), true
				f.merge(all, first)
			}
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

// structWriter appends a google.protobuf.Struct to b. Each field, list, map and value is a message
// in another one, and its length comes before it.
type structWriter struct {
	b     []byte
	inner [16]int // of the messages that have not ended, see open
	depth int
}

func (w *structWriter) begin(number protowire.Number) {
	w.b, w.inner[w.depth] = open(w.b, number)
	w.depth++
}

// end ends the last n messages.
func (w *structWriter) end(n int) {
	for range n {
		w.depth--
		w.b = shut(w.b, w.inner[w.depth])
	}
}

// field begins a field, which is two messages. One value must follow.
func (w *structWriter) field(name string) {
	w.begin(1)
	w.b = appendString(w.b, 1, name)
	w.begin(2)
}

// list begins a field that is a list, which is three messages.
func (w *structWriter) list(name string) {
	w.field(name)
	w.begin(6)
}

// element begins an element of a list that is a map, which is two messages.
func (w *structWriter) element() {
	w.begin(1)
	w.begin(5)
}

func (w *structWriter) text(name, value string) {
	w.b = appendString(appendField(w.b, name, sizeOf(len(value))), 3, value)
}

func (w *structWriter) number(name string, value float64) {
	w.b = appendNumber(appendField(w.b, name, numberSize), value)
}

func (w *structWriter) bool(name string, value bool) {
	w.b = appendBool(appendField(w.b, name, boolSize), value)
}

// appendField appends a field, but for its value of that size in bytes.
func appendField(b []byte, name string, size int) []byte {
	b = appendLength(b, 1, sizeOf(len(name))+sizeOf(size))
	return appendLength(appendString(b, 1, name), 2, size)
}

// sizeOf returns the size of a string or message of n bytes, with its tag and length.
func sizeOf(n int) int { return 1 + protowire.SizeBytes(n) }

// appendValue appends a value of the metadata of a rule, see [descriptors.Rule].
func appendValue(b []byte, v any) []byte {
	var outer, inner int
	switch v := v.(type) {
	case bool:
		return appendBool(b, v)
	case float64:
		return appendNumber(b, v)
	case string:
		return appendString(b, 3, v)
	case []any:
		b, outer = open(b, 6)
		for _, e := range v {
			b, inner = open(b, 1)
			b = shut(appendValue(b, e), inner)
		}
		return shut(b, outer)
	case map[string]any:
		b, outer = open(b, 5)
		for _, name := range slices.Sorted(maps.Keys(v)) {
			b, inner = open(b, 1)
			var value int
			b, value = open(appendString(b, 1, name), 2)
			b = shut(shut(appendValue(b, v[name]), value), inner)
		}
		return shut(b, outer)
	default: // nil
		return append(b, 1<<3, 0)
	}
}

// Sizes of values with their tags, in bytes.
const (
	numberSize = 9
	boolSize   = 2
)

func appendNumber(b []byte, value float64) []byte {
	return binary.LittleEndian.AppendUint64(append(b, 2<<3|byte(protowire.Fixed64Type)), math.Float64bits(value))
}

func appendBool(b []byte, value bool) []byte {
	return append(b, 4<<3, byte(protowire.EncodeBool(value)))
}
