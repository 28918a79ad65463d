package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// addresses are the listeners of the program under attack.
type addresses struct {
	GRPC, HTTP, Admin string // host:port
	Socket            string // path
}

// An assault is an attack under way. The methods are safe for concurrent use.
type assault struct {
	ctx       context.Context // ends with the attack
	addresses addresses
	address   string // of gRPC: host:port or unix:path
	liar      *liar  // the Redis, when the counts are there

	*counts
}

// counts are the figures of an attack for the log: its attempts, and the attempts that the program
// refused.
type counts struct {
	attempts, refusals atomic.Int64
	failed             atomic.Pointer[error] // a mistake of the attack itself
}

// fail notes a mistake of the attack itself.
func (a *assault) fail(err error) {
	if err != nil {
		a.failed.CompareAndSwap(nil, &err)
	}
}

// newAssault returns an attack that ends with ctx.
func newAssault(ctx context.Context, row attack, to addresses) *assault {
	a := &assault{ctx: ctx, addresses: to, address: to.GRPC, counts: new(counts)}
	if row.socket {
		a.address = "unix:" + to.Socket
	}
	return a
}

// attackAlone runs one attack on the program at these addresses in this process, and prints the
// counts.
func attackAlone(name, to string, lasting time.Duration) error {
	all := attacks()
	i := slices.IndexFunc(all, func(row attack) bool { return row.name == name })
	if i < 0 {
		return fmt.Errorf("there is no attack %q", name)
	}
	var on addresses
	if err := json.Unmarshal([]byte(to), &on); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lasting)
	defer cancel()
	a := newAssault(ctx, all[i], on)
	all[i].run(a)
	<-ctx.Done() // an attack may have nothing left to do
	if err := a.failed.Load(); err != nil {
		return *err
	}
	_, err := fmt.Fprintf(os.Stdout, "%d attempts, %d refused\n", a.attempts.Load(), a.refusals.Load())
	return err
}

// repeat runs work on n goroutines, again and again until the end. An error is a refusal; work then
// starts anew after a moment.
func (a *assault) repeat(n int, work func(ctx context.Context) error) {
	var working sync.WaitGroup
	defer working.Wait()
	for range n {
		working.Go(func() {
			for a.ctx.Err() == nil {
				ctx, cancel := context.WithCancel(a.ctx)
				a.attempts.Add(1)
				err := work(ctx)
				cancel() // closes the connections of work
				if err == nil || a.ctx.Err() != nil {
					continue
				}
				a.refusals.Add(1)
				a.pause(10 * time.Millisecond)
			}
		})
	}
}

// pause waits so long, or until the end.
func (a *assault) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-a.ctx.Done():
	}
}

// dial connects to address until ctx ends. A reset (RST) ends the connection, so that no port waits
// for late packets.
func (a *assault) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := dialTo(ctx, address)
	if err != nil {
		return nil, err
	}
	if tcp, isTCP := conn.(*net.TCPConn); isTCP {
		_ = tcp.SetLinger(0)
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return conn, nil
}

// crowd opens n connections, greets on each with the bytes, and waits until the end. A connection
// that the program closes is replaced. A Unix socket gets no more than the kernel queues for it
// (net.core.somaxconn): beyond, the kernel refuses everybody.
func (a *assault) crowd(n int, address string, greeting []byte) {
	if strings.HasPrefix(address, "unix:") {
		n = min(n, 3000)
	}
	a.repeat(n, func(ctx context.Context) error {
		conn, err := a.dial(ctx, address)
		if err != nil {
			return err
		}
		if _, err := conn.Write(greeting); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, conn); err != nil {
			return err
		}
		return io.EOF
	})
}

// polite opens a connection of HTTP/2 that keeps to the protocol and to the program's windows. The
// connection ends with ctx.
func (a *assault) polite(ctx context.Context) (*http.ClientConn, error) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{
		Protocols:          protocols,
		DisableCompression: true,
		DialContext:        func(_ context.Context, _, _ string) (net.Conn, error) { return a.dial(ctx, a.address) },
	}
	conn, err := transport.NewClientConn(ctx, "http", "weir:80")
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return conn, nil
}

// call makes a call of gRPC with this body on a connection, and reads the answer.
func call(ctx context.Context, conn *http.ClientConn, path string, body io.Reader, fields ...entry) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://weir"+path, io.NopCloser(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	for _, f := range fields {
		r.Header.Add(f.key, f.value)
	}
	answer, err := conn.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// calls makes calls on so many connections with so many streams each, again and again until the
// end. Body makes the body of a call, which may wait for its ctx.
func (a *assault) calls(conns, streams int, path string, body func(ctx context.Context) io.Reader, fields ...entry) {
	a.repeat(conns, func(ctx context.Context) error {
		conn, err := a.polite(ctx)
		if err != nil {
			return err
		}
		var calling sync.WaitGroup
		defer calling.Wait()
		for range streams {
			calling.Go(func() {
				for ctx.Err() == nil && conn.Err() == nil {
					a.attempts.Add(1)
					if err := call(ctx, conn, path, body(ctx), fields...); err != nil && ctx.Err() == nil {
						a.refusals.Add(1)
						a.pause(10 * time.Millisecond)
					}
				}
			})
		}
		return nil
	})
}

// A stalled body gives its bytes and then nothing, until ctx ends.
type stalled struct {
	ctx   context.Context
	bytes *bytes.Reader
}

func stall(ctx context.Context, b []byte) io.Reader { return &stalled{ctx, bytes.NewReader(b)} }

// Read implements [io.Reader].
func (s *stalled) Read(p []byte) (int, error) {
	if s.bytes.Len() > 0 {
		return s.bytes.Read(p)
	}
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

// A drip gives one byte each second.
type drip struct {
	ctx   context.Context
	bytes *bytes.Reader
}

// Read implements [io.Reader].
func (d *drip) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Second):
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
	return d.bytes.Read(p[:min(len(p), 1)])
}
