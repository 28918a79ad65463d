package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

func TestDynamicMetadataOfTheDecisionIsInEnvoysAccessLog(t *testing.T) {
	t.Parallel()
	const rules = `
domain: e2e
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 5, unit: year}
    metadata: {tier: gold, contact: {team: [billing, sales]}}
`
	// The line of a request in the access log: Weir's dynamic metadata, nil without metadata.
	logged := func(t *testing.T, args ...string) map[string]any {
		t.Helper()
		s := startSidecar(t, rules, args...)
		e := startEnvoy(t, envoyConfig{RateLimits: byUser, Endpoints: []string{tcpAddress(t, s.GRPC)}})
		if code := e.get(t, "/", "x-user: alice").code; code != http.StatusOK {
			t.Fatalf("got %d, want 200", code)
		}
		var line struct {
			Ratelimit map[string]any `json:"ratelimit"`
		}
		parts.Eventually(t, func() string {
			content, err := os.ReadFile(e.accessLog)
			if err != nil || !strings.HasSuffix(string(content), "\n") {
				return "no access log yet"
			}
			if err := json.Unmarshal(content, &line); err != nil {
				t.Fatalf("access log %q: %v", content, err)
			}
			return ""
		})
		return line.Ratelimit
	}

	t.Run("with --dynamic-metadata", func(t *testing.T) {
		got := logged(t, "--dynamic-metadata")
		// The shape is envoyproxy/ratelimit's: the request, and the metadata of the rules that passed.
		if got["domain"] != "e2e" {
			t.Errorf("domain: got %v, want e2e", got["domain"])
		}
		descriptors, _ := json.Marshal(got["descriptors"])
		if !strings.Contains(string(descriptors), `"entries":["user=alice"]`) {
			t.Errorf("descriptors: got %s, want the entry user=alice", descriptors)
		}
		metadata, _ := json.Marshal(got["metadata"])
		if want := `{"contact":{"team":["billing","sales"]},"tier":"gold"}`; string(metadata) != want {
			t.Errorf("metadata: got %s, want %s", metadata, want)
		}
	})
	t.Run("without", func(t *testing.T) {
		if got := logged(t); got != nil {
			t.Errorf("got %v, want none", got)
		}
	})
}

func TestResponseHeadersReachTheClientAndRetryAfterOnlyOverLimit(t *testing.T) {
	t.Parallel()
	s := startSidecar(t, `
domain: e2e
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 1, unit: year}
`, "--response-headers=ratelimit,ietf,retry-after")
	e := startEnvoy(t, envoyConfig{RateLimits: byUser, NoRetryAfter: true, Endpoints: []string{tcpAddress(t, s.GRPC)}})

	ours := []string{"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "ratelimit", "ratelimit-policy"}
	allowed := e.get(t, "/", "x-user: alice")
	denied := e.get(t, "/", "x-user: alice")
	if got := []int{allowed.code, denied.code}; !slices.Equal(got, []int{200, 429}) {
		t.Fatalf("codes: got %v, want [200 429]", got)
	}
	for _, name := range ours {
		if allowed.header.Get(name) == "" || denied.header.Get(name) == "" {
			t.Errorf("%s: got %q when allowed and %q when denied, want it on both", name, allowed.header.Get(name), denied.header.Get(name))
		}
	}
	if got := denied.header.Get("ratelimit-remaining"); got != "0" {
		t.Errorf("ratelimit-remaining of the denied: got %q, want 0", got)
	}
	if got := allowed.header.Get("retry-after"); got != "" {
		t.Errorf("retry-after of the allowed: got %q, want none", got)
	}
	denied.seconds(t, "retry-after", 1, year)
}
