package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/internal/wire/web"
)

// jsonOf returns the page /json as a server of pages has it.
func jsonOf(s *Server, zeros bool) http.Handler {
	handle := s.JSON(zeros)
	if handle == nil {
		return http.NotFoundHandler()
	}
	return web.Handler(func(value any) { _ = s.Panicked(value) }, web.At("POST /json", "", handle))
}

// fetch asks /json, from this machine.
func (f *fixture) fetch(t *testing.T, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	f.json.ServeHTTP(w, fromHere(t, method, path, body))
	return w
}

// fromHere returns a request of JSON by a program on this machine.
func fromHere(t *testing.T, method, path, body string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.RemoteAddr, r.Host = "127.0.0.1:40000", "localhost:8080"
	r.Header.Set("Content-Type", "application/json")
	return r
}

func TestJSONIsShouldRateLimit(t *testing.T) {
	const ask = `{"domain": "edge", "hitsAddend": 2, "descriptors": [{"entries": [{"key": "minute", "value": "a"}]}]}`
	limit := `current_limit { requests_per_unit: 2 unit: MINUTE name: "per-minute" } duration_until_reset { seconds: 60 }`
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, func(o *Options) { o.Headers.RetryAfter = true })
		for _, want := range []struct {
			code     int
			response *ratelimitv3.RateLimitResponse
		}{
			{200, want(t, `overall_code: OK statuses { code: OK `+limit+`}`)},
			{429, want(t, `overall_code: OVER_LIMIT statuses { code: OVER_LIMIT `+limit+`}
				response_headers_to_add { key: "retry-after" value: "60" }`)},
		} {
			got := f.fetch(t, "POST", "/json", ask)
			if got.Code != want.code || got.Header().Get("Content-Type") != "application/json" {
				t.Errorf("/json: got %d %q; want %d, application/json", got.Code, got.Header(), want.code)
			}
			response := new(ratelimitv3.RateLimitResponse)
			if err := protojson.Unmarshal(got.Body.Bytes(), response); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.response, response, protocmp.Transform()); diff != "" {
				t.Errorf("/json (-want +got):\n%s", diff)
			}
		}
	})
}

func TestJSONShowsThatNoneAreLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		const ask = `{"domain": "edge", "descriptors": [{"entries": [{"key": "minute", "value": "a"}], "hitsAddend": "2"}, {"entries": [{"key": "nothing"}]}]}`
		for i, handler := range []http.Handler{f.json, jsonOf(f.server, false)} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, fromHere(t, "POST", "/json", ask))
			var got struct{ Statuses []map[string]any }
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || len(got.Statuses) != 2 {
				t.Fatalf("/json: got %v of %s", err, w.Body)
			}
			// envoyproxy/ratelimit leaves the 0 out, and a descriptor without a limit has no number.
			if left, shown := got.Statuses[0]["limitRemaining"]; shown != (i == 0) || shown && left != 0.0 {
				t.Errorf("handler %d: limitRemaining: got %v, shown %t", i, left, shown)
			}
			if _, shown := got.Statuses[1]["limitRemaining"]; shown {
				t.Errorf("handler %d: limitRemaining without a limit", i)
			}
		}
	})
}

func TestJSONErrors(t *testing.T) {
	const ask = `{"domain": "edge", "descriptors": [{"entries": [{"key": "minute", "value": "a"}]}]}`
	tests := []struct {
		name  string
		store failing
		body  string
		code  int
		text  string
	}{
		{"no_json", failing{}, "hello", 400, "not a RateLimitRequest"},
		{"unknown_field", failing{}, `{"domian": "edge"}`, 400, "domian"},
		{"invalid", failing{}, `{"domain": "edge"}`, 400, "rate limit descriptor list must not be empty"},
		{"too_large", failing{}, `{"domain": "` + strings.Repeat("d", 1000) + `"}`, 413, "too large"},
		{"store", failing{err: errors.New("secret")}, ask, 503, textStore},
		{"panic", failing{bug: "secret"}, ask, 500, textPanic},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startOn(t, storetest.Of(&test.store), everything, func(o *Options) { o.MaxRequestBytes = 1000 })
				got := f.fetch(t, "POST", "/json", test.body)
				if got.Code != test.code || !strings.Contains(got.Body.String(), test.text) || strings.Contains(got.Body.String(), "secret") {
					t.Errorf("/json: got %d %q; want %d with %q", got.Code, got.Body, test.code, test.text)
				}
			})
		})
	}
}
