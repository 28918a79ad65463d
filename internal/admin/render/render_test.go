package render

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/timespan"
	"github.com/weirproxy/weir/pkg/descriptors"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/printable", "pkg/quota", "internal/ranges", "internal/regular", "internal/spelling", "internal/timespan", "internal/zones", "pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store/memstore", "pkg/store", "proto/...", "internal/top"},
		Never: []string{"github.com/weirproxy/weir/pkg/server", "github.com/spf13"},
	})
}

func TestARuleShowsEveryKeyThatChangesItsMeaning(t *testing.T) {
	rules, _, err := descriptors.Load([]descriptors.Source{{Name: "r.yaml", Data: []byte(`domain: d
descriptors:
  - key: user
    value: free_*
    share_threshold: true
    descriptors:
      - key: path
        value_to_metric: true
        detailed_metric: true
        shadow_mode: true
        quota_mode: true
        on_store_error: deny
        metadata: {tier: gold}
        rate_limit: {unit: day, unit_multiplier: 7, requests_per_unit: 5, algorithm: token_bucket, burst: 9, name: n, replaces: [{name: m}]}
  - {key: free, rate_limit: {unlimited: true, name: m}}
`)}}, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := new(adminv1.Rule)
	if err := prototext.Unmarshal([]byte(`domain: "d" path: "user=free_*,path" file: "r.yaml" line: 7 name: "n" replaces: "m"
		shadow_mode: true quota_mode: true detailed_metric: true share_threshold: "user=free_*" value_to_metric: "path"
		metadata { fields { key: "tier" value { string_value: "gold" } } }
		limits { algorithm: "token_bucket" requests_per_unit: 5 period { seconds: 604800 } burst: 9 name: "n"
			unit: "day" unit_multiplier: 7 on_store_error: "deny" }`), want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, Rule(rules.All()[1]), protocmp.Transform()); diff != "" {
		t.Errorf("Rule (-want +got):\n%s", diff)
	}
	if got, want := LimitText(want.GetLimits()[0]), "5 per 7d, token_bucket, burst 9, on store error: deny"; got != want {
		t.Errorf("LimitText: got %q; want %q", got, want)
	}
}

func TestAPeriodLeavesOutTheUnitsThatAreZero(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Second: "1s", time.Minute: "1m", 90 * time.Second: "1m30s", time.Hour: "1h", 90 * time.Minute: "1h30m", 36 * time.Hour: "36h",
		168 * time.Hour: "7d", 1500 * time.Millisecond: "1.5s", time.Hour + time.Second: "1h0m1s",
	} {
		if got := timespan.Format(d); got != want {
			t.Errorf("timespan.Format(%v) = %q; want %q", d, got, want)
		}
	}
}

func TestAGrantSaysWhatItGives(t *testing.T) {
	for text, want := range map[string]string{
		`requests_per_unit: 0`:                                "nothing: the key is blocked",
		`requests_per_unit: 1`:                                "1 request per period",
		`requests_per_unit: 5 burst: 7 limit: "a"`:            "5 requests per period, burst 7, of the limit a",
		`requests_per_unit: 1 key: "1:m|1:k=1:v#concurrency"`: "1 at once",
		`factor: 2.5`:                                         "2.5 times the limit",
		`unlimited: true`:                                     "unlimited",
	} {
		g := new(adminv1.Grant)
		if err := prototext.Unmarshal([]byte(text), g); err != nil {
			t.Fatal(err)
		}
		if got := givesText(g); got != want {
			t.Errorf("%s: got %q; want %q", text, got, want)
		}
	}
}

// The numbers of an outage are the sidecar's own, and its waits have odd digits.
func TestAStateSaysItsSource(t *testing.T) {
	wait := durationpb.New(59*time.Second + 123_456_001*time.Nanosecond)
	for source, want := range map[string][2]string{
		"":                    {"allowed, 4 left after that, reset after 59.124s", "denied, 4 left, the same hits pass in 59.124s, reset after 59.124s"},
		"memory":              {"allowed, 4 left after that, reset after 59.124s", "denied, 4 left, the same hits pass in 59.124s, reset after 59.124s"},
		"redis":               {"allowed, 4 left after that, reset after 59.124s", "denied, 4 left, the same hits pass in 59.124s, reset after 59.124s"},
		"without redis":       {"allowed, 4 left after that, reset after 59.124s, without redis", "denied, 4 left, the same hits pass in 59.124s, reset after 59.124s, without redis"},
		"lease":               {"allowed, 4 left after that, reset after 59.124s, by lease", "denied, 4 left, the same hits pass in 59.124s, reset after 59.124s, by lease"},
		"something\u202e new": {"allowed, 4 left after that, reset after 59.124s, by something\\u202e new", "denied, 4 left, the same hits pass in 59.124s, reset after 59.124s, by something\\u202e new"},
	} {
		l := &adminv1.LimitExplanation{Allowed: true, Remaining: 4, RetryAfter: wait, ResetAfter: wait, Source: source}
		if got := stateText(l); got != want[0] {
			t.Errorf("%q, allowed: got %q, want %q", source, got, want[0])
		}
		l.Allowed = false
		if got := stateText(l); got != want[1] {
			t.Errorf("%q, denied: got %q, want %q", source, got, want[1])
		}
	}
	if got := waitText(1); got != "1ms" {
		t.Errorf("a nanosecond: got %q, want 1ms", got)
	}
}
