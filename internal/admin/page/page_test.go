package page

import (
	"crypto/tls"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/logtest"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/loglimit", "internal/wire/web", "pkg/algorithms", "proto/..."},
		Third: []string{"google.golang.org/grpc/...", "google.golang.org/protobuf/..."},
		Never: []string{"github.com/weirproxy/weir/pkg/server"},
	})
}

const secret = "a-token-of-24-characters"

// fixture is a page with its log.
type fixture struct {
	*Page
	log *logtest.Log
}

// newPage returns a page without a token, unless change adds one.
func newPage(t *testing.T, change func(*Options)) fixture {
	t.Helper()
	f := fixture{log: new(logtest.Log)}
	o := Options{
		Service: adminv1.UnimplementedAdminServiceServer{}, Logger: slog.New(slog.NewTextHandler(f.log, nil)),
	}
	if change != nil {
		change(&o)
	}
	var err error
	if f.Page, err = New(o); err != nil {
		t.Fatal(err)
	}
	return f
}

func withToken(o *Options) { o.Tokens = NewTokens(func() string { return secret }) }

// ask sends a request with headers, "Name: value" each.
func (f fixture) ask(method, path, body string, headers ...string) *http.Response {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost:8082"
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	data, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestTheGateRefusesForeignHostsOriginsAndProxies(t *testing.T) {
	f := newPage(t, func(o *Options) { o.Hosts = []string{"Weir.Example"} })
	tests := []struct {
		name    string
		method  string
		headers []string
		want    int
	}{
		{"localhost", "GET", nil, 200},
		{"an address", "GET", []string{"Host: 127.0.0.1:8082"}, 200},
		{"an address of IPv6", "GET", []string{"Host: [::1]:8082"}, 200},
		{"a listed name", "GET", []string{"Host: weir.example."}, 200},
		{"DNS rebinding", "GET", []string{"Host: rebound.evil.example:8082"}, 421},
		{"no host", "GET", []string{"Host: "}, 421},
		{"a name that ends like a listed one", "GET", []string{"Host: notweir.example"}, 421},
		{"a form of another site", "POST", []string{"Origin: http://evil.example"}, 403},
		{"a form of a page without an origin", "POST", []string{"Origin: null"}, 403},
		{"a form of another site, as new browsers say", "POST", []string{"Sec-Fetch-Site: cross-site"}, 403},
		{"a form of another port", "POST", []string{"Sec-Fetch-Site: same-site", "Origin: http://localhost:3000"}, 403},
		{"a form of this page", "POST", []string{"Sec-Fetch-Site: same-origin", "Origin: http://localhost:8082"}, 303},
		{"a proxy", "GET", []string{"X-Forwarded-For: 203.0.113.9"}, 403},
		{"a proxy's other header", "GET", []string{"Forwarded: for=203.0.113.9"}, 403},
		{"Envoy", "GET", []string{"X-Request-Id: 1"}, 403},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := "/assets/page.css"
			if test.method == "POST" {
				path = "/logout"
			}
			got := f.ask(test.method, path, "", test.headers...)
			if got.StatusCode != test.want {
				t.Errorf("got %d %s, want %d", got.StatusCode, text(t, got), test.want)
			}
			if got.Header.Get("Access-Control-Allow-Origin") != "" || !strings.Contains(got.Header.Get("Content-Security-Policy"), "default-src 'none'") {
				t.Errorf("headers: %v", got.Header)
			}
		})
	}
}

func TestAProxyMayForwardRequestsWithTheToken(t *testing.T) {
	got := newPage(t, withToken).ask("GET", "/nothing", "", "X-Forwarded-For: 203.0.113.9", "Authorization: Bearer "+secret)
	if got.StatusCode != http.StatusNotFound {
		t.Errorf("got %d, want 404 behind the gate", got.StatusCode)
	}
}

