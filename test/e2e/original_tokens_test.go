package e2e

import (
	"fmt"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

func tokenQuota(t *testing.T, s *stage) {
	t.Helper()
	const spent = "ratelimit.service.rate_limit.rl.token.total_hits"
	s.plays(t, `
		200 backend | 2, 2;w=31536000 left 2 | 2 left 2 | reset
		200 backend | 2, 2;w=31536000 left 1 | 2 left 1 | reset
		200 backend | 2, 2;w=31536000 left 0 | 2 left 0 | reset
		429 | 2, 2;w=31536000 left 0 | 2 left 0 | reset, retry then
	`, func(client string) (got []string) {
		before := s.stat(t, spent)
		for n := range 4 {
			got = append(got, s.get(t, "/token", client, year))
			// Envoy charges when the stream is done, a moment after the client has its answer.
			parts.Eventually(t, func() string {
				if tokens := s.stat(t, spent) - before; tokens != n+1 {
					return fmt.Sprintf("after request %d: %d tokens are spent", n+1, tokens)
				}
				return ""
			})
		}
		return got
	})
}

func multiserviceTokenQuota(t *testing.T, s *stage) {
	t.Helper()
	const spent, cost = "ratelimit.service.rate_limit.rl.model_%s.client.total_hits", 3
	s.plays(t, `
		200 service_1 | 3, 6;w=31536000, 3;w=31536000 left 3 | 3 left 3 | reset
		spent: 3 of service_1, 0 of service_2
		200 service_1 | 6, 6;w=31536000, 3;w=31536000 left 3 | 6 left 3 | reset
		spent: 6 of service_1, 0 of service_2
		200 service_1 | 6, 6;w=31536000, 3;w=31536000 left 0 | 6 left 0 | reset
		spent: 9 of service_1, 0 of service_2
		200 service_2 | 6, 6;w=31536000, 3;w=31536000 left 0 | 6 left 0 | reset
		spent: 9 of service_1, 3 of service_2
		200 service_2 | 6, 6;w=31536000, 3;w=31536000 left 0 | 6 left 0 | reset
		spent: 9 of service_1, 6 of service_2
		429 | 6, 6;w=31536000, 3;w=31536000 left 0 | 6 left 0 | reset, retry then
	`, func(client string) (got []string) {
		first, second := fmt.Sprintf(spent, "service_1"), fmt.Sprintf(spent, "service_2")
		ofFirst, ofSecond := s.stat(t, first), s.stat(t, second)
		for n := range 5 {
			got = append(got, s.get(t, fmt.Sprintf("/model?cost=%d", cost), client, year))
			var of1, of2 int
			parts.Eventually(t, func() string {
				of1, of2 = s.stat(t, first)-ofFirst, s.stat(t, second)-ofSecond
				if of1+of2 != cost*(n+1) {
					return fmt.Sprintf("after request %d, %s: %d and %d tokens are spent", n+1, got[len(got)-1], of1, of2)
				}
				return ""
			})
			got = append(got, fmt.Sprintf("spent: %d of service_1, %d of service_2", of1, of2))
		}
		return append(got, s.get(t, "/model", client, year))
	})
}
