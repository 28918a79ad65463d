package wire

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/internal/testing/must"
)

// slowPages takes some seconds for each answer.
const slowPages = 4 * time.Second

// serveSlowly starts a server whose answers take slowPages. Connect returns a client that has sent
// some bytes.
func serveSlowly(t *testing.T) (s *HTTP, connect func(sent string) net.Conn) {
	t.Helper()
	l := bufconn.Listen(1 << 10)
	s = NewHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(slowPages)
		_, _ = io.Copy(w, r.Body)
		_, _ = io.WriteString(w, "whole")
	}), http.DefaultMaxHeaderBytes, slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("the server ended with %v", err)
		}
	})
	return s, func(sent string) net.Conn {
		c := must.Get(l.DialContext(t.Context()))(t)
		t.Cleanup(func() { _ = c.Close() })
		go func() { _, _ = io.WriteString(c, sent) }()
		synctest.Wait()
		return c
	}
}

// A request with half a head must not delay a drain, on a new connection and behind another
// request.
func TestHalfAHeadDelaysNoShutdown(t *testing.T) {
	const whole = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, sent := range map[string]string{
		"a byte":                     "G",
		"half a head":                "GET / HTTP/1.1\r\nHost: x\r\n",
		"half a head behind another": whole + "GET / HTTP/1.1\r\nHost: x\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, connect := serveSlowly(t)
				c := connect(sent)
				go func() { _, _ = io.Copy(io.Discard, c) }()
				if len(sent) > len(whole) {
					time.Sleep(2 * slowPages) // the first request is answered
				}
				begun := time.Now()
				if err := s.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
				if took := time.Since(begun); took > 2*time.Second {
					t.Errorf("the shutdown took %v, want 2 s at most", took)
				}
			})
		})
	}
}

// Requests with a whole head are answered. The rest of a head, or of a body, may come after the
// begin of the drain.
func TestAShutdownAnswersRequestsWithAWholeHead(t *testing.T) {
	for name, test := range map[string]struct {
		sent, later string
		after       time.Duration
	}{
		"under way":                 {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "", 0},
		"a head that becomes whole": {"GET / HTTP/1.1\r\nHost: x\r\n", "\r\n", headTime - 1},
		"a body that becomes whole": {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na", "b", 2 * headTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, connect := serveSlowly(t)
				c := connect(test.sent)
				ended := make(chan error, 1)
				go func() { ended <- s.Shutdown(t.Context()) }()
				time.Sleep(test.after)
				if _, err := io.WriteString(c, test.later); err != nil {
					t.Error(err)
				}
				answer := must.Get(http.ReadResponse(bufio.NewReader(c), nil))(t)
				defer answer.Body.Close()
				if body, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK || len(body) < len("whole") {
					t.Errorf("got %d with %q, %v", answer.StatusCode, body, err)
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A server may take a connection from its listener just before the listener closes.
func TestAConnectionThatComesAfterTheTimeEndsAtOnce(t *testing.T) {
	var h heads
	h.close()
	client, server := net.Pipe()
	defer client.Close()
	h.note(server, http.StateNew)
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is open")
	}
}
