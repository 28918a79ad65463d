package e2e

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// byUser makes one descriptor, (user=<x-user>), of a request that has the header.
const byUser = `
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
`

// year is the length of the windows of tests that must not see one end, in seconds.
const year = 365 * 24 * 3600

// repeat returns n times code.
func repeat(n, code int) []int {
	codes := make([]int, n)
	for i := range codes {
		codes[i] = code
	}
	return codes
}

// seconds returns a header that is a whole number of seconds, and checks that it is from lo to hi.
func (a answer) seconds(t *testing.T, name string, lo, hi int) int {
	t.Helper()
	n, err := strconv.Atoi(a.header.Get(name))
	if err != nil || n < lo || n > hi {
		t.Errorf("%s: got %q, want %d to %d", name, a.header.Get(name), lo, hi)
	}
	return n
}

func TestAllowedRequestSaysLimitRemainingAndReset(t *testing.T) {
	t.Parallel()
	s := startSidecar(t, `
domain: e2e
descriptors:
  - key: user
    rate_limit: {name: per-user, requests_per_unit: 5, unit: year}
`)
	e := startEnvoy(t, envoyConfig{RateLimits: byUser, Endpoints: []string{tcpAddress(t, s.GRPC)}})
	for i := range 5 {
		a := e.get(t, "/", "x-user: alice")
		got := []string{strconv.Itoa(a.code), a.header.Get("x-ratelimit-limit"), a.header.Get("x-ratelimit-remaining"), a.body}
		want := []string{"200", `5, 5;w=31536000;name="per-user"`, strconv.Itoa(4 - i), "backend\n"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("request %d, code, limit, remaining and body (-want +got):\n%s", i+1, diff)
		}
		a.seconds(t, "x-ratelimit-reset", 1, year)
		if got := a.header.Get("retry-after"); got != "" {
			t.Errorf("retry-after of an allowed request: got %q, want none", got)
		}
	}
	// A descriptor without a rule has no limit to tell of.
	if a := e.get(t, "/"); a.code != http.StatusOK || a.header.Get("x-ratelimit-limit") != "" {
		t.Errorf("without a user: got %d, x-ratelimit-limit %q, want 200 and no header", a.code, a.header.Get("x-ratelimit-limit"))
	}
}

func TestExactlyNRequestsPassAndTheNextIsTold429AndRetryAfter(t *testing.T) {
	t.Parallel()
	const n = 5
	tests := []struct {
		algorithm                    string
		minRetryAfter, maxRetryAfter int // seconds
	}{
		// The window ends on its own calendar: some time within the year.
		{"fixed_window", 1, year},
		{"sliding_window_counter", 1, 2 * year},
		// The oldest hit leaves after a year, a token comes back after a fifth of one.
		{"sliding_window_log", year - 120, year},
		{"token_bucket", year/n - 120, year / n},
		{"token_bucket_integer", year/n - 120, year / n},
	}
	rules := "domain: e2e\ndescriptors:\n"
	for _, test := range tests {
		rules += "  - {key: algorithm, value: " + test.algorithm + ", rate_limit: {algorithm: " + test.algorithm + ", requests_per_unit: 5, unit: year}}\n"
	}
	s := startSidecar(t, rules)
	e := startEnvoy(t, envoyConfig{
		RateLimits: `- actions: [{request_headers: {header_name: x-algorithm, descriptor_key: algorithm}}]`,
		Endpoints:  []string{tcpAddress(t, s.GRPC)},
	})
	for _, test := range tests {
		t.Run(test.algorithm, func(t *testing.T) {
			header := "x-algorithm: " + test.algorithm
			if diff := cmp.Diff(repeat(n, 200), e.codes(t, n, "/", header)); diff != "" {
				t.Errorf("the first %d codes (-want +got):\n%s", n, diff)
			}
			for range n {
				a := e.get(t, "/", header)
				if a.code != http.StatusTooManyRequests {
					t.Fatalf("after %d requests: got %d, want 429", n, a.code)
				}
				if got := a.header.Get("x-ratelimit-remaining"); got != "0" {
					t.Errorf("x-ratelimit-remaining: got %q, want 0", got)
				}
				a.seconds(t, "retry-after", test.minRetryAfter, test.maxRetryAfter)
			}
		})
	}
	want := map[string]int{"ok": n * len(tests), "over_limit": n * len(tests)}
	if diff := cmp.Diff(want, e.rateLimitStats(t)); diff != "" {
		t.Errorf("Envoy's counters (-want +got):\n%s", diff)
	}
}

func TestTwoDescriptorsOfOneRequestAreOneQuestionAndMustBothPass(t *testing.T) {
	t.Parallel()
	s := startSidecar(t, `
domain: e2e
descriptors:
  - key: shop
    rate_limit: {requests_per_unit: 5, unit: year, count_rejected: false}
  - key: user
    rate_limit: {requests_per_unit: 2, unit: year, count_rejected: false}
`)
	e := startEnvoy(t, envoyConfig{
		RateLimits: `
- actions: [{generic_key: {descriptor_key: shop, descriptor_value: main}}]
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
`,
		Endpoints: []string{tcpAddress(t, s.GRPC)},
	})

	a := e.get(t, "/", "x-user: alice")
	got := []string{a.header.Get("x-ratelimit-limit"), a.header.Get("x-ratelimit-remaining")}
	if diff := cmp.Diff([]string{"2, 5;w=31536000, 2;w=31536000", "1"}, got); diff != "" {
		t.Errorf("both limits, and what is left of the tighter (-want +got):\n%s", diff)
	}
	// Alice's second passes, then her own limit denies, and takes nothing from the shop's.
	if diff := cmp.Diff([]int{200, 429, 429, 429}, e.codes(t, 4, "/", "x-user: alice")); diff != "" {
		t.Errorf("alice (-want +got):\n%s", diff)
	}
	// So three are left of the shop's five; Bob's second is the fourth, Carol's first the fifth, her
	// second one too many.
	got2 := append(e.codes(t, 2, "/", "x-user: bob"), e.codes(t, 2, "/", "x-user: carol")...)
	if diff := cmp.Diff([]int{200, 200, 200, 429}, got2); diff != "" {
		t.Errorf("bob, bob, carol, carol (-want +got):\n%s", diff)
	}
	if got, want := s.metric(t, "weir_requests_total"), 9; got != want {
		t.Errorf("questions asked for 9 requests: got %d, want %d", got, want)
	}
}

// A client that obeys retry-after would otherwise ask for ever.
func TestACostThatNeverPassesIsToldNoRetryAfter(t *testing.T) {
	t.Parallel()
	s := startSidecar(t, `
domain: e2e
descriptors:
  - {key: user, value: alice, rate_limit: {algorithm: token_bucket, requests_per_unit: 5, unit: year}}
  - {key: user, value: mallory, rate_limit: {requests_per_unit: 0, unit: year}}
`, "--response-headers=retry-after")
	e := startEnvoy(t, envoyConfig{
		RateLimits:   `[{actions: [{request_headers: {header_name: x-user, descriptor_key: user}}], hits_addend: {format: "%REQ(x-cost)%"}}]`,
		NoRetryAfter: true, Endpoints: []string{tcpAddress(t, s.GRPC)},
	})
	for _, of := range []struct{ user, cost string }{{"alice", "6"}, {"mallory", "1"}} {
		a := e.get(t, "/", "x-user: "+of.user, "x-cost: "+of.cost)
		if got := a.header.Get("retry-after"); a.code != http.StatusTooManyRequests || got != "" {
			t.Errorf("%s: got %d, retry-after %q; want 429 and none", of.user, a.code, got)
		}
	}
}
