package xds

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weirproxy/weir/pkg/descriptors"
)

const (
	typePrefix = "type.googleapis.com/"
	typeURL    = typePrefix + "ratelimit.config.ratelimit.v3.RateLimitConfig"
	wrapperURL = typePrefix + "envoy.service.discovery.v3.Resource" // around a resource of the state of the world that has more to say
)

// Prefix begins the names of documents, and the name of their resource ends them.
const Prefix = "xds:"

// resource is one resource of a response.
type resource struct {
	name    string
	version string // delta only
	descriptors.Source
}

// resourcesOf returns the resources of a state of the world, which have their names inside.
func resourcesOf(all []*anypb.Any) []resource {
	resources := make([]resource, 0, len(all))
	seen := make(map[string]bool, len(all))
	for i, body := range all {
		name, body := unwrap(body)
		if name == "" {
			name = nameOf(body.GetValue())
		}
		if name == "" {
			name = "#" + strconv.Itoa(i)
		}
		if seen[name] {
			name += "#" + strconv.Itoa(i)
			resources = append(resources, resource{name: name, Source: broken(name, body, "has the name of another resource, must have one of its own")})
			continue
		}
		seen[name] = true
		resources = append(resources, resource{name: name, Source: sourceOf(name, body)})
	}
	return resources
}

// unwrap returns a resource without its wrapper, and the name that it has there, "" without one.
func unwrap(body *anypb.Any) (name string, inner *anypb.Any) {
	if body.GetTypeUrl() != wrapperURL {
		return "", body
	}
	var wrapper discoveryv3.Resource
	if body.UnmarshalTo(&wrapper) != nil || wrapper.GetResource() == nil {
		return wrapper.GetName(), body // of a wrong type, then
	}
	return wrapper.GetName(), wrapper.GetResource()
}

// nameOf returns the name of a RateLimitConfig, its domain when it has none, or "". It reads no further than it must.
func nameOf(data []byte) string {
	var name, domain string
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			break
		}
		data = data[n:]
		if kind == protowire.BytesType && (number == 1 || number == 2) {
			text, n := protowire.ConsumeString(data)
			if n < 0 {
				break
			}
			data = data[n:]
			if number == 1 {
				name = text
			} else {
				domain = text
			}
			continue
		}
		if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
			break
		}
		data = data[n:]
	}
	if name != "" {
		return name
	}
	return domain
}

// sourceOf returns a resource as a document to load.
func sourceOf(name string, body *anypb.Any) descriptors.Source {
	if body.GetTypeUrl() != typeURL {
		return broken(name, body, fmt.Sprintf("is of the type %q, must be %s", body.GetTypeUrl(), typeURL))
	}
	return descriptors.Source{Name: documentName(name), Data: body.GetValue(), Decode: decode}
}

// broken returns a document that is bad for a reason of its own.
func broken(name string, body *anypb.Any, reason string) descriptors.Source {
	data, err := proto.Marshal(body)
	if err != nil { // it has just been read
		data = nil
	}
	return descriptors.Source{Name: documentName(name), Data: data, Decode: func([]byte) (map[string]any, []descriptors.Error, []descriptors.Warning) {
		return nil, []descriptors.Error{{Text: reason}}, nil
	}}
}

// documentName returns the name under which the document of a resource is known, on one line.
func documentName(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		name = strconv.Quote(name)
	}
	return Prefix + name
}
