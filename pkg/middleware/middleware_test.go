package middleware

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// A program of net/http does not link gRPC.
func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{
			"internal/headers", "internal/ranges", "internal/regular", "internal/spelling", "internal/timespan", "internal/top", "internal/zones",
			"pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store", "pkg/store/memstore",
		},
		Third: []string{},
		Never: []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/prometheus"},
	})
}

func hello() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "hello") })
}

func ask(h http.Handler, key string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Api-Key", key)
	h.ServeHTTP(w, r)
	return w
}

func TestEachKeyHasALimitAndHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := must.Get(limiter.PerKey(limiter.PerMinute(1), 2))(t)
		defer limits.Close()
		h := PerKey(limits, Header("X-API-Key"))(hello())
		ask(h, "alice")
		time.Sleep(time.Second)
		passed, denied := ask(h, "alice"), ask(h, "alice")
		if passed.Code != http.StatusOK || passed.Body.String() != "hello" || denied.Code != http.StatusTooManyRequests {
			t.Fatalf("got %d %q and %d, want 200 hello and 429", passed.Code, passed.Body, denied.Code)
		}
		want := http.Header{
			"Ratelimit-Limit": {"2"}, "Ratelimit-Remaining": {"0"}, "Ratelimit-Reset": {"119"},
			"Ratelimit-Policy": {`"minute";q=1;w=60;burst=2`}, "Ratelimit": {`"minute";r=0;t=119`},
		}
		got := passed.Header()
		got.Del("Content-Type")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("headers of a request that passes (-want +got):\n%s", diff)
		}
		if got := denied.Header().Get("Retry-After"); got != "59" {
			t.Errorf("Retry-After: got %q, want 59", got)
		}
		if bob := ask(h, "bob"); bob.Code != http.StatusOK {
			t.Errorf("another key: got %d, want 200", bob.Code)
		}
	})
}

func TestDeniedAndOnErrorAnswer(t *testing.T) {
	limits := must.Get(limiter.PerKey(limiter.PerHour(1), 1))(t)
	defer limits.Close()
	must.Get(limits.Limiter().Load(descriptors.Source{Name: "a.yaml", Data: []byte(
		"domain: shop\ndescriptors:\n- key: api_key\n  rate_limit: {requests_per_unit: 0, unit: hour}\n")}))(t)
	o := Options{
		Limiter: limits.Limiter(),
		Describe: func(r *http.Request, to *limiter.Request) {
			key := r.Header.Get("X-Api-Key")
			if key == "free" {
				return
			}
			if to.Domain = "shop"; key == "invalid" {
				to.Domain = ""
			}
			d := to.Add()
			d.Entries = append(d.Entries, limiter.Entry{Key: "api_key", Value: key})
		},
		Denied: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }),
	}
	h := must.Get(New(o))(t)(hello())
	for key, want := range map[string]int{"a": http.StatusTeapot, "free": http.StatusOK, "invalid": http.StatusOK} {
		if got := ask(h, key); got.Code != want {
			t.Errorf("%s: got %d, want %d", key, got.Code, want)
		}
	}
	o.OnError = func(w http.ResponseWriter, _ *http.Request, _ error) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return false
	}
	o.NoHeaders = true
	h = must.Get(New(o))(t)(hello())
	if got := ask(h, "invalid"); got.Code != http.StatusServiceUnavailable {
		t.Errorf("after an error: got %d, want 503 of OnError", got.Code)
	}
	if got := ask(h, "a"); got.Header().Get("RateLimit-Limit") != "" || got.Header().Get("Retry-After") != "" {
		t.Errorf("NoHeaders: got %v, want none", got.Header())
	}
	if _, err := New(Options{}); err == nil || err.Error() != "limiter: must not be nil\ndescribe: must not be nil" {
		t.Errorf("New: got %v, want both missing options", err)
	}
}
