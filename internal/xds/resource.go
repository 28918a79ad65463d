package xds

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/proto"
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
func resourcesOf(all []*anypb.Any) []resource {
	resources := make([]resource, 0, len(all))
	seen := make(map[string]bool, len(all))
	for i, body := range all {
		name, body := unwrap(body)
		name = cmp.Or(name, nameOf(body.GetValue()), "#"+strconv.Itoa(i))
		source := sourceOf(name, body)
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

// nameOf returns the name of a RateLimitConfig, else its domain, else "". Of malformed data, the beginning counts.
func nameOf(data []byte) string {
	var config ratelimitv3.RateLimitConfig
	_ = proto.Unmarshal(data, &config) // convert reports the error
	return cmp.Or(config.GetName(), config.GetDomain())
}

// sourceOf returns a resource as a document to load.
func sourceOf(name string, body *anypb.Any) descriptors.Source {
	if body.GetTypeUrl() != typeURL {
		return broken(name, fmt.Sprintf("is of the type %q, must be %s", body.GetTypeUrl(), typeURL))
	}
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
