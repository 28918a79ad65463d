package admin

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const legacyRules = `
domain: d
default: {unit: day, requests_per_unit: 9}
descriptors:
- key: a
  value: b
  rate_limits:
  - {unit: second, requests_per_unit: 1}
  - {unit: minute, unit_multiplier: 5, requests_per_unit: 2}
  - {algorithm: token_bucket, period: 90ms, requests_per_unit: 3}
  descriptors: [{key: c, shadow_mode: true, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 4}}]
- {key: free, rate_limit: {unlimited: true}}
`

// pageOf returns the status and the body of a page.
func pageOf(t *testing.T, pages http.Handler, method, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	pages.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader("{}")))
	return w.Code, w.Body.String()
}

func TestEachLimitIsALineOfRlconfig(t *testing.T) {
	f := start(t, legacyRules, nil)
	f.refuse("x.yaml:1: bad")
	_, got := pageOf(t, f.admin.Debug(func(io.Writer) error { return nil }), "GET", "/rlconfig")
	for _, want := range []string{
		"# refused: x.yaml:1: bad\n",
		"d.a_b: unit=SECOND requests_per_unit=1, shadow_mode: false, quota_mode: false\n",
		"d.a_b: unit=5MINUTE requests_per_unit=2, shadow_mode: false, quota_mode: false\n",
		"d.a_b: unit=90ms requests_per_unit=3, shadow_mode: false, quota_mode: false\n",
		"d.a_b.c: unit=YEAR requests_per_unit=4, shadow_mode: true, quota_mode: true\n",
		"d.free: unlimited\n", ": unit=DAY requests_per_unit=9, ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("/rlconfig lacks %q:\n%s", want, got)
		}
	}
}

func TestLegacyHealthFollowsReadiness(t *testing.T) {
	var why error
	f := start(t, legacyRules, func(o *Options) { o.Ready = func() error { return why } })
	pages := f.admin.Legacy()
	if code, body := pageOf(t, pages, "GET", "/healthcheck"); code != http.StatusOK || body != "OK" {
		t.Errorf("ready: got %d %q", code, body)
	}
	why = errors.New("not yet")
	if code, body := pageOf(t, pages, "GET", "/healthcheck"); code != http.StatusServiceUnavailable || body != "not yet" {
		t.Errorf("not ready: got %d %q", code, body)
	}
	if code, _ := pageOf(t, pages, "GET", "/livez"); code != http.StatusOK {
		t.Errorf("/livez: got %d", code)
	}
	why = nil
	f.admin.Drain()
	if code, _ := pageOf(t, pages, "GET", "/healthcheck"); code != http.StatusServiceUnavailable {
		t.Errorf("draining: got %d", code)
	}
	for _, path := range []string{"/metrics", "/rules", "/debug/pprof/"} {
		if code, _ := pageOf(t, pages, "GET", path); code != http.StatusNotFound {
			t.Errorf("%s: got %d, want it not there", path, code)
		}
	}
}

func TestStatsThatCannotBeWrittenAreAnError(t *testing.T) {
	f := start(t, legacyRules, nil)
	code, _ := pageOf(t, f.admin.Debug(func(io.Writer) error { return io.ErrClosedPipe }), "GET", "/stats")
	if code != http.StatusInternalServerError {
		t.Errorf("got %d", code)
	}
}
