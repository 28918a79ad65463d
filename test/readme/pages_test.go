package readme

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// maxLines is the largest length of a page. A longer page mixes concept, how-to and reference.
const maxLines = 300

func TestPagesAreShort(t *testing.T) {
	for _, d := range documents(t) {
		allowed := maxLines
		if d.name == "README.md" {
			allowed = 340 // the commands and outputs of a first hour
		}
		if d.name == "docs/migrating-variables.md" { // written by a program
			continue
		}
		if len(d.lines) > allowed {
			t.Errorf("%s: %d lines, want at most %d", d.name, len(d.lines), allowed)
		}
	}
}

func TestEveryPageIsInTheListOfTheREADME(t *testing.T) {
	readme := readFile(t, "README.md")
	for _, file := range trackedFiles(t) {
		if filepath.Dir(file) == "docs" && filepath.Ext(file) == ".md" && !strings.Contains(readme, "]("+file) {
			t.Errorf("README.md has no link to %s", file)
		}
	}
}

// Users search for these words. Each word must be in a heading or in the prose of a page.
func TestWordsThatUsersSearchForAreFound(t *testing.T) {
	var all strings.Builder
	for _, d := range documents(t) {
		all.WriteString(strings.ToLower(strings.Join(d.lines, "\n")))
	}
	for _, word := range []string{
		"LLM", "unauthenticated", "allow list", "block list", "percentage rollout", "filter_enforced", "local and global rate limiting",
		"timeouts", "tenants", "CIDR", "masked_remote_address", "kubectl exec", "troubleshooting", "burst", "retry after", "shadow",
	} {
		if !strings.Contains(all.String(), strings.ToLower(word)) {
			t.Errorf("no page has the word %q", word)
		}
	}
}

// The programs differ: sidecar has no StatsD, and ratelimit has. A page that denies a feature must
// name the program.
func TestNoPageDeniesAFeatureThatAProgramHas(t *testing.T) {
	denial := regexp.MustCompile(`(?i)weir does not have[^.]*(statsd|environment variables|merged)`)
	for _, d := range documents(t) {
		if found := denial.FindString(strings.Join(strings.Fields(strings.Join(d.prose, " ")), " ")); found != "" {
			t.Errorf("%s: %q: the program ratelimit has this feature", d.name, found)
		}
	}
}

func TestConfigurationsOfEnvoyInTheDocumentsAreEnvoys(t *testing.T) {
	n := 0
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if b.kind == "envoy" {
				n++
				if err := decodeEnvoy(b.text); err != nil {
					t.Errorf("%s:%d: %v", d.name, b.from, err)
				}
			}
		}
	}
	if n < 3 {
		t.Errorf("got %d configurations, want the 3 that there are at least", n)
	}
}

func TestAnUnknownFieldOfEnvoyIsAnError(t *testing.T) {
	for text, valid := range map[string]bool{
		"rate_limits:\n- actions:\n  - remote_address: {}\n":                                                                           true,
		"rate_limits:\n- actions:\n  - remote_addr: {}\n":                                                                              false,
		"typed_config:\n  \"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit\n  domain: edge\n":       true,
		"- typed_config:\n    \"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit\n    domian: edge\n": false,
		"cluster: rls\n": false,
	} {
		if err := decodeEnvoy(text); (err == nil) != valid {
			t.Errorf("%q: got %v, want valid: %t", text, err, valid)
		}
	}
}

// decodeEnvoy decodes a part of a configuration by Envoy's own types: a list rate_limits, or a
// message in a typed_config.
func decodeEnvoy(text string) error {
	var root any
	if err := yaml.Unmarshal([]byte(text), &root); err != nil {
		return err
	}
	if list, is := root.([]any); is && len(list) > 0 {
		root = list[0]
	}
	node, _ := root.(map[string]any)
	if socket, is := node["transport_socket"].(map[string]any); is {
		node = socket
	}
	limits, is := node["rate_limits"].([]any)
	if !is {
		return decode(node["typed_config"], &anypb.Any{})
	}
	for _, limit := range limits {
		if err := decode(limit, &routev3.RateLimit{}); err != nil {
			return err
		}
	}
	return nil
}

// decode decodes a value of YAML into a message; an unknown field is an error.
func decode(value any, into proto.Message) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return protojson.Unmarshal(text, into)
}
