package xds

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
)

func load(data []byte) (*descriptors.Rules, []descriptors.Warning, error) {
	return descriptors.Load([]descriptors.Source{sourceOf("r", &anypb.Any{TypeUrl: typeURL, Value: data}, descriptors.Options{}, new(int))}, descriptors.Options{})
}

func TestAResourceMeansTheSameAsAFile(t *testing.T) {
	const resource = `{"name": "r", "domain": "default/eg/http", "descriptors": [
		{"key": "httproute/default/r/rule/0/match/0/*", "value": "httproute/default/r/rule/0/match/0/*", "descriptors": [
			{"key": "rule-0-match-0", "value": "one", "shadow_mode": true, "rate_limit": {"unit": "SECOND", "requests_per_unit": 5}},
			{"key": "rule-0-match-0", "rate_limit": {"unit": "MINUTE", "requests_per_unit": 4294967295, "name": "plan"}},
			{"key": "masked_remote_address", "value": "10.0.0.0/8", "descriptors": [
				{"key": "remote_address", "detailed_metric": true, "rate_limit": {"unit": "HOUR", "requests_per_unit": 7}}]}]},
		{"key": "contract", "rate_limit": {"unlimited": true, "replaces": [{"name": "plan"}]}},
		{"key": "month", "rate_limit": {"unit": 5, "requests_per_unit": 1}},
		{"key": "year", "rate_limit": {"unit": 6, "requests_per_unit": 1}},
		{"key": "week", "rate_limit": {"unit": 7, "requests_per_unit": 1}},
		{"key": "day", "rate_limit": {"unit": "DAY"}},
		{"key": "free"}]}`
	const file = `
domain: default/eg/http
descriptors:
  - key: httproute/default/r/rule/0/match/0/*
    value: httproute/default/r/rule/0/match/0/*
    descriptors:
      - {key: rule-0-match-0, value: one, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 5}}
      - {key: rule-0-match-0, rate_limit: {unit: minute, requests_per_unit: 4294967295, name: plan}}
      - key: masked_remote_address
        value: 10.0.0.0/8
        descriptors:
          - {key: remote_address, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 7}}
  - {key: contract, rate_limit: {unlimited: true, replaces: [{name: plan}]}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 1}}
  - {key: year, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: week, rate_limit: {unit: week, requests_per_unit: 1}}
  - {key: day, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: free}
`
	var config ratelimitv3.RateLimitConfig
	must.Do(t, protojson.Unmarshal([]byte(resource), &config))
	got, warnings, err := load(wire(t, &config))
	if err != nil {
		t.Fatal(err)
	}
	want, wantWarnings, err := descriptors.Load([]descriptors.Source{{Name: "xds:r", Data: []byte(file)}}, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.All(), got.All(), cmpopts.IgnoreFields(descriptors.Rule{}, "Line"), cmpopts.IgnoreUnexported(descriptors.Rule{}, descriptors.Limit{})); diff != "" {
		t.Errorf("rules (-file +resource):\n%s", diff)
	}
	if diff := cmp.Diff(wantWarnings, warnings, cmpopts.IgnoreFields(descriptors.Warning{}, "Line")); diff != "" {
		t.Errorf("warnings (-file +resource):\n%s", diff)
	}
	entries := []descriptors.Entry{{Key: "month", Value: "x"}}
	key := func(r *descriptors.Rules) string {
		rule := r.Domain("default/eg/http").Match(entries)
		return string(rule.AppendKey(nil, "default/eg/http", entries, &rule.Limits[0]))
	}
	if key(got) != key(want) {
		t.Errorf("key: got %q, want %q", key(got), key(want))
	}
}

