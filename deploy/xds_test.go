package deploy

import (
	"encoding/json"
	"net/http"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/test/parts"
)

// decode reads a YAML document as a message. An unknown field is a failure.
func decode(t *testing.T, document any, into proto.Message) {
	t.Helper()
	text, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

// readConfigs reads the rules of a file as a control plane sends them.
func readConfigs(t *testing.T, file string) []*ratelimitv3.RateLimitConfig {
	t.Helper()
	var all []*ratelimitv3.RateLimitConfig
	for _, document := range readAll(t, file) {
		config := new(ratelimitv3.RateLimitConfig)
		decode(t, document, config)
		all = append(all, config)
	}
	return all
}

// quotaMode makes a descriptor a quota. The field is newer than the type here.
func quotaMode(d *ratelimitv3.RateLimitDescriptor) *ratelimitv3.RateLimitDescriptor {
	const number = 7
	d.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), 1))
	return d
}

// The rules that the controller of AI Gateway makes of a QuotaPolicy: a limit for a model, and one
// for the gold tier of another.
func TestAIGatewaysServiceIsReadyWithRulesAndAnswersAsTheQuotaSays(t *testing.T) {
	t.Parallel()
	m := buildManifests(t, "ai-gateway")
	plane := parts.ControlPlaneFor(t)
	s := startService(t, m, surroundings{with: map[string]string{"CONFIG_GRPC_XDS_SERVER_URL": plane.Address, "REDIS_URL": parts.Nowhere(t)}})
	c := m.ratelimit(t)
	for path, want := range map[string]int{c.LivenessProbe.HTTPGet.Path: http.StatusOK, c.ReadinessProbe.HTTPGet.Path: http.StatusServiceUnavailable} {
		checkPage(t, "http://"+s.HTTP+path, want) // without rules
	}
	hour := func(n uint32) *ratelimitv3.RateLimitPolicy {
		return &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_HOUR, RequestsPerUnit: n}
	}
	const gold = "rule-0-x-tier|gold-match-0"
	quota := &ratelimitv3.RateLimitConfig{Name: "ai-gateway-quota", Domain: "ai-gateway-quota", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Key: "backend_name", Value: "default/openai", Descriptors: []*ratelimitv3.RateLimitDescriptor{
			quotaMode(&ratelimitv3.RateLimitDescriptor{Key: "model_name_override", Value: "small", RateLimit: hour(10)}),
			{Key: "model_name_override", Value: "large", Descriptors: []*ratelimitv3.RateLimitDescriptor{
				quotaMode(&ratelimitv3.RateLimitDescriptor{Key: gold, Value: gold, RateLimit: hour(5)}),
				quotaMode(&ratelimitv3.RateLimitDescriptor{Key: "rule-1-match--1", Value: "rule-1-match--1", RateLimit: hour(2)}),
			}},
		}},
	}}
	if err := plane.Set("envoy-ai-gateway-ratelimit", "1", quota); err != nil {
		t.Fatal(err)
	}
	awaitPage(t, "http://"+s.HTTP+c.ReadinessProbe.HTTPGet.Path, http.StatusOK, "OK")
	s.checkProbes(t, c)
	awaitRoom(t)
	const small, large = "backend_name=default/openai model_name_override=small", "backend_name=default/openai model_name_override=large"
	s.ask(t, insecure.NewCredentials(), "ai-gateway-quota", []question{
		{small + " +0", "OK | OK 10/hour left 10"},
		{small + " +11", "OVER_LIMIT | OVER_LIMIT 10/hour left 0"}, // of the answer, known at the end of the answer
		{small + " +0", "OVER_LIMIT | OVER_LIMIT 10/hour left 0"},
		// The tier and everybody: over limit when both are.
		{large + " " + gold + "=" + gold + " | " + large + " rule-1-match--1=rule-1-match--1 +3", "OK | OK 5/hour left 4 | OVER_LIMIT 2/hour left 0"},
		{large + " " + gold + "=" + gold + " +6 | " + large + " rule-1-match--1=rule-1-match--1", "OVER_LIMIT | OVER_LIMIT 5/hour left 0 | OVER_LIMIT 2/hour left 0"},
		{"backend_name=default/other model_name_override=small", "OK | OK"},
	})
	s.end(t, m)
}
