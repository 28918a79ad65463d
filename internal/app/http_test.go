package app

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/wire"
)

const maxConns = 8

// pagesOn serves a page that reads its body, in memory, and returns a function that connects.
func pagesOn(t *testing.T) (dial func() io.ReadWriteCloser) {
	t.Helper()
	p := process{Config: Config{Logger: slog.New(slog.DiscardHandler)}}
	s := p.newHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, r.Proto)
	}))
	l := bufconn.Listen(64 << 10)
	bound := wire.NewConnections(wire.ConnectionOptions{Server: "http", Max: maxConns, QuietFirst: true, Logger: p.Logger})
	go func() { _ = s.Serve(bound.Listen(l)) }()
	t.Cleanup(func() {
		_ = s.Close()
		time.Sleep(time.Second) // net/http gives the client a moment to read the answer
	})
	return func() io.ReadWriteCloser {
		conn := must.Get(l.DialContext(t.Context()))(t)
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
			answer := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
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

// Each attacker keeps its connection for as long as the server lets it, and then takes a new one.
// With the race detector, many timers in bubbles end the program (golang/go issue 78156).
func TestSlowClientsOfHTTPDoNotKeepOthersOut(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector has a fault with many timers in a bubble; make test runs this test without it, too")
	}
	const ok = "GET / HTTP/1.1\r\nHost: weir\r\n\r\n"
	for name, attack := range map[string]func(io.ReadWriteCloser){
		"nothing":             func(c io.ReadWriteCloser) { _, _ = io.Copy(io.Discard, c) },
		"slow headers":        func(c io.ReadWriteCloser) { trickle(c, "GET / HTTP/1.1\r\n", "X: y\r\n") },
		"slow headers, later": func(c io.ReadWriteCloser) { trickle(c, ok+"GET / HTTP/1.1\r\n", "X: y\r\n") },
		"slow body": func(c io.ReadWriteCloser) {
			trickle(c, "POST / HTTP/1.1\r\nHost: weir\r\nContent-Length: 99\r\n\r\n", "x")
		},
		"slow body, later": func(c io.ReadWriteCloser) {
			trickle(c, ok+"POST / HTTP/1.1\r\nHost: weir\r\nContent-Length: 99\r\n\r\n", "x")
		},
		"idle":                     func(c io.ReadWriteCloser) { trickle(c, ok, "") },
		"reads nothing, pipelined": func(c io.ReadWriteCloser) { _, _ = io.WriteString(c, strings.Repeat(ok, 500)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dial := pagesOn(t)
				var over atomic.Bool
				var attacking sync.WaitGroup
				for range 2 * maxConns {
					attacking.Go(func() {
						for !over.Load() {
							time.Sleep(500 * time.Millisecond)
							c := dial()
							attack(c)
							_ = c.Close()
						}
					})
				}
				for range 4 {
					time.Sleep(1733 * time.Millisecond) // not at an instant of the attackers
					c := dial()
					_, _ = io.WriteString(c, ok)
					answer, err := http.ReadResponse(bufio.NewReader(c), nil)
					if err != nil || answer.StatusCode != http.StatusOK {
						t.Errorf("beside the attack: got %v, %v; want 200", answer, err)
					}
					_ = c.Close()
				}
				over.Store(true)
				attacking.Wait()
			})
		})
	}
}

// trickle sends a text, and another one each second until the connection ends.
func trickle(c io.ReadWriteCloser, begin, each string) {
	go func() { _, _ = io.Copy(io.Discard, c) }()
	_, err := io.WriteString(c, begin)
	for err == nil {
		time.Sleep(time.Second)
		_, err = io.WriteString(c, each)
	}
}

// A client with half a head must not make a drain of the pages use its whole timeout.
func TestHalfAHeadDelaysNoDrainOfPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := process{Config: Config{Logger: slog.New(slog.DiscardHandler)}}
		s := p.newHTTP(http.NotFoundHandler())
		l := bufconn.Listen(1 << 10)
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(l) }()
		conn := must.Get(l.DialContext(t.Context()))(t)
		defer conn.Close()
		must.Get(io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n"))(t)
		synctest.Wait()
		begun := time.Now()
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("the shutdown took %v, want 2 s at most", took)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("the server ended with %v", err)
		}
	})
}
