package e2e

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/test/parts"
)

// Each place that explains a decision names the grant that decided, and no other one.
func TestEachPlaceNamesTheGrantThatDecided(t *testing.T) {
	t.Parallel()
	s := startSidecar(t, `
domain: e2e
descriptors:
  - key: tenant
    rate_limits: [{requests_per_unit: 20000, unit: minute, name: short}, {requests_per_unit: 100000, unit: year, name: long}]
`, "--dynamic-metadata")
	c := dial(t, s.GRPC)
	s.grant(t, "first", "--unlimited", "--for=1h") // of both limits
	for _, test := range []struct {
		name, value string
		args        []string
		want        ratelimitv3.RateLimitResponse_Code
		text        string // of match, before the ID
	}{
		{"a number", "more", []string{"--requests=5000", "--limit=short"}, ratelimitv3.RateLimitResponse_OK, "limit   5000 per 1m, fixed_window, denied hits count too (by grant "},
		{"a factor", "half", []string{"--factor=0.5"}, ratelimitv3.RateLimitResponse_OK, "limit   10000 per 1m, fixed_window, denied hits count too (by grant "},
		{"everything", "free", []string{"--unlimited"}, ratelimitv3.RateLimitResponse_OK, "grant   everything passes (by grant "},
		{"nothing", "bot", []string{"--block"}, ratelimitv3.RateLimitResponse_OVER_LIMIT, "limit   0 per 1m, fixed_window, denied hits count too (by grant "},
		{"nothing for one limit, beside everything", "first", []string{"--block", "--limit=long"}, ratelimitv3.RateLimitResponse_OVER_LIMIT, "limit   0 per 365d, fixed_window, denied hits count too (by grant "},
	} {
		t.Run(test.name, func(t *testing.T) {
			id := s.grant(t, test.value, append(test.args, "--for=1h")...)
			watch, err := parts.Start("watch", os.Getenv(sidecarVariable), "watch", "--server="+s.Admin, "--output=json", "--count=1")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(watch.Kill)
			var answer *ratelimitv3.RateLimitResponse
			parts.Eventually(t, func() string {
				if answer, err = c.service.ShouldRateLimit(parts.Soon(t), request(1, "tenant", test.value)); err != nil {
					t.Fatal(err)
				}
				select {
				case <-watch.Exited():
					return ""
				default:
					return "the watch has not seen a request"
				}
			})
			if got := answer.GetOverallCode(); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
			metadata, err := json.Marshal(answer.GetDynamicMetadata().AsMap())
			if err != nil || strings.Count(string(metadata), `"grant":"`+id+`"`) != 1 {
				t.Errorf("dynamic metadata do not name grant %s: %s, %v", id, metadata, err)
			}
			if seen := watch.Tail(100); !strings.Contains(seen, `"grant": "`+id+`"`) && !strings.Contains(seen, `"grant":"`+id+`"`) {
				t.Errorf("watch does not name grant %s: %s", id, seen)
			}
			if out := s.must(t, "match", "e2e", "tenant="+test.value); !strings.Contains(out, test.text+id+" until ") {
				t.Errorf("match does not name grant %s:\n%s", id, out)
			}
			type named struct{ Grant *struct{ ID string } }
			var all struct {
				Descriptors []struct {
					named
					Limits []named
				}
			}
			out := s.must(t, "match", "--output=json", "e2e", "tenant="+test.value)
			if err := json.Unmarshal([]byte(out), &all); err != nil || len(all.Descriptors) != 1 {
				t.Fatalf("match: %v\n%s", err, out)
			}
			d := all.Descriptors[0]
			everything := d.Grant != nil && d.Grant.ID == id && len(d.Limits) == 0
			limit := d.Grant == nil && slices.ContainsFunc(d.Limits, func(l named) bool { return l.Grant != nil && l.Grant.ID == id })
			if test.name == "everything" && !everything || test.name != "everything" && !limit {
				t.Errorf("Explain does not name grant %s in its place:\n%s", id, out)
			}
		})
	}
}
