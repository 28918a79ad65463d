package web

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Third: []string{"google.golang.org/grpc/codes"}})
}

func TestNamesThatAreNotListedAreNotKnown(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST.:8080": true, "127.0.0.1:1": true, "[::1]": true, "weir.example": true, "Weir.Example.:80": true,
		"": false, "evil.example": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false,
		"[::1%25evil.example]": false, "[::1%evil.example]:8080": false, "[fe80::1%25eth0]": false, "::1%evil.example": false,
	} {
		if got := Named(host, []string{"weir.example"}); got != want {
			t.Errorf("%q: got %v, want %v", host, got, want)
		}
	}
}

// A mesh passes a connection to another address of this machine on, from loopback.
func TestALocalPageIsForRequestsFromLoopbackToLoopback(t *testing.T) {
	page := At("/secret", "", func(w http.ResponseWriter, _ *http.Request) { Text(w, http.StatusOK, "secret") }).Local()
	for name, c := range map[string]struct{ from, to, host, header, want string }{
		"this machine":          {"127.0.0.1:5000", "127.0.0.1:6070", "localhost:6070", "", "secret"},
		"by IPv6":               {"[::1]:5000", "[::1]:6070", "[::1]:6070", "", "secret"},
		"another machine":       {"192.0.2.1:5000", "10.0.0.5:6070", "10.0.0.5:6070", "", "it comes from 192.0.2.1:5000"},
		"a mesh":                {"127.0.0.6:5000", "10.0.0.5:6070", "10.0.0.5:6070", "", "it came to 10.0.0.5:6070"},
		"a proxy":               {"127.0.0.1:5000", "127.0.0.1:6070", "localhost", "X-Forwarded-For", "it has the header X-Forwarded-For"},
		"a name of another one": {"127.0.0.1:5000", "127.0.0.1:6070", "evil.example", "", `the request is for the host "evil.example"`},
	} {
		t.Run(name, func(t *testing.T) {
			to, err := net.ResolveTCPAddr("tcp", c.to)
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, to), http.MethodGet, "/secret", nil)
			r.RemoteAddr, r.Host = c.from, c.host
			if c.header != "" {
				r.Header.Set(c.header, "192.0.2.1")
			}
			w := httptest.NewRecorder()
			page.Handle(w, r)
			if body := w.Body.String(); !strings.HasSuffix(body, c.want) || (w.Code == http.StatusOK) != (c.want == "secret") {
				t.Errorf("got %d %q, want %q", w.Code, body, c.want)
			}
		})
	}
}
