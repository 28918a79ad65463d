package suggest

import (
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// A burst that is small beside the rate still lets the most hits of a second pass.
func TestASuggestedBurstIsAtLeastTheHitsOfASecond(t *testing.T) {
	o := Options{Rules: load(t, "domain: edge\ndescriptors:\n- {key: c, rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 100, burst: 20}}\n")}
	var traffic []*records.Record
	for i := range 3 {
		traffic = append(traffic, record(time.Duration(i)*time.Millisecond, 1, "c", "x"))
	}
	_, documents := suggestions(t, o, Goal{Keys: 1, Unit: descriptors.Minute}, append(traffic, late(time.Hour)))
	if got := simulated(t, documents, traffic); got.Denied != 0 {
		t.Errorf("%d are denied by\n%s", got.Denied, documents[0])
	}
}

// A pasted suggestion lifts no ban.
func TestABanStays(t *testing.T) {
	const rules = `
domain: edge
descriptors:
- {key: bad, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: two, rate_limits: [{unit: second, requests_per_unit: 9}, {algorithm: token_bucket, unit: day, requests_per_unit: 0}]}
`
	o := Options{Rules: load(t, rules)}
	traffic := []*records.Record{record(0, 1, "bad", "x"), record(time.Second, 1, "two", "x"), record(2*time.Second, 1, "two", "y")}
	r, documents := suggestions(t, o, Goal{Keys: 1, Unit: descriptors.Minute}, traffic)
	want := `domain: edge
descriptors:
  # stays as in rules0.yaml:4: a ban: the limit is 0
  - key: bad
    rate_limit: {unit: day, requests_per_unit: 0}
  # stays as in rules0.yaml:5: a ban: the limit is 0
  - key: two
    rate_limits:
      - {unit: second, requests_per_unit: 9}
      - {algorithm: token_bucket, unit: day, requests_per_unit: 0}
`
	if documents[0] != want {
		t.Errorf("got\n%s\nwant\n%s", documents[0], want)
	}
	if len(r.Shapes) != 0 || r.Skipped.Banned != 3 {
		t.Errorf("%d suggestions, %d banned; want 0 and 3", len(r.Shapes), r.Skipped.Banned)
	}
	load(t, documents...)
}

// Requests that are not counted meet their rules in the suggestion too.
func TestRulesThatAreNotCountedStay(t *testing.T) {
	const rules = `
domain: edge
default: {unlimited: true}
descriptors:
- {key: m, rate_limit: {name: slots, algorithm: concurrency, max_in_flight: 7, hold: {begin: r, end: d, at_most: 90s}}}
- {key: free, value_to_metric: true, metadata: {tier: [1, "y", null, true]}, rate_limit: {unlimited: true, name: free, replaces: [{name: slots}, {name: away}]}}
- {key: away, rate_limit: {name: away, unit: day, requests_per_unit: 2}}
`
	o := Options{Rules: load(t, rules)}
	_, documents := suggestions(t, o, Goal{Unit: descriptors.Minute}, []*records.Record{record(0, 1, "m", "x", "r", "1"), record(0, 1, "free", "x"), record(0, 1, "x", "x"), late(time.Hour)})
	want := `domain: edge
# stays as in rules0.yaml:3: unlimited
default: {unlimited: true}
descriptors:
  # stays as in rules0.yaml:5: hits of a rule with hold are not counted
  - key: m
    rate_limit: {name: slots, algorithm: concurrency, max_in_flight: 7, hold: {begin: r, end: d, at_most: 1m30s}}
  # left out: replaces "away", as no limit here has that name
  # stays as in rules0.yaml:6: unlimited
  - key: free
    value_to_metric: true
    metadata: {tier: [1, "y", null, true]}
    rate_limit: {name: free, unlimited: true, replaces: [{name: slots}]}
`
	if documents[0] != want {
		t.Errorf("got\n%s\nwant\n%s", documents[0], want)
	}
	load(t, documents...)
}

func TestASuggestionKeepsBlocksThatGrow(t *testing.T) {
	const rules = "domain: edge\ndescriptors:\n- {key: a, rate_limit: {unit: minute, requests_per_unit: 9, escalate: {after: 2, within: 10m, block: [90s, 1h], forget: 7d}}}\n"
	_, documents := suggestions(t, Options{Rules: load(t, rules)}, Goal{Keys: 1, Unit: descriptors.Minute}, []*records.Record{record(0, 1, "a", "x"), late(time.Hour)})
	const want = "escalate: {after: 2, within: 10m, block: [1m30s, 1h], forget: 7d}"
	if !strings.Contains(documents[0], want) {
		t.Errorf("got\n%s\nwant %s", documents[0], want)
	}
	load(t, documents...)
}
