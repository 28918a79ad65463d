package xds

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/pkg/descriptors"
)

const (
	typePrefix = "type.googleapis.com/"
	typeURL    = typePrefix + "ratelimit.config.ratelimit.v3.RateLimitConfig"
	wrapperURL = typePrefix + "envoy.service.discovery.v3.Resource" // may be around a resource of the state of the world
)

// Prefix begins the name of every document; the name of the resource follows.
const Prefix = "xds:"

type resource struct {
	name    string
	version string // delta only
	descriptors.Source
}

// resourcesOf returns the resources of a state of the world. Each holds its own name.
func resourcesOf(all []*anypb.Any, bounds descriptors.Options) []resource {
	resources := make([]resource, 0, len(all))
	size := 0
	seen := make(map[string]bool, len(all))
	for i, body := range all {
		name, body := unwrap(body)
		name = cmp.Or(name, nameOf(body.GetValue()), "#"+strconv.Itoa(i))
		source := sourceOf(name, body, bounds, &size)
		if seen[name] {
			name += "#" + strconv.Itoa(i)
			source = broken(name, "has the name of another resource, must have one of its own")
		}
		seen[name] = true
		resources = append(resources, resource{name: name, Source: source})
	}
	return resources
}

// unwrap returns a resource without its wrapper, and the name in the wrapper, "" without a wrapper.
func unwrap(body *anypb.Any) (name string, inner *anypb.Any) {
	if body.GetTypeUrl() != wrapperURL {
		return "", body
	}
	var wrapper discoveryv3.Resource
	if body.UnmarshalTo(&wrapper) != nil || wrapper.GetResource() == nil {
		return wrapper.GetName(), body // sourceOf refuses the type
	}
	return wrapper.GetName(), wrapper.GetResource()
}

// nameOf returns the name of a RateLimitConfig, else its domain, else "", also of malformed data.
func nameOf(data []byte) string {
	var names [domainField + 1]string
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeField(data)
		if n < 0 {
			break // convert reports the error
		}
		if (number == nameField || number == domainField) && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(data)
			text, _ := protowire.ConsumeBytes(data[tag:])
			names[number] = string(text)
		}
		data = data[n:]
	}
	return cmp.Or(names[nameField], names[domainField])
}

// sourceOf returns a resource as a document to load, beside resources of the size before, and adds
// its size. A resource with which the response is too large is not decoded.
func sourceOf(name string, body *anypb.Any, bounds descriptors.Options, size *int) descriptors.Source {
	if body.GetTypeUrl() != typeURL {
		return broken(name, fmt.Sprintf("is of the type %q, must be %s", body.GetTypeUrl(), typeURL))
	}
	own := sizeOf(body.GetValue())
	if text, tooLarge := bounds.TooLarge(own, *size); tooLarge {
		return broken(name, text)
	}
	*size += own
	return convert(documentName(name), body.GetValue())
}

func broken(name, reason string) descriptors.Source {
	return refused(descriptors.Source{Name: documentName(name)}, "", reason)
}

// documentName returns the name of the document of a resource, on one line.
func documentName(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		name = strconv.Quote(name)
	}
	return Prefix + name
}

// Fields of RateLimitConfig and RateLimitDescriptor.
const (
	nameField        = 1 // of a RateLimitConfig
	domainField      = 2
	descriptorsField = 3
	belowField       = 4 // descriptors of a RateLimitDescriptor
)

// sizeOf returns the size of an encoded RateLimitConfig, as descriptors.Size: its length, or 24
// bytes for each field if that is more. A field has a key and a value. An empty descriptor has two
// bytes, and takes hundreds of bytes in memory.
func sizeOf(data []byte) int { return max(len(data), 24*fieldsOf(data, descriptorsField, 0)) }

// fieldsOf counts the fields of a message, and of the descriptors in one of its fields.
func fieldsOf(data []byte, descriptors protowire.Number, level int) int {
	fields := 0
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeField(data)
		if n < 0 {
			break // convert reports the error
		}
		fields++
		if number == descriptors && kind == protowire.BytesType && level < maxLevels {
			_, _, tag := protowire.ConsumeTag(data)
			below, _ := protowire.ConsumeBytes(data[tag:])
			fields += fieldsOf(below, belowField, level+1)
		}
		data = data[n:]
	}
	return fields
}

// Fields of RateLimitDescriptor in envoyproxy/ratelimit
// (api/ratelimit/config/ratelimit/v3/rls_conf.proto) that the message of this go-control-plane
// lacks.
const (
	quotaModeField = 7 // bool
	metadataField  = 8 // google.protobuf.Struct
)

// maxLevels bounds the levels that are converted. Load allows fewer and reports the excess.
const maxLevels = 1000

// convert turns an encoded RateLimitConfig into a rule document in JSON: the fields of the messages
// are the keys of rule files. A field with its zero value is left out, as in proto3. But a limit
// has its unit and its number: 0 is a number that a control plane may mean.
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

func refused(s descriptors.Source, path, reason string) descriptors.Source {
	s.Mistakes = append(s.Mistakes, descriptors.Error{Path: path, Text: reason})
	return s
}

type converter struct{ descriptors.Source }

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
	if _, ok := m.Interface().(*ratelimitv3.RateLimitPolicy); ok && out["unlimited"] == nil {
		if out["unit"] == nil {
			out["unit"] = unitName(0)
		}
		if out["requests_per_unit"] == nil {
			out["requests_per_unit"] = 0
		}
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

// unknown converts fields that the generated code lacks, and warns once about each other number.
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