func TestEverythingInsideNeedsTheToken(t *testing.T) {
	f := newPage(t, withToken)
	for _, path := range []string{"/", "/events", "/api/Explain", "/nothing"} {
		for _, header := range []string{"X: y", "Authorization: Bearer wrong", "Authorization: " + secret, "Cookie: " + f.sessions.cookie + "=x", "Authorization: Bearer "} {
			if got := f.ask("GET", path, "", header); got.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s with %q: got %d, want 401", path, header, got.StatusCode)
			}
		}
	}
	if got := f.ask("GET", "/", "", "Accept: text/html"); got.StatusCode != http.StatusSeeOther || got.Header.Get("Location") != "/login" {
		t.Errorf("a browser without a session: got %d to %q, want 303 to /login", got.StatusCode, got.Header.Get("Location"))
	}
	if got := f.ask("GET", "/nothing", "", "Authorization: bearer "+secret); got.StatusCode != http.StatusNotFound {
		t.Errorf("with the token: got %d, want 404", got.StatusCode)
	}
	if log := f.log.Take(); !strings.Contains(log, "wrong token") || strings.Contains(log, secret) {
		t.Errorf("log: %s", log)
	}
}

// A browser asks for this path beside an answer that names no icon. A 404 there would be an error
// on the console of a person who looks.
func TestABrowserFindsTheIconBesideEachAnswer(t *testing.T) {
	f := newPage(t, withToken)
	got := f.ask("GET", "/favicon.ico", "")
	if kind := got.Header.Get("Content-Type"); got.StatusCode != http.StatusOK || kind != "image/svg+xml" {
		t.Errorf("got %d, %q, want the icon", got.StatusCode, kind)
	}
	if got := f.ask("GET", "/favicon.ico", "", "Host: rebound.evil.example"); got.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("of another host: got %d, want 421", got.StatusCode)
	}
}

// The page without scripts names commands that people copy.
func TestThePageNamesTheAddressThatTheBrowserHasReached(t *testing.T) {
	tests := []struct {
		name, host string
		tls, token bool
		want       string
	}{
		{"a port", "localhost:8082", false, false, "--server localhost:8082"},
		{"the port of HTTP", "localhost", false, false, "--server localhost:80"},
		{"the port of HTTPS", "127.0.0.1", true, false, "--server 127.0.0.1:443 --tls"},
		{"IPv6", "[::1]:8082", false, false, "--server [::1]:8082"},
		{"IPv6 without a port", "[::1]", true, false, "--server [::1]:443 --tls"},
		{"a token", "localhost:8082", true, true, "--server localhost:8082 --tls --token-file FILE"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newPage(t, func(o *Options) {
				if test.token {
					withToken(o)
				}
			})
			r := httptest.NewRequest("GET", "/", nil)
			r.Host = test.host
			r.Header.Set("Authorization", "Bearer "+secret)
			if test.tls {
				r.TLS = new(tls.ConnectionState)
			}
			w := httptest.NewRecorder()
			f.ServeHTTP(w, r)
			if got := w.Body.String(); !strings.Contains(got, "<code>sidecar watch "+test.want+"</code>") {
				t.Errorf("got %d, %s", w.Code, got)
			}
		})
	}
}

