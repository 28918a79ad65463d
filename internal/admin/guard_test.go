package admin

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

const adminToken = "a-token-of-24-characters"

// counting is a listener whose connections count the answers that protect them.
type counting struct {
	net.Listener
	answered atomic.Int64
}

// Accept implements [net.Listener].
func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	return &countingConn{conn, c}, err
}

type countingConn struct {
	net.Conn
	of *counting
}

func (*countingConn) Begin()      {}
func (*countingConn) Done()       {}
func (c *countingConn) Answered() { c.of.answered.Add(1) }

// A protected connection lives longer in a flood. So a token must protect nothing where nobody
// compares it.
func TestATokenThatIsNotComparedProtectsNoConnection(t *testing.T) {
	f := start(t, watchedRules, func(o *Options) { o.Access.Token = func() string { return adminToken } })
	below, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &counting{Listener: below}
	ended := make(chan error, 1)
	go func() { ended <- f.admin.Serve(l) }()
	show := func(path, token string) (code int, protected int64) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+below.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		before := l.answered.Load()
		answer, err := browser.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, l.answered.Load() - before
	}
	if code, n := show("/nothing", adminToken); code != http.StatusNotFound || n != 1 {
		t.Errorf("with the token: got %d, protected %d times, want 404 and 1", code, n)
	}
	for _, path := range []string{"/assets/page.css", "/login"} {
		if code, n := show(path, adminToken); code != http.StatusOK || n != 0 {
			t.Errorf("%s: got %d, protected %d times, want 200 and 0: nobody has bounded the guess", path, code, n)
		}
	}
	for i := range 10 {
		if code, n := show("/nothing", fmt.Sprint("wrong", i)); code != http.StatusUnauthorized || n != 0 {
			t.Fatalf("a wrong token: got %d, protected %d times", code, n)
		}
	}
	if code, n := show("/nothing", adminToken); code != http.StatusTooManyRequests || n != 0 {
		t.Errorf("behind the bound: got %d, protected %d times, want 429 and 0", code, n)
	}
	f.admin.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Another token ends the watches of the token before, as it ends sessions of the page.
func TestAnotherTokenEndsAWatch(t *testing.T) {
	var token atomic.Pointer[string]
	set := func(text string) { token.Store(&text) }
	set(adminToken)
	f := start(t, watchedRules, func(o *Options) { o.Access.Token = func() string { return *token.Load() } })
	_, client := adminClient(t, f.serveAdmin(t), insecure.NewCredentials())
	w := watching(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+adminToken), t, client, new(adminv1.WatchRequest))
	f.ask(t, descriptor("path", "/cart"))
	texts(t, w, 1)
	set("another-token-of-some-characters")
	f.ask(t, descriptor("path", "/cart"))
	if m, err := w.Recv(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("with the token of before: got %v, %v; want UNAUTHENTICATED", m, err)
	}
}
