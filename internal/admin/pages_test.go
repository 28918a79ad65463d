package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/internal/wire/web"
	"github.com/weirproxy/weir/internal/zones"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// fetch asks for a page, from this machine.
func (f *fixture) fetch(t *testing.T, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	f.admin.HTTP().ServeHTTP(w, fromHere(t, method, path, body))
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

func TestPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, watchedRules, nil)
		tests := []struct {
			method, path string
			code         int
			body         string // part of it
		}{
			{"GET", "/healthcheck", 200, "OK"},
			{"GET", "/livez", 200, "OK\n"},
			{"GET", "/readyz", 200, "OK\n"},
			{"HEAD", "/readyz", 200, ""},
			{"GET", "/metrics", 200, "weir_requests_total"},
			{"GET", "/rules", 200, `"path": "path=/cart"`},
			{"POST", "/healthcheck", 405, ""},
			{"GET", "/json", 405, ""},
			{"GET", "/", 200, "/healthcheck: OK, or 503 while the server drains\n/json: a RateLimitRequest as JSON\n/livez: "},
			{"GET", "/nothing", 404, ""},
			{"GET", "/debug/pprof/", 404, ""},
			{"GET", "/debug/vars", 404, ""},
		}
		for _, test := range tests {
			got := f.fetch(t, test.method, test.path, "")
			if got.Code != test.code || !strings.Contains(got.Body.String(), test.body) {
				t.Errorf("%s %s: got %d %q; want %d with %q", test.method, test.path, got.Code, got.Body, test.code, test.body)
			}
		}
	})
}

// listenerAt is a listener with another address.
type listenerAt struct {
	net.Listener
	at net.Addr
}

func (l listenerAt) Addr() net.Addr { return l.at }

func TestTheFirstPageNamesTheAdminPage(t *testing.T) {
	for at, want := range map[string]string{
		"127.0.0.1:8082": "The admin page is at http://127.0.0.1:8082/ of this machine.\n\n/healthcheck: ",
		"[::1]:8082":     "The admin page is at http://[::1]:8082/ of this machine.\n\n/healthcheck: ",
		"192.0.2.7:9000": "The admin page is at http://192.0.2.7:9000/.\n\n/healthcheck: ",
		"[::]:9000":      "The admin page is at port 9000, by http.\n\n/healthcheck: ",
	} {
		f := start(t, watchedRules, nil)
		if body := f.fetch(t, "GET", "/", "").Body.String(); !strings.HasPrefix(body, "/healthcheck: ") {
			t.Errorf("without an admin address: got %q", body)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = f.admin.Serve(listenerAt{l, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(at))}) }()
		body := ""
		for end := time.Now().Add(10 * time.Second); body == "" || !strings.HasPrefix(body, want) && time.Now().Before(end); time.Sleep(time.Millisecond) {
			body = f.fetch(t, "GET", "/", "").Body.String()
		}
		if !strings.HasPrefix(body, want) {
			t.Errorf("%s: got %q, want %q", at, body, want)
		}
		f.admin.Close()
	}
}

func TestReadersThatStallAreBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, watchedRules, nil)
		listener := bufconn.Listen(16)
		pages := &http.Server{Handler: f.admin.HTTP(), ReadHeaderTimeout: time.Hour, WriteTimeout: time.Hour}
		go func() { _ = pages.Serve(listener) }()
		defer pages.Close()
		for range 4 {
			conn, err := listener.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: weir\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		for _, want := range []int{503, 200} {
			if got := f.fetch(t, "GET", "/metrics", "").Code; got != want {
				t.Errorf("/metrics beside four that stall: got %d; want %d", got, want)
			}
			time.Sleep(web.WriteTimeout)
			synctest.Wait()
		}
	})
}

func TestProfilesOnlyWhenAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, watchedRules, func(o *Options) { o.Pprof = true })
		if got := f.fetch(t, "GET", "/debug/pprof/goroutine?debug=1", ""); got.Code != 200 || !strings.Contains(got.Body.String(), "goroutine profile") {
			t.Errorf("/debug/pprof/goroutine: got %d %q; want the profile", got.Code, got.Body)
		}
		if got := f.fetch(t, "GET", "/debug/pprof/cmdline", ""); got.Code != 200 || got.Body.String() != os.Args[0] {
			t.Errorf("/debug/pprof/cmdline: got %d %q; want the program without its arguments", got.Code, got.Body)
		}
	})
}