func TestALoginBecomesAStrictCookie(t *testing.T) {
	f := newPage(t, withToken)
	form := func(token string) string { return url.Values{"token": {token}}.Encode() }
	const kind = "Content-Type: application/x-www-form-urlencoded"
	if got := f.ask("GET", "/login", ""); got.StatusCode != 200 || !strings.Contains(text(t, got), `type="password"`) {
		t.Errorf("the form: got %d", got.StatusCode)
	}
	if got := f.ask("POST", "/login", form("wrong"), kind); got.StatusCode != http.StatusForbidden || len(got.Cookies()) > 0 {
		t.Errorf("a wrong token: got %d, cookies %v", got.StatusCode, got.Cookies())
	}
	if got := f.ask("POST", "/login", form(secret), kind, "Origin: http://evil.example"); got.StatusCode != http.StatusForbidden {
		t.Errorf("a login of another site: got %d, want 403", got.StatusCode)
	}
	got := f.ask("POST", "/login", form(" "+secret+"\n"), kind)
	if got.StatusCode != http.StatusSeeOther || len(got.Cookies()) != 1 {
		t.Fatalf("got %d, cookies %v", got.StatusCode, got.Cookies())
	}
	c := got.Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.MaxAge != 12*60*60 || strings.Contains(c.Value, secret) {
		t.Errorf("cookie: %v", c)
	}
	if got := f.ask("GET", "/nothing", "", "Cookie: "+c.Name+"="+c.Value); got.StatusCode != http.StatusNotFound {
		t.Errorf("with the session: got %d, want 404", got.StatusCode)
	}
	if got := f.ask("POST", "/logout", "", "Cookie: "+c.Name+"="+c.Value); len(got.Cookies()) != 1 || got.Cookies()[0].MaxAge >= 0 {
		t.Errorf("logout: cookies %v", got.Cookies())
	}
	if got := f.ask("GET", "/nothing", "", "Cookie: "+c.Name+"="+c.Value); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("after the logout: got %d, want 401", got.StatusCode)
	}
}

func TestATokenThatCannotBeReadAdmitsNobody(t *testing.T) {
	f := newPage(t, func(o *Options) { o.Tokens = NewTokens(func() string { return "" }) })
	for _, header := range []string{"Authorization: Bearer ", "Cookie: " + f.sessions.cookie + "=" + f.sessions.begin("")} {
		if got := f.ask("GET", "/", "", header); got.StatusCode != http.StatusUnauthorized {
			t.Errorf("%q: got %d, want 401", header, got.StatusCode)
		}
	}
	if got := f.ask("POST", "/login", "token=", "Content-Type: application/x-www-form-urlencoded"); got.StatusCode != http.StatusForbidden {
		t.Errorf("an empty token: got %d, want 403", got.StatusCode)
	}
}

// A stream without a body would keep its place for ever, because no write of it fails.
func TestHeadOpensNoStream(t *testing.T) {
	f := newPage(t, func(o *Options) { o.Service = new(counters) })
	f.end() // a stream that opens ends at once
	for _, path := range []string{"/events", "/tail"} {
		if got := f.ask("HEAD", path, ""); got.StatusCode != http.StatusMethodNotAllowed || got.Header.Get("Allow") != "GET" {
			t.Errorf("HEAD %s: got %d, %v", path, got.StatusCode, got.Header)
		}
	}
}

func TestAPanicOfWatchEndsTheTailAlone(t *testing.T) {
	f := newPage(t, func(o *Options) {
		o.Service = &service{watch: func(*adminv1.WatchRequest, grpc.ServerStreamingServer[adminv1.WatchResponse]) error {
			panic("broken") //nolint:forbidigo // as a mistake would
		}}
	})
	if got := f.ask("GET", "/tail", ""); got.StatusCode != http.StatusInternalServerError {
		t.Errorf("got %d, want 500", got.StatusCode)
	}
	if !strings.Contains(f.log.String(), "panic=broken") {
		t.Errorf("log: %s", f.log)
	}
}

// Everything that a browser loads: 150 KB at most, without compression.
func TestThePageIsSmall(t *testing.T) {
	f := newPage(t, nil)
	all := len(text(t, f.ask("GET", "/", "")))
	assets, err := fs.Glob(files, "assets/*")
	if err != nil || len(assets) < 3 {
		t.Fatalf("assets: %v, %v", assets, err)
	}
	for _, name := range assets {
		all += len(text(t, f.ask("GET", "/"+name, "")))
	}
	if all > 150_000 {
		t.Errorf("the page has %d bytes, want at most 150000", all)
	}
	t.Logf("%d bytes", all)
}