// The bytes of these fields are written by hand. This test fails when the generated code learns one
// of the fields, which then is no longer unknown.
func TestFieldsOfNewerMessagesAreNotLost(t *testing.T) {
	const (
		quotaOn  = "\x38\x01" // 7, varint
		quotaOff = "\x38\x00"
		// 8, bytes: Struct{fields: {"service": "s1"}}, and {"zone": "eu", "n": 1.5}, which has two
		// entries.
		service = "\x42\x11" + "\x0a\x0f" + "\x0a\x07service" + "\x12\x04\x1a\x02s1"
		zone    = "\x42\x1e" + "\x0a\x0c" + "\x0a\x04zone" + "\x12\x04\x1a\x02eu" + "\x0a\x0e" + "\x0a\x01n" + "\x12\x09\x11\x00\x00\x00\x00\x00\x00\xf8\x3f"
	)
	tests := []struct {
		name     string
		fields   string
		quota    bool
		metadata map[string]any
		warnings []string
		err      string
	}{
		{name: "none"},
		{name: "quota_mode", fields: quotaOn, quota: true},
		{name: "of quota_mode twice the last", fields: quotaOn + quotaOff},
		{name: "metadata", fields: service, metadata: map[string]any{"service": "s1"}},
		{name: "metadata in two parts", fields: service + quotaOn + zone, quota: true, metadata: map[string]any{"service": "s1", "zone": "eu", "n": 1.5}},
		{name: "empty metadata", fields: "\x42\x00", metadata: map[string]any{}},
		{name: "metadata that is none", fields: "\x42\x01\xff", err: "xds:r: descriptors[1].descriptors[0].metadata: is not a google.protobuf.Struct"},
		{
			name: "a number that JSON does not have, in its JSON form", fields: "\x42\x10" + "\x0a\x0e" + "\x0a\x01n" + "\x12\x09\x11\x00\x00\x00\x00\x00\x00\xf0\x7f",
			metadata: map[string]any{"n": "Infinity"},
		},
		{name: "later fields, each warned of once", fields: "\x48\x01" + quotaOn + "\x48\x02" + "\x52\x00", quota: true, warnings: []string{
			"xds:r: warning: descriptors[1].descriptors[0]: has an unknown field 9, which has no effect",
			"xds:r: warning: descriptors[1].descriptors[0]: has an unknown field 10, which has no effect",
		}},
		{name: "quota_mode of another type", fields: "\x3a\x01\x01", warnings: []string{
			"xds:r: warning: descriptors[1].descriptors[0]: has an unknown field 7, which has no effect",
		}},
	}
	field := func(number byte, content string) string {
		return string(number<<3|2) + string([]byte{byte(len(content))}) + content
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inner := field(1, "k2") + field(3, "\x08\x02\x10\x05") + test.fields // 5 per minute
			data := field(1, "r") + field(2, "d") + field(3, field(1, "k0")) + field(3, field(1, "k1")+field(4, inner))
			rules, warnings, err := load([]byte(data))
			if test.err != "" || err != nil {
				if err == nil || err.Error() != test.err {
					t.Fatalf("load: got %v, want %q", err, test.err)
				}
				return
			}
			rule := rules.Domain("d").Match([]descriptors.Entry{{Key: "k1"}, {Key: "k2"}})
			if rule.Quota != test.quota || rule.Limits[0].Requests != 5 {
				t.Errorf("rule: got %+v, want quota %t", rule, test.quota)
			}
			must.Match(t, "metadata", test.metadata, rule.Metadata)
			var texts []string
			for _, w := range warnings {
				texts = append(texts, w.String())
			}
			must.Match(t, "warnings", test.warnings, texts)
		})
	}
}

func TestUnknownFieldsOfEveryMessageAreWarnedOf(t *testing.T) {
	later := []byte("\xa0\x01\x01") // 20, varint
	c := config("r", "d", 1)
	c.ProtoReflect().SetUnknown(later)
	policy := c.GetDescriptors()[0].GetRateLimit()
	policy.ProtoReflect().SetUnknown(later)
	policy.Replaces = []*ratelimitv3.RateLimitReplace{{Name: "other"}}
	policy.GetReplaces()[0].ProtoReflect().SetUnknown(later)
	_, warnings, err := load(wire(t, c))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, w := range warnings {
		if strings.HasPrefix(w.Text, "has an unknown field 20,") {
			paths = append(paths, w.Path)
		}
	}
	slices.Sort(paths)
	must.Match(t, "places of warnings", []string{"", "descriptors[0].rate_limit", "descriptors[0].rate_limit.replaces[0]"}, paths)
}

