package wire

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/internal/testing/must"
)

// divide divides the connections of a listener in memory.
func divide(t *testing.T, secure *Secure, timeout time.Duration) (*Split, *bufconn.Listener) {
	t.Helper()
	l := bufconn.Listen(1 << 10)
	s := NewSplit(l, secure, timeout)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve() }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s, l
}

func dial(t *testing.T, l *bufconn.Listener) net.Conn {
	t.Helper()
	conn := must.Get(l.DialContext(t.Context()))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestTheFirstBytesChooseTheSide(t *testing.T) {
	for sent, http2 := range map[string]bool{
		preface: true, "PRI ": true, "GET / HTTP/1.1\r\n": false, "PR": false, "PRX / ": false, "PUT /": false, "\x16\x03\x01": false, "P\n": false,
	} {
		t.Run(sent, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, l := divide(t, nil, time.Second)
				conn := dial(t, l)
				go func() {
					for i := range len(sent) { // in pieces, as a slow network brings them
						_, _ = conn.Write([]byte{sent[i]})
					}
				}()
				from := s.HTTP1()
				if http2 {
					from = s.HTTP2()
				}
				if sent == "PR" { // which may become either
					if _, err := conn.Read(make([]byte, 1)); err == nil {
						t.Error("two bytes were enough for one of the sides")
					}
					return
				}
				got := must.Get(from.Accept())(t)
				defer got.Close()
				read := make([]byte, len(sent))
				if _, err := io.ReadFull(got, read); err != nil || string(read) != sent {
					t.Errorf("read %q, %v; want %q", read, err, sent)
				}
			})
		})
	}
}

func TestAConnectionWithoutBytesEndsAtTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l := divide(t, nil, 10*time.Second)
		begun := time.Now()
		if _, err := dial(t, l).Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("read: got %v, want the end", err)
		}
		if took := time.Since(begun); took != 10*time.Second {
			t.Errorf("the connection ended after %v, want 10s", took)
		}
	})
}

func TestASilentConnectionKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := divide(t, nil, 10*time.Second)
		dial(t, l)
		conn, begun := dial(t, l), time.Now()
		_, _ = io.WriteString(conn, "GET /")
		if _, err := s.HTTP1().Accept(); err != nil || time.Since(begun) != 0 {
			t.Errorf("Accept: got %v after %v, want no wait", err, time.Since(begun))
		}
	})
}

func TestCloseEndsConnectionsThatNeitherSideHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := divide(t, nil, time.Hour)
		silent, waiting := dial(t, l), dial(t, l)
		_, _ = io.WriteString(waiting, "GET /")
		synctest.Wait()
		must.Do(t, s.HTTP2().Close())
		for name, conn := range map[string]net.Conn{"silent": silent, "waiting": waiting} {
			if _, err := bufio.NewReader(conn).ReadByte(); err == nil {
				t.Errorf("the %s connection is open", name)
			}
		}
		if _, err := s.HTTP1().Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: got %v, want %v", err, net.ErrClosed)
		}
	})
}

func TestAHandshakeThatFailsClosesTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l := divide(t, NewSecure(new(tls.Config), slog.New(slog.DiscardHandler)), time.Hour)
		conn := dial(t, l)
		go func() { _, _ = io.WriteString(conn, "no handshake of TLS") }()
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("read: got %v, want the end", err)
		}
	})
}

// FuzzRead checks that no byte is lost or added, for any first bytes.
func FuzzRead(f *testing.F) {
	f.Add([]byte(preface), 3)
	f.Add([]byte("PRI"), 1)
	f.Fuzz(func(t *testing.T, sent []byte, size int) {
		client, server := net.Pipe()
		go func() { _, _ = client.Write(sent); _ = client.Close() }()
		c := &early{Conn: server}
		_, err := new(Split).choose(c)
		if err != nil && len(sent) >= 4 {
			t.Fatalf("choose: %v", err)
		}
		var got []byte
		part := make([]byte, max(1, size&15))
		for {
			n, err := c.Read(part)
			got = append(got, part[:n]...)
			if err != nil {
				break
			}
		}
		if !bytes.Equal(got, sent) {
			t.Errorf("read %q, want %q", got, sent)
		}
	})
}
