package render

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/pkg/descriptors"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/printable", "internal/spelling", "pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store", "proto/...", "internal/top"},
		Never: []string{"github.com/weirproxy/weir/pkg/server", "github.com/weirproxy/weir/pkg/store/memstore", "github.com/spf13"},
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
		if got := periodText(d); got != want {
			t.Errorf("periodText(%v) = %q; want %q", d, got, want)
		}
	}
}
