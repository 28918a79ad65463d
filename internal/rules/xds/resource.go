package xds

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weirproxy/weir/pkg/descriptors"
)

const (
	typePrefix = "type.googleapis.com/"
	typeURL    = typePrefix + "ratelimit.config.ratelimit.v3.RateLimitConfig"
	wrapperURL = typePrefix + "envoy.service.discovery.v3.Resource" // may be around a resource of the state of the world
)

// Prefix begins the name of every document; the name of the resource follows.
const Prefix = "xds:"

// resource is one resource of a response.
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

// nameOf returns the name of a RateLimitConfig, else its domain, else "". Of malformed data, the
// beginning counts.
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

// broken returns a document without content that Load refuses for this reason.
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

// fieldsOf returns the number of fields of a message and of the descriptors in it, which are in one
// of its fields.
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
