package serving

import (
	"bufio"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// pagesOn serves a page that reads its body, in memory, and returns a function that connects.
func pagesOn(t *testing.T) (dial func() io.ReadWriteCloser) {
	t.Helper()
	p := process{config: &Config{Logger: slog.New(slog.DiscardHandler)}}
	s := p.newHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, r.Proto)
	}))
	l := bufconn.Listen(1 << 20)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		time.Sleep(time.Second) // net/http gives the client a moment to read the answer
	})
	return func() io.ReadWriteCloser {
		conn, err := l.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
}

func TestHeadersOfHTTPAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial := pagesOn(t)
		for bytes, want := range map[int]int{8 << 10: 200, 17 << 10: 431, 60 << 10: 431} {
			conn := dial()
			go func() { // the server may end the connection first
				_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: weir\r\nX: "+strings.Repeat("x", bytes)+"\r\n\r\n")
			}()
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if answer.StatusCode != want {
				t.Errorf("%d bytes of headers: got %d; want %d", bytes, answer.StatusCode, want)
			}
		}
	})
}

func TestSlowRequestsOfHTTPEnd(t *testing.T) {
	for name, test := range map[string]struct {
		begin string
		each  string // sent each second
		want  time.Duration
	}{
		"nothing": {"", "", 5 * time.Second},
		"headers": {"GET / HTTP/1.1\r\n", "X: y\r\n", 5 * time.Second},
		"body":    {"POST / HTTP/1.1\r\nHost: weir\r\nContent-Length: 1000\r\n\r\n", "x", 10 * time.Second},
		"idle":    {"GET / HTTP/1.1\r\nHost: weir\r\n\r\n", "", 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := pagesOn(t)()
				began := time.Now()
				if test.begin != "" {
					_, _ = io.WriteString(conn, test.begin)
				}
				go func() {
					for {
						time.Sleep(time.Second)
						if _, err := io.WriteString(conn, test.each); err != nil {
							return
						}
					}
				}()
				_, _ = io.Copy(io.Discard, conn)
				if got := time.Since(began).Truncate(time.Second); got != test.want {
					t.Errorf("the connection ended after %v; want %v", got, test.want)
				}
				_ = conn.Close()
			})
		})
	}
}

// The preface of HTTP/2 without TLS is a request of HTTP/1 with an odd method.
func TestHTTPIsNotHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := pagesOn(t)()
		_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || answer.ProtoMajor != 1 {
			t.Errorf("got %v, %v; want an answer in HTTP/1", answer, err)
		}
	})
}
