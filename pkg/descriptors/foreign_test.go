package descriptors

import (
	"fmt"
	"strings"
	"testing"
)

// Each row is a limit in the words of another product, and a part of the answer.
func TestWordsOfOtherProductsGetTheWordsToWrite(t *testing.T) {
	for in, want := range map[string]string{
		"rate_limit: {algorithm: TokenBucket, requests_per_unit: 5, unit: minute}":    ": write token_bucket",
		"rate_limit: {algorithm: leaky_bucket, requests_per_unit: 5, unit: minute}":   "token_bucket with the size of the bucket as burst, such as burst: 1",
		"rate_limit: {algorithm: LeakyBucket, requests_per_unit: 5, unit: minute}":    "token_bucket with the size of the bucket as burst, such as burst: 1",
		"rate_limit: {algorithm: gcra, requests_per_unit: 5, unit: minute}":           ": token_bucket gives the same answers",
		"rate_limit: {algorithm: sliding-window, requests_per_unit: 5, unit: minute}": ": sliding_window_log is exact, sliding_window_counter is an estimate",
		"rate_limit: {algorithm: FIXED_WINDOW, requests_per_unit: 5, unit: minute}":   ": write fixed_window",
		"rate_limit: {token_bucket: {rate: 5}}":                                       "must be algorithm, beside requests_per_unit and unit: write token_bucket",
		"rate_limit: {requests_per_unit: 5, windowMs: 60000}":                         "must be unit: minute, or a period such as period: 10s",
		"rate_limit: {maxRequests: 5, unit: minute}":                                  "must be requests_per_unit, such as requests_per_unit: 100",
		"rate_limit: {limit: 5, unit: minute}":                                        "must be requests_per_unit, such as requests_per_unit: 100",
		"rate_limit: {rate: 5, unit: minute}":                                         "must be requests_per_unit, such as requests_per_unit: 100",
		"rate_limit: {requests_per_unit: 5, per: minute}":                             "must be unit: minute, or a period such as period: 10s",
		"rate_limit: {requests_per_unit: 5, window: 60s}":                             "must be unit: minute, or a period such as period: 10s",
		"rate_limit: {rps: 5}": "must be requests_per_unit: 100 and unit: second",
		"rate_limit: {requests_per_unit: 5, unit: minute, capacity: 9}": "must be burst, beside algorithm: token_bucket",
		"rate_limit: {requests_per_unit: 5, unit: minute, type: local}": "must be algorithm: fixed_window or token_bucket or another one",
		"rate_limit: {requests_per_unit: 5, unit: minutes}":             ": write unit: minute",
		"rate_limit: {requests_per_unit: 5, unit: h}":                   ": write unit: hour",
		"rate_limit: {requests_per_unit: 5, unit: 10s}":                 ": write period: 10s in the place of unit",
		"rate_limit: {requests_per_unit: 5, unit: 7d}":                  ": write period: 7d in the place of unit",
		"rate_limit: {requests_per_unit: 5, period: 60}":                ", probably 60s is meant",
		"rate_limit: {requests_per_unit: 5, period: 1 day}":             "must be a number and its unit, such as 250ms, 10s",
		"rate_limit: {requests_per_unit: 5, period: 1mo}":               "must be a number and its unit, such as 250ms, 10s",
		"rate_limit: 100/minute":                                        ": write requests_per_unit: 100 and unit: minute",
		"rate_limit: 10r/s":                                             ": write requests_per_unit: 10 and unit: second",
		"rate_limit: 100 requests per hour":                             ": write requests_per_unit: 100 and unit: hour",
		"rate_limit: 100":                                               "must be a map such as {requests_per_unit: 100, unit: minute}",
		"rate_limit: {requests_per_unit: 100/10s}":                      ": write requests_per_unit: 100 and period: 10s",
		"limit: {requests_per_unit: 5, unit: minute}":                   "must be rate_limit: {requests_per_unit: 100, unit: minute}",
		"dry_run: true": "must be shadow_mode: true",
		"rate_limit: {requests_per_unit: 5, unit: minute, dry_run: true}": "must be shadow_mode: true in the descriptor, beside rate_limit",
		"rate_limit: {concurrency: 5}":                                    ": write concurrency",
		"rate_limit: {max_connections: 5}":                                "must be algorithm: concurrency with max_in_flight and hold",
	} {
		got := strings.Join(messages(t, Source{Name: "a.yaml", Data: fmt.Appendf(nil, "domain: d\ndescriptors:\n- key: a\n  %s\n", in)}), "\n")
		if !strings.Contains(got, "a.yaml:4: ") || !strings.Contains(got, want) {
			t.Errorf("%s: got\n%s\nwant line 4 and %q", in, got, want)
		}
	}
	got := messages(t, Source{Name: "a.yaml", Data: []byte("domain: d\nrules: []\n")})
	if len(got) != 1 || !strings.Contains(got[0], "must be descriptors, a list of maps with key and rate_limit") {
		t.Errorf("rules in the place of descriptors: got %q", got)
	}
}

func TestAPeriodMayBeDaysAndWeeks(t *testing.T) {
	for text, want := range map[string]string{"7d": "week", "2w": "2week", "1d12h": "36hour", "1.5d": "36hour", "24h": "day"} {
		rules := load(t, "domain: d\ndescriptors:\n- key: a\n  rate_limit: {requests_per_unit: 1, period: "+text+"}\n")
		if got := rules.All()[0].Limits[0].PeriodName(); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}