func TestMistakesNameTheResourceAndThePath(t *testing.T) {
	bad := func(change func(*ratelimitv3.RateLimitConfig)) []byte {
		c := config("r", "d", 1)
		change(c)
		return wire(t, c)
	}
	policy := func(c *ratelimitv3.RateLimitConfig) *ratelimitv3.RateLimitPolicy {
		return c.GetDescriptors()[0].GetRateLimit()
	}
	const units = " is not a unit, must be second, minute, hour, day, week, month or year"
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"noise", []byte{0xff}, "xds:r: is not a RateLimitConfig: cannot parse invalid wire-format data"},
		{
			"no domain", bad(func(c *ratelimitv3.RateLimitConfig) { c.Domain = "" }),
			"xds:r: domain: is missing or empty, must be the name of the domain, as Envoy sends it",
		},
		{
			"no key", bad(func(c *ratelimitv3.RateLimitConfig) { c.Descriptors[0].Key = "" }),
			"xds:r: descriptors[0].key: is missing or empty, must be the key of an entry, as Envoy sends it",
		},
		{"no unit", bad(func(c *ratelimitv3.RateLimitConfig) { policy(c).Unit = 0 }), `xds:r: descriptors[0].rate_limit.unit: "UNKNOWN"` + units},
		{"a unit of the future", bad(func(c *ratelimitv3.RateLimitConfig) { policy(c).Unit = 8 }), `xds:r: descriptors[0].rate_limit.unit: "unit(8)"` + units},
		{"a unit below all", bad(func(c *ratelimitv3.RateLimitConfig) { policy(c).Unit = -255 }), `xds:r: descriptors[0].rate_limit.unit: "unit(-255)"` + units},
		{
			"unlimited with a unit", bad(func(c *ratelimitv3.RateLimitConfig) { policy(c).Unlimited = true }),
			"xds:r: descriptors[0].rate_limit.unit: stands beside unlimited, must be left out",
		},
		{
			"twice", bad(func(c *ratelimitv3.RateLimitConfig) { c.Descriptors = append(c.Descriptors, c.GetDescriptors()[0]) }),
			`xds:r: descriptors[1]: "user" is given twice: descriptors side by side must differ in key or value`,
		},
		{
			"a replacement without a name", bad(func(c *ratelimitv3.RateLimitConfig) { policy(c).Replaces = []*ratelimitv3.RateLimitReplace{{}} }),
			"xds:r: descriptors[0].rate_limit.replaces[0].name: is missing or empty, must be the name of the limits to replace",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, _, err := load(test.data); err == nil || err.Error() != test.want {
				t.Errorf("load: got %v, want %s", err, test.want)
			}
		})
	}
}

func TestResourcesOfAStateOfTheWorldAreKnownByName(t *testing.T) {
	body := func(name, domain string) *anypb.Any {
		return &anypb.Any{TypeUrl: typeURL, Value: wire(t, config(name, domain, 1))}
	}
	wrapped := must.Get(anypb.New(&discoveryv3.Resource{Name: "outer", Resource: body("inner", "w")}))(t)
	all := resourcesOf([]*anypb.Any{
		body("r1", "a"), body("", "only-a-domain"),
		{TypeUrl: typeURL},
		body("r1", "b"), wrapped,
		{TypeUrl: "type.googleapis.com/x"},
		body("line\nfeed", "l"),
		{TypeUrl: typeURL, Value: append(wire(t, config("cut", "c", 1)), 0x1a, 0x7f)},
	}, descriptors.Options{})
	var names, wrong []string
	for _, r := range all {
		names = append(names, r.name+" "+r.Name)
		if _, _, err := descriptors.Load([]descriptors.Source{r.Source}, descriptors.Options{}); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	if diff := cmp.Diff([]string{
		"r1 xds:r1", "only-a-domain xds:only-a-domain", "#2 xds:#2", "r1#3 xds:r1#3", "outer xds:outer", "#5 xds:#5", "line\nfeed xds:\"line\\nfeed\"", "cut xds:cut",
	}, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"xds:#2: domain: is missing or empty, must be the name of the domain, as Envoy sends it",
		"xds:r1#3: has the name of another resource, must have one of its own",
		`xds:#5: is of the type "type.googleapis.com/x", must be type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig`,
		"xds:cut: is not a RateLimitConfig: cannot parse invalid wire-format data",
	}, wrong); diff != "" {
		t.Errorf("mistakes (-want +got):\n%s", diff)
	}
}

// FuzzResource: any resource of a control plane is loaded or refused.
func FuzzResource(f *testing.F) {
	deep := config("r", "d", 1).GetDescriptors()[0]
	for range 150 {
		deep = &ratelimitv3.RateLimitDescriptor{Key: "k", Descriptors: []*ratelimitv3.RateLimitDescriptor{deep}}
	}
	for _, seed := range []string{
		"", "\x0a\x01r\x12\x01d\x1a\x0a\x0a\x01k\x1a\x04\x08\x02\x10\x05\x38\x01", "\x0a\x01r\x12\x01d\x1a\x08\x0a\x01k\x42\x02\x0a\x00\x48\x01",
	} {
		f.Add([]byte(seed))
	}
	data, err := anypb.New(&ratelimitv3.RateLimitConfig{Name: "r", Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{deep}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data.GetValue())
	f.Fuzz(func(t *testing.T, data []byte) {
		all := resourcesOf([]*anypb.Any{{TypeUrl: typeURL, Value: data}}, descriptors.Options{})
		if len(all) != 1 || all[0].name == "" || strings.ContainsAny(all[0].Name, "\n") {
			t.Fatalf("resources: got %+v", all)
		}
		rules, _, err := descriptors.Load([]descriptors.Source{all[0].Source}, descriptors.Options{})
		if (err == nil) != (rules != nil) {
			t.Errorf("load: got %v and %v", rules, err)
		}
	})
}
