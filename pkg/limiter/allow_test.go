package limiter_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

func TestAllowSaysWhatTheCheckOfOneDescriptorDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, rules)
		client := []limiter.Entry{{Key: "path", Value: "/search"}, {Key: "client", Value: "a"}}
		for i, step := range []struct {
			domain  string
			entries []limiter.Entry
			want    limiter.Result
		}{
			{"edge", client, limiter.Result{Allowed: true, Limit: 2, Remaining: 1, ResetAfter: 30 * time.Second}},
			{"edge", client, limiter.Result{Allowed: true, Limit: 2, Remaining: 0, ResetAfter: time.Minute}},
			{"edge", client, limiter.Result{Limit: 2, RetryAfter: 30 * time.Second, ResetAfter: time.Minute}},
			{"edge", []limiter.Entry{{Key: "staff", Value: "me"}}, limiter.Result{Allowed: true}},
			{"nowhere", client, limiter.Result{Allowed: true}},
		} {
			got, err := f.Allow(t.Context(), step.domain, step.entries...)
			if err != nil || got != step.want {
				t.Errorf("step %d: Allow = %+v, %v; want %+v", i, got, err, step.want)
			}
		}
		if _, err := f.Allow(t.Context(), ""); err == nil || err.Error() != "rate limit domain must not be empty" {
			t.Errorf("Allow without a domain: got %v", err)
		}
	})
}

func TestLoadFilesPutsRulesInForceOrNamesEveryMistake(t *testing.T) {
	f := newFixture(t, rules)
	before := f.Rules()
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	for path, text := range map[string]string{
		good: "domain: a\ndescriptors: [{key: k, value: 10.0.0.0/8, rate_limit: {unit: day, requests_per_unit: 1}}]\n",
		bad:  "domain: b\ndescriptors: [{key: k, rate_limit: {unit: fortnight}}]\n",
	} {
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
	}
	if _, err := f.LoadFiles(good, filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("LoadFiles with a missing file: got %v", err)
	}
	if _, err := f.LoadFiles(good, bad); err == nil || !strings.Contains(err.Error(), "bad.yaml:2: descriptors[0].rate_limit.unit") {
		t.Errorf("LoadFiles with a mistake: got %v", err)
	} else if _, ok := errors.AsType[descriptors.Errors](err); !ok {
		t.Errorf("LoadFiles with a mistake: got %T; want descriptors.Errors", err)
	}
	_, err := f.LoadFiles(bad, filepath.Join(dir, "missing"))
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "bad.yaml:2: ") {
		t.Errorf("LoadFiles with a missing file and a mistake: got %v; want both", err)
	}
	if _, err := f.LoadFiles(); !errors.Is(err, limiter.ErrNoDocuments) {
		t.Errorf("LoadFiles of no file: got %v", err)
	}
	if f.Rules() != before {
		t.Error("refused files changed the rules")
	}
	warnings, err := f.LoadFiles(good)
	if err != nil || len(warnings) != 1 || f.Rules().Domain("a") == nil {
		t.Errorf("LoadFiles: got %v, %v; want a warning and the rules of the file", warnings, err)
	}
}
