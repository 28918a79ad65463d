package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weirproxy/weir/pkg/limiter"
)

// Rule files of the original may use hold, as they may use Weir's other keys. Documents of one
// domain are merged, as the original does.
func TestRuleFilesMayUseHold(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"a.yaml": "domain: d\ndescriptors:\n  - {key: model, value: big, rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: request, end: done, at_most: 1m}}}\n",
		"b.yaml": "domain: d\ndescriptors:\n  - {key: model, rate_limit: {unit: day, requests_per_unit: 5}}\n",
	} {
		if err := os.WriteFile(filepath.Join(root, "config", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, _, err := load(t, root, "MERGE_DOMAIN_CONFIG=true")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		entries []limiter.Entry
		want    limiter.Result
	}{
		{[]limiter.Entry{{Key: "model", Value: "big"}, {Key: "request", Value: "1"}}, limiter.Result{Allowed: true, Limit: 1}},
		{[]limiter.Entry{{Key: "model", Value: "big"}, {Key: "request", Value: "2"}}, limiter.Result{Limit: 1}},
		{[]limiter.Entry{{Key: "model", Value: "big"}, {Key: "done", Value: "1"}}, limiter.Result{Allowed: true, Limit: 1, Remaining: 1}},
		{[]limiter.Entry{{Key: "model", Value: "big"}}, limiter.Result{Allowed: true, Limit: 5, Remaining: 4}}, // the sibling
	} {
		got, err := l.Allow(t.Context(), "d", step.entries...)
		got.RetryAfter, got.ResetAfter = 0, 0
		if err != nil || got != step.want {
			t.Errorf("%v: got %+v, %v; want %+v", step.entries, got, err, step.want)
		}
	}
}
