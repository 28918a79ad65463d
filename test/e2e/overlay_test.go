package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ratelimitconfigv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

// The overlay and the control plane fail in turns. The last good rules stay whole, and each hit
// counts once.
func TestAnOverlayAndAPlaneThatFailInTurnsKeepRulesAndCounts(t *testing.T) {
	t.Parallel()
	plane := must.Get(parts.StartControlPlane(t.Context()))(t)
	t.Cleanup(func() { plane.Stop() })
	push := func(version string, unit ratelimitconfigv3.RateLimitUnit) {
		must.Do(t, plane.Set("default", version, &ratelimitconfigv3.RateLimitConfig{
			Name: "e2e", Domain: "e2e", Descriptors: []*ratelimitconfigv3.RateLimitDescriptor{
				{Key: "user", RateLimit: &ratelimitconfigv3.RateLimitPolicy{Unit: unit, RequestsPerUnit: 100}},
			},
		}))
	}
	push("1", ratelimitconfigv3.RateLimitUnit_DAY)
	overlay := filepath.Join(t.TempDir(), "overlay.yaml")
	write := func(algorithm string) {
		parts.Write(t, overlay+".next", "overlay:\n- for: {domain: e2e}\n  set: {algorithm: "+algorithm+"}\n")
		must.Do(t, os.Rename(overlay+".next", overlay))
	}
	write("sliding_window_log")
	s := startSidecarOn(t, overlay, "--xds-address="+plane.Address)
	c, hits := dial(t, s.GRPC), 0
	step := func(name string, shows ...string) {
		t.Helper()
		parts.Eventually(t, func() string {
			_, page := s.page(t, "/rules")
			for _, part := range shows {
				if !strings.Contains(page, part) {
					return fmt.Sprintf("%s: /rules has no %s:\n%s", name, part, page)
				}
			}
			return ""
		})
		hits++
		if got := c.ask(t, 1, "user", "alice").GetLimitRemaining(); int(got) != 100-hits {
			t.Errorf("%s: %d of 100 left after %d hits", name, got, hits)
		}
	}
	step("the first rules", "sliding_window_log", "overlay.yaml:2")
	plane.Stop()
	write("sliding_window_counter")
	step("the overlay changes without the plane", "sliding_window_counter")
	write("TokenBucket")
	step("the overlay is wrong", "write token_bucket", "sliding_window_counter")
	plane.Forget()
	push("1", ratelimitconfigv3.RateLimitUnit_HOUR)
	must.Do(t, plane.Restart(t.Context()))
	step("the plane is back with other rules while the overlay is wrong", "write token_bucket", "sliding_window_counter", "3600s")
	must.Do(t, os.Remove(overlay))
	step("the overlay is gone", "no such file", "sliding_window_counter")
	write("sliding_window_counter")
	push("2", ratelimitconfigv3.RateLimitUnit_DAY)
	step("both are good again", "sliding_window_counter", "86400s", `"errors": []`)
}
