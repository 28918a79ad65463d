package limiter_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// Expressions look at a value for the rule and for its key, however many limits the rule has.
func TestTheTimeOfExpressionsDoesNotGrowWithTheLimits(t *testing.T) {
	var parts, limits []string
	for _, end := range "bcdefghi" {
		parts = append(parts, fmt.Sprintf(`{regex: "(.*a){48}%c"}`, end))
	}
	for hours := range 40 {
		limits = append(limits, fmt.Sprintf("{period: %dh, requests_per_unit: 1000}", hours+1))
	}
	const rule = "  - {key: %s, match: {any_of: [%s, {path: \"/{id}\", count_by: id}]}, rate_limits: [%s]}\n"
	f := newFixture(t, "domain: edge\ndescriptors:\n"+
		fmt.Sprintf(rule, "one", strings.Join(parts, ", "), limits[0])+
		fmt.Sprintf(rule, "forty", strings.Join(parts, ", "), strings.Join(limits, ", ")))
	shortest := func(key string) time.Duration {
		least := time.Hour
		for range 5 {
			var r limiter.Request
			r.Domain = "edge"
			d := r.Add()
			d.Entries = append(d.Entries, limiter.Entry{Key: key, Value: "/" + strings.Repeat("a", 500)})
			begin := time.Now()
			if got := f.check(&r); !strings.HasPrefix(got, "OK ok:9") {
				t.Fatalf("%s: got %s, want a decision of its limits", key, got)
			}
			least = min(least, time.Since(begin))
		}
		return least
	}
	one, forty := shortest("one"), shortest("forty")
	t.Logf("one limit: %v, forty: %v", one, forty)
	if forty > 5*one {
		t.Errorf("one limit takes %v, forty limits %v: want about the same", one, forty)
	}
}