func TestAProfileMayTakeLongerThanTheReadingOfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, watchedRules, nil)
		took := make(chan time.Duration, 1)
		handler := f.admin.handler(web.At("GET /debug/pprof/long", "", func(_ http.ResponseWriter, r *http.Request) {
			began := time.Now()
			select {
			case <-r.Context().Done():
			case <-time.After(time.Minute):
			}
			took <- time.Since(began)
		}))
		listener := bufconn.Listen(16)
		pages := &http.Server{Handler: handler, ReadTimeout: 10 * time.Second, ReadHeaderTimeout: time.Second}
		go func() { _ = pages.Serve(listener) }()
		defer pages.Close()
		conn, err := listener.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /debug/pprof/long HTTP/1.1\r\nHost: weir\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if got := <-took; got != time.Minute {
			t.Errorf("the profile ended after %v, want a minute", got)
		}
	})
}

func TestCostlyPagesAreWrittenToAFewClientsAtOnce(t *testing.T) {
	for path, of := range map[string]func(*Server) http.Handler{
		"/rules":                      (*Server).HTTP,
		"/debug/pprof/heap?debug=1":   (*Server).HTTP,
		"/rlconfig":                   func(s *Server) http.Handler { return s.Debug(func(io.Writer) error { return nil }) },
		"/debug/pprof/allocs?debug=1": func(s *Server) http.Handler { return s.Debug(func(io.Writer) error { return nil }) },
	} {
		f := start(t, watchedRules, func(o *Options) { o.Pprof = true })
		pages := of(f.admin)
		ask := func(w http.ResponseWriter) { pages.ServeHTTP(w, fromHere(t, "GET", path, "")) }
		var asking sync.WaitGroup
		stalls := make([]stalled, web.MaxInFlight)
		for i := range stalls {
			stalls[i] = stalled{ResponseRecorder: httptest.NewRecorder(), begun: make(chan struct{}), read: make(chan struct{})}
			asking.Go(func() { ask(&stalls[i]) })
			<-stalls[i].begun
		}
		w := httptest.NewRecorder()
		if ask(w); w.Code != 503 || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s beside %d that stall: got %d, %q; want 503 and Retry-After", path, web.MaxInFlight, w.Code, w.Header())
		}
		for i := range stalls {
			close(stalls[i].read)
		}
		asking.Wait()
		w = httptest.NewRecorder()
		if ask(w); w.Code != 200 {
			t.Errorf("%s afterwards: got %d, want 200", path, w.Code)
		}
	}
}

// stalled is a client that reads nothing until read is closed.
type stalled struct {
	*httptest.ResponseRecorder
	once  sync.Once
	begun chan struct{} // closed at the first write
	read  chan struct{}
}

func (s *stalled) Write(b []byte) (int, error) {
	s.once.Do(func() { close(s.begun) })
	<-s.read
	return s.ResponseRecorder.Write(b)
}

func TestReadyWithRulesUntilDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "", nil)
		codes := func() [3]int {
			return [3]int{f.fetch(t, "GET", "/livez", "").Code, f.fetch(t, "GET", "/healthcheck", "").Code, f.fetch(t, "GET", "/readyz", "").Code}
		}
		if got, want := codes(), [3]int{200, 200, 503}; got != want {
			t.Errorf("livez, healthcheck, readyz without rules: got %v; want %v", got, want)
		}
		f.setRules(load(t, watchedRules))
		if got, want := codes(), [3]int{200, 200, 200}; got != want {
			t.Errorf("with rules: got %v; want %v", got, want)
		}
		f.admin.Drain()
		if got, want := codes(), [3]int{200, 503, 503}; got != want {
			t.Errorf("drained: got %v; want %v", got, want)
		}
	})
}

func TestPanicsInPagesAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, watchedRules, nil)
		w := httptest.NewRecorder()
		f.admin.handler(web.At("GET /", "", func(http.ResponseWriter, *http.Request) { _ = boom("bug in a page") })).
			ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
		if w.Code != 500 || !strings.Contains(f.logs.Take(), "bug in a page") {
			t.Errorf("a page that panics: got %d; want 500 and a log line", w.Code)
		}
	})
}

