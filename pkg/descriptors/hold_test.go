package descriptors

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
)

func TestARuleWithHoldHasItsNumbers(t *testing.T) {
	rules := load(t, `domain: edge
defaults: {count_rejected: true}
descriptors:
  - key: model
    rate_limits:
      - {algorithm: concurrency, name: slots, max_in_flight: 50, hold: {begin: request, end: request_done, at_most: 60s}}
      - {algorithm: token_bucket, requests_per_unit: 7, unit: minute, burst: 9, hold: {begin: request, end: request_done, at_most: 10m}}
      - {requests_per_unit: 8, unit: hour}
`)
	rule := rules.Domain("edge").Match([]Entry{{"model", "m"}, {"request_done", "r"}})
	if rule == nil || rule.Begin != "request" || rule.End != "request_done" || !rule.Holds() {
		t.Fatalf("Match = %+v", rule)
	}
	want := []Limit{
		{Limit: algorithms.Limit{Algorithm: algorithms.Concurrency, Requests: 50}, Name: "slots", AtMost: time.Minute, suffix: "#concurrency"},
		{
			Limit:         algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 7, Period: time.Minute, Extra: algorithms.Extra{Burst: 9}},
			CountRejected: true, Unit: Minute, Multiplier: 1, AtMost: 10 * time.Minute, suffix: "#token_bucket/1m",
		},
		{
			Limit:         algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 8, Period: time.Hour},
			CountRejected: true, Unit: Hour, Multiplier: 1, suffix: "#fixed_window/1h",
		},
	}
	must.Match(t, "limits", want, rule.Limits, cmp.AllowUnexported(Limit{}))
}

// A denied begin holds nothing, so that its hits must not count, unless the author says so.
func TestDeniedHitsOfALimitWithHoldCountOnlyIfTheDocumentSaysSo(t *testing.T) {
	for text, want := range map[string]bool{"": false, ", count_rejected: true": true, ", count_rejected: false": false} {
		rules := load(t, "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, hold: {begin: r, end: d, at_most: 1s}"+text+"}}]")
		if got := rules.All()[0].Limits[0].CountRejected; got != want {
			t.Errorf("with %q: CountRejected = %v; want %v", text, got, want)
		}
	}
}

func TestMatchHoldersNeedsNoHolder(t *testing.T) {
	rules := load(t, `domain: edge
descriptors:
  - {key: a, value: x, rate_limit: {unit: day, requests_per_unit: 1, hold: {begin: r, end: d, at_most: 1s}}}
  - {key: a, rate_limit: {unit: day, requests_per_unit: 1}}
`).Domain("edge")
	for _, tt := range []struct {
		entries []Entry
		want    string
	}{
		{[]Entry{{"a", "x"}}, "a=x"},
		{[]Entry{{"a", "x"}, {"r", "1"}}, "a=x"},
		{[]Entry{{"a", "x"}, {"d", "1"}}, "a=x"},
		{[]Entry{{"a", "y"}}, ""},
		{[]Entry{{"a", "y"}, {"r", "1"}}, ""},
		{[]Entry{{"b", "y"}}, ""},
		{nil, ""},
	} {
		got := ""
		if r := rules.MatchHolders(tt.entries); r != nil {
			got = r.Path
		}
		if got != tt.want {
			t.Errorf("MatchHolders(%v) = %q; want %q", tt.entries, got, tt.want)
		}
	}
}

// A wildcard with hold lets descriptors without a holder pass: the rule after it is reached.
func TestARuleWithHoldHidesOnlyRulesWithHold(t *testing.T) {
	const (
		head  = "domain: edge\ndescriptors:\n"
		rate  = "rate_limit: {unit: day, requests_per_unit: 1"
		hold  = rate + ", hold: {begin: r, end: d, at_most: 1s}}}\n"
		plain = rate + "}}\n"
	)
	for _, tt := range []struct {
		name, document string
		want           int // warnings
	}{
		{"hold before plain", "  - {key: a, value: '*', " + hold + "  - {key: a, " + plain, 0},
		{"hold before plain wildcard", "  - {key: a, value: 'x*', " + hold + "  - {key: a, value: 'xy*', " + plain, 0},
		{"hold after plain key alone", "  - {key: a, " + plain + "  - {key: a, value: '*', " + hold, 0},
		{"hold before hold", "  - {key: a, value: '*', " + hold + "  - {key: a, " + hold, 1},
		{"plain before hold", "  - {key: a, value: 'x*', " + plain + "  - {key: a, value: 'xy*', " + hold, 1},
	} {
		if got := messages(t, Source{Name: "rules.yaml", Data: []byte(head + tt.document)}); len(got) != tt.want {
			t.Errorf("%s: got %q, want %d warnings", tt.name, got, tt.want)
		}
	}
}

func TestALimitWithHoldIsNotLeased(t *testing.T) {
	got := messages(t, Source{Name: "rules.yaml", Data: []byte(`domain: edge
descriptors:
  - key: a
    rate_limit: {unit: day, requests_per_unit: 1, sharing: leased, hold: {begin: " r", end: d, at_most: 1s}}
`)})
	want := []string{
		`rules.yaml:4: warning: descriptors[0].rate_limit.hold.begin: has blanks around it, which a request must send too: probably "r" is meant`,
		"rules.yaml:4: warning: descriptors[0].rate_limit.sharing: has no effect: a limit with hold is never leased",
	}
	must.Match(t, "messages", want, got)
}

func TestAtMostIsInStepsOfTheStore(t *testing.T) {
	document := []byte("domain: edge\ndescriptors: [{key: a, rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: r, end: d, at_most: 1000001ns}}}]")
	if _, _, err := Load([]Source{{Data: document}}, Options{}); err != nil {
		t.Errorf("nanoseconds: %v", err)
	}
	if _, _, err := Load([]Source{{Data: document}}, Options{Granularity: time.Microsecond}); err == nil {
		t.Error("microseconds: at_most of 1000001ns is no mistake")
	}
}
