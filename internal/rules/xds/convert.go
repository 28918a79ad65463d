package xds

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// Fields of RateLimitDescriptor in envoyproxy/ratelimit
// (api/ratelimit/config/ratelimit/v3/rls_conf.proto) that the message of this go-control-plane
// lacks.
const (
	quotaModeField = 7 // bool
	metadataField  = 8 // google.protobuf.Struct
)

// maxLevels bounds the levels of descriptors that are converted. descriptors.Load allows fewer and
// reports the excess.
const maxLevels = 1000

// convert turns an encoded RateLimitConfig into a rule document in JSON: the fields of the messages
// are the keys of rule files. A field with its zero value is left out, as in proto3.
func convert(name string, data []byte) descriptors.Source {
	source := descriptors.Source{Name: name, Generated: true}
	var config ratelimitv3.RateLimitConfig
	if err := proto.Unmarshal(data, &config); err != nil {
		// The error varies its spaces, so that nobody relies on the text.
		reason := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
		return refused(source, "", "is not a RateLimitConfig: "+reason)
	}
	c := &converter{Source: source}
	document := c.message(config.ProtoReflect(), "", 0)
	delete(document, "name")
	encoded, err := json.Marshal(document)
	if err != nil {
		return refused(c.Source, "", err.Error())
	}
	c.Data = encoded
	return c.Source
}

// refused adds a mistake to a document.
func refused(s descriptors.Source, path, reason string) descriptors.Source {
	s.Mistakes = append(s.Mistakes, descriptors.Error{Path: path, Text: reason})
	return s
}

// converter makes one document. Load judges the content.
type converter struct{ descriptors.Source }

// message converts a message at a path of the document.
func (c *converter) message(m protoreflect.Message, path string, levels int) map[string]any {
	out := make(map[string]any)
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if !m.Has(field) {
			continue
		}
		name, value := string(field.Name()), m.Get(field)
		at := strings.TrimPrefix(path+"."+name, ".")
		switch {
		case field.IsList() && levels < maxLevels: // of messages
			list := make([]any, value.List().Len())
			for i := range list {
				list[i] = c.message(value.List().Get(i).Message(), fmt.Sprintf("%s[%d]", at, i), levels+1)
			}
			out[name] = list
		case field.IsList():
		case field.Message() != nil:
			out[name] = c.message(value.Message(), at, levels)
		case field.Enum() != nil:
			out[name] = unitName(value.Enum())
		default:
			out[name] = value.Interface()
		}
	}
	if _, ok := m.Interface().(*ratelimitv3.RateLimitPolicy); ok && out["unit"] == nil && out["unlimited"] == nil {
		out["unit"] = unitName(0)
	}
	c.unknown(m, path, out)
	return out
}

// unitName returns a unit as rule files name it. The message has units (MONTH 5, YEAR 6, WEEK 7)
// that this go-control-plane does not name; descriptors.Unit has the same numbers. The name of
// another number shows the number, and Load refuses it.
func unitName(u protoreflect.EnumNumber) string {
	if u == 0 {
		return "UNKNOWN"
	}
	if u < 0 || u > 255 {
		return fmt.Sprintf("unit(%d)", int32(u))
	}
	return descriptors.Unit(u).String()
}

// unknown converts the fields that Weir knows and the generated code does not, and warns once about
// every other field number.
func (c *converter) unknown(m protoreflect.Message, path string, out map[string]any) {
	_, isDescriptor := m.Interface().(*ratelimitv3.RateLimitDescriptor)
	var warned []protowire.Number
	var metadata []byte // nil without metadata
	for rest := m.GetUnknown(); len(rest) > 0; {
		number, kind, tag := protowire.ConsumeTag(rest)
		size := protowire.ConsumeFieldValue(number, kind, rest[max(tag, 0):])
		if tag < 0 || size < 0 {
			return // proto.Unmarshal keeps only well-formed fields
		}
		value := rest[tag : tag+size]
		rest = rest[tag+size:]
		switch {
		case isDescriptor && number == quotaModeField && kind == protowire.VarintType:
			n, _ := protowire.ConsumeVarint(value)
			out["quota_mode"] = protowire.DecodeBool(n)
		case isDescriptor && number == metadataField && kind == protowire.BytesType:
			part, _ := protowire.ConsumeBytes(value)
			metadata = append(append([]byte{}, metadata...), part...) // protobuf merges a message that comes in parts
		case !slices.Contains(warned, number):
			warned = append(warned, number)
			c.Warnings = append(c.Warnings, descriptors.Warning{Path: path, Text: fmt.Sprintf(
				"has an unknown field %d, which has no effect", number)})
		}
	}
	if metadata == nil {
		return
	}
	var s structpb.Struct
	if err := proto.Unmarshal(metadata, &s); err != nil {
		c.Source = refused(c.Source, strings.TrimPrefix(path+".metadata", "."), "is not a google.protobuf.Struct")
		return
	}
	out["metadata"] = s.AsMap()
}