func TestRulesPageShowsWhatIsLoadedAndTheLastErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "", func(o *Options) { o.Sources = []string{"rules.yaml"} })
		page := func() map[string]any {
			t.Helper()
			got := make(map[string]any)
			if err := json.Unmarshal(f.fetch(t, "GET", "/rules", "").Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			return got
		}
		want := map[string]any{
			"sources": []any{"rules.yaml"}, "loaded_at": nil, "attempted_at": nil, "loads": 0.0, "refusals": 0.0, "unconfirmed_since": nil,
			"errors": []any{}, "warnings": []any{}, "rules": []any{}, "hash": "", "zones": zones.Version,
		}
		if diff := cmp.Diff(want, page()); diff != "" {
			t.Errorf("/rules before any (-want +got):\n%s", diff)
		}
		f.setRules(load(t, `domain: edge
default: {unit: minute, requests_per_unit: 9}
descriptors:
  - {key: a, value: "<x>", rate_limit: {unit: hour, unit_multiplier: 2, requests_per_unit: 5, algorithm: token_bucket, burst: 7, name: n}}
  - {key: b, shadow_mode: true, on_store_error: deny, metadata: {tier: gold}, rate_limit: {period: 1500ms, requests_per_unit: 5}}
`), descriptors.Warning{File: "rules.yaml", Line: 3, Path: "descriptors[0]", Text: "odd"}.String())
		time.Sleep(time.Minute)
		f.refuse("rules.yaml:1: no")
		// rule returns a rule of the page: the fields of every rule, and the given ones.
		rule := func(own map[string]any) map[string]any {
			all := map[string]any{
				"domain": "edge", "file": "rules.yaml", "name": "", "replaces": []any{}, "unlimited": false, "shadow_mode": false, "quota_mode": false, "group": "",
				"detailed_metric": false, "begin": "", "end": "", "metadata": nil, "share_threshold": []any{}, "value_to_metric": []any{},
			}
			maps.Copy(all, own)
			return all
		}
		want = map[string]any{
			"sources": []any{"rules.yaml"}, "loaded_at": "2000-01-01T00:00:00Z", "attempted_at": "2000-01-01T00:01:00Z",
			"loads": 1.0, "refusals": 1.0, "unconfirmed_since": nil, "errors": []any{"rules.yaml:1: no"}, "hash": f.limiter.Rules().Hash(),
			"warnings": []any{"rules.yaml:3: warning: descriptors[0]: odd"}, "zones": zones.Version,
			"rules": []any{
				rule(map[string]any{"path": "a=<x>", "line": 4.0, "name": "n", "limits": []any{map[string]any{
					"name": "n", "algorithm": "token_bucket", "requests_per_unit": 5.0, "unit": "hour", "unit_multiplier": 2.0, "sharing": "",
					"period": "7200s", "burst": 7.0, "at_most": nil, "gives_back": false, "table": nil, "table_line": 0.0, "warn_at": []any{}, "alignment": "", "money": false, "schedule": []any{}, "schedule_until": "", "overlay": "", "escalate": "", "prices": nil, "learned": nil, "count_rejected": false, "on_store_error": "",
				}}}),
				rule(map[string]any{
					"path": "b", "line": 5.0, "shadow_mode": true, "metadata": map[string]any{"tier": "gold"},
					"limits": []any{map[string]any{
						"name": "", "algorithm": "fixed_window", "requests_per_unit": 5.0, "unit": "", "unit_multiplier": 0.0, "sharing": "",
						"period": "1.500s", "burst": 5.0, "at_most": nil, "gives_back": false, "table": nil, "table_line": 0.0, "warn_at": []any{}, "alignment": "", "money": false, "schedule": []any{}, "schedule_until": "", "overlay": "", "escalate": "", "prices": nil, "learned": nil, "count_rejected": true, "on_store_error": "deny",
					}},
				}),
				rule(map[string]any{"path": "default", "line": 2.0, "limits": []any{map[string]any{
					"name": "", "algorithm": "fixed_window", "requests_per_unit": 9.0, "unit": "minute", "unit_multiplier": 1.0, "sharing": "",
					"period": "60s", "burst": 9.0, "at_most": nil, "gives_back": false, "table": nil, "table_line": 0.0, "warn_at": []any{}, "alignment": "", "money": false, "schedule": []any{}, "schedule_until": "", "overlay": "", "escalate": "", "prices": nil, "learned": nil, "count_rejected": true, "on_store_error": "",
				}}}),
			},
		}
		got := page()
		for _, key := range []string{"loaded_at", "attempted_at"} { // in the time zone of this machine
			at, err := time.Parse(time.RFC3339, fmt.Sprint(got[key]))
			if err != nil {
				t.Fatal(err)
			}
			got[key] = at.UTC().Format(time.RFC3339)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("/rules (-want +got):\n%s", diff)
		}
	})
}
