package inflight

import (
	"io"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/internal/testing/logtest"
)

// peers are a followed connection, and the client's end of it.
type peers struct {
	bound  *Bound
	server *Conn
	client net.Conn
	send   *http2.Framer // frames of the client, in one Write each
	answer *http2.Framer // frames of the server
	ended  chan struct{} // closed when the server's reading ends
}

const most = 1 << 20 // bytes of every bound here

func newBound(t *testing.T) (*Bound, *logtest.Log) {
	t.Helper()
	log := new(logtest.Log)
	return New(Options{
		MaxBytes: most, MaxStreams: 200, MessageTimeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(log, nil)),
	}), log
}

// connect returns a connection. The server reads all the time, and so does a client that is not
// silent.
func connect(t *testing.T, b *Bound, silent bool) *peers {
	t.Helper()
	client, raw := net.Pipe()
	p := &peers{bound: b, server: b.Follow(raw), client: client, ended: make(chan struct{})}
	p.send, p.answer = http2.NewFramer(client, nil), http2.NewFramer(p.server, nil)
	go func() {
		defer close(p.ended)
		_, _ = io.Copy(io.Discard, p.server)
	}()
	if !silent {
		go func() { _, _ = io.Copy(io.Discard, client) }()
	}
	if _, err := io.WriteString(client, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.server.Close(), client.Close() })
	return p
}

// open sends headers of n bytes; the stream has a message of so many bytes, of which the first half
// comes.
func (p *peers) open(t *testing.T, id uint32, n, half int) {
	t.Helper()
	if err := p.send.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: make([]byte, n), EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	if half > 0 {
		if err := p.send.WriteData(id, false, append([]byte{0, 0, 0, byte(2 * half >> 8), byte(2 * half)}, make([]byte, half-5)...)); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
}

// end answers a stream.
func (p *peers) end(t *testing.T, id uint32) {
	t.Helper()
	if err := p.answer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte("x"), EndHeaders: true, EndStream: true}); err != nil {
		t.Fatal(err)
	}
}

// isEnded reports whether the connection has ended.
func (p *peers) isEnded() bool {
	synctest.Wait()
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}
