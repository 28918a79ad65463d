package xds

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// Fields of RateLimitDescriptor that the message has in envoyproxy/ratelimit (api/ratelimit/config/ratelimit/v3/rls_conf.proto) and
// not in the go-control-plane that is built in.
const (
	quotaModeField = 7 // bool
	metadataField  = 8 // google.protobuf.Struct
)

// decode makes a rule document of an encoded RateLimitConfig, for descriptors.Source.
func decode(data []byte) (map[string]any, []descriptors.Error, []descriptors.Warning) {
	var config ratelimitv3.RateLimitConfig
	if err := proto.Unmarshal(data, &config); err != nil {
		// Its text has spaces of two kinds, so that nobody relies on it.
		reason := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
		return nil, []descriptors.Error{{Text: "is not a RateLimitConfig: " + reason}}, nil
	}
	c := &converter{}
	document := map[string]any{"domain": config.GetDomain()}
	c.others(&config, nil, "")
	if list := c.list(config.GetDescriptors(), nil, 0); list != nil {
		document["descriptors"] = list
	}
	return document, c.mistakes, c.warnings
}

// converter makes one document. It looks at nothing that loading the document looks at.
type converter struct {
	mistakes []descriptors.Error
	warnings []descriptors.Warning
}

// place is where a descriptor is in the tree; nil is the root.
type place struct {
	parent *place
	index  int
}

// path returns the path of a field of what is at a place, as in a rule file.
func (p *place) path(field string) string {
	if p == nil {
		return field
	}
	path := p.parent.path(fmt.Sprintf("descriptors[%d]", p.index))
	if field == "" {
		return path
	}
	return path + "." + field
}

// most bounds the levels of descriptors; descriptors.Load allows fewer, and says so.
const most = 1000

func (c *converter) list(all []*ratelimitv3.RateLimitDescriptor, parent *place, depth int) []any {
	if len(all) == 0 || depth > most {
		return nil
	}
	list := make([]any, 0, len(all))
	for i, d := range all {
		list = append(list, c.descriptor(d, &place{parent, i}, depth))
	}
	return list
}

// descriptor converts a descriptor. What proto3 cannot tell from what is not there is left out.
func (c *converter) descriptor(d *ratelimitv3.RateLimitDescriptor, at *place, depth int) map[string]any {
	m := map[string]any{"key": d.GetKey()}
	if d.GetValue() != "" {
		m["value"] = d.GetValue()
	}
	if d.GetShadowMode() {
		m["shadow_mode"] = true
	}
	if d.GetDetailedMetric() {
		m["detailed_metric"] = true
	}
	if d.GetRateLimit() != nil {
		m["rate_limit"] = c.policy(d.GetRateLimit(), at)
	}
	if list := c.list(d.GetDescriptors(), at, depth+1); list != nil {
		m["descriptors"] = list
	}
	quota, metadata := c.newer(d, at)
	if quota {
		m["quota_mode"] = true
	}
	if metadata != nil {
		m["metadata"] = metadata
	}
	return m
}

func (c *converter) policy(p *ratelimitv3.RateLimitPolicy, at *place) map[string]any {
	m := make(map[string]any)
	if p.GetUnlimited() {
		m["unlimited"] = true
	}
	if p.GetUnit() != ratelimitv3.RateLimitUnit_UNKNOWN || !p.GetUnlimited() {
		m["unit"] = unitName(p.GetUnit())
	}
	if p.GetRequestsPerUnit() != 0 {
		m["requests_per_unit"] = p.GetRequestsPerUnit()
	}
	if p.GetName() != "" {
		m["name"] = p.GetName()
	}
	if len(p.GetReplaces()) > 0 {
		list := make([]any, 0, len(p.GetReplaces()))
		for i, r := range p.GetReplaces() {
			list = append(list, map[string]any{"name": r.GetName()})
			c.others(r, at, fmt.Sprintf("rate_limit.replaces[%d]", i))
		}
		m["replaces"] = list
	}
	c.others(p, at, "rate_limit")
	return m
}

// unitName returns a unit as rule files name it. The message has gained units (MONTH 5, YEAR 6, WEEK 7) that the go-control-plane
// that is built in has no names for; their numbers are those of descriptors.Unit. What is no unit keeps a text that says so.
func unitName(u ratelimitv3.RateLimitUnit) string {
	if u == ratelimitv3.RateLimitUnit_UNKNOWN {
		return "UNKNOWN"
	}
	if u < 0 || u > 255 {
		return fmt.Sprintf("unit(%d)", int32(u))
	}
	return descriptors.Unit(u).String()
}

// newer reads the fields of a descriptor that are too new for the generated code.
func (c *converter) newer(d *ratelimitv3.RateLimitDescriptor, at *place) (quota bool, metadata map[string]any) {
	var encoded []byte
	given := false
	c.fields(d, at, "", func(number protowire.Number, kind protowire.Type, value []byte) bool {
		switch {
		case number == quotaModeField && kind == protowire.VarintType:
			n, _ := protowire.ConsumeVarint(value)
			quota = protowire.DecodeBool(n)
		case number == metadataField && kind == protowire.BytesType:
			part, _ := protowire.ConsumeBytes(value)
			encoded, given = append(encoded, part...), true // a message that comes in parts is merged
		default:
			return false
		}
		return true
	})
	if !given {
		return quota, nil
	}
	var s structpb.Struct
	if err := proto.Unmarshal(encoded, &s); err != nil {
		c.mistakes = append(c.mistakes, descriptors.Error{Path: at.path("metadata"), Text: "is not a google.protobuf.Struct"})
		return quota, nil
	}
	return quota, s.AsMap()
}

// others warns of the fields of a message that are not known here.
func (c *converter) others(m proto.Message, at *place, of string) {
	c.fields(m, at, of, func(protowire.Number, protowire.Type, []byte) bool { return false })
}

// fields calls read for each field that the generated code does not know, and warns once of each number that read does not either.
func (c *converter) fields(m proto.Message, at *place, of string, read func(protowire.Number, protowire.Type, []byte) bool) {
	var warned map[protowire.Number]bool
	for rest := m.ProtoReflect().GetUnknown(); len(rest) > 0; {
		number, kind, tag := protowire.ConsumeTag(rest)
		size := protowire.ConsumeFieldValue(number, kind, rest[max(tag, 0):])
		if tag < 0 || size < 0 {
			return // what has been unmarshalled is well formed
		}
		if value := rest[tag : tag+size]; !read(number, kind, value) && !warned[number] {
			if warned == nil {
				warned = make(map[protowire.Number]bool)
			}
			warned[number] = true
			c.warnings = append(c.warnings, descriptors.Warning{Path: at.path(of), Text: fmt.Sprintf(
				"has a field %d of a kind that is not known here, which has no effect", number)})
		}
		rest = rest[tag+size:]
	}
}
