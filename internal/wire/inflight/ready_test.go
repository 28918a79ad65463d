package inflight

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
)

// loopback returns both ends of a connection of the system.
func loopback(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return client, server
}

// A Write on a busy machine may take long although its client reads.
func TestAClientThatDoesNotReadIsToldFromABusyMachine(t *testing.T) {
	b, _ := newBound(t)
	_, server := loopback(t)
	c := b.Follow(server)
	defer c.Close()
	full := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.fullLocked()
	}
	if full() {
		t.Error("the buffer of a new connection is full")
	}
	// A busy machine may miss the deadline of a Write although there is room.
	for n, tries := 1, 0; n > 0 || !full(); tries++ {
		if tries == 100 {
			t.Fatal("the buffer is not full, though the client does not read")
		}
		if err := server.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		var err error
		if n, err = server.Write(make([]byte, 1<<20)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
}

// begun is a connection whose first bytes another server has read.
type begun struct {
	net.Conn
	first []byte
}

func (b *begun) NetConn() net.Conn { return b.Conn }
func (b *begun) Buffered() int     { return len(b.first) }

func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) == 0 {
		return b.Conn.Read(p)
	}
	n := copy(p, b.first)
	b.first = b.first[n:]
	return n, nil
}

func TestReadOnReadyReadsTheSameBytesAndTheEnd(t *testing.T) {
	for _, handedOver := range []bool{false, true} {
		b, _ := newBound(t)
		client, server := loopback(t)
		sent := bytes.Repeat([]byte("0123456789"), 1000)
		rest := sent
		if handedOver {
			const first = 700
			server, rest = &begun{server, sent[:first]}, sent[first:]
		}
		c := b.Follow(server)
		defer c.Close()
		r, ok := c.Server().(interface {
			ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error)
		})
		if !ok {
			t.Fatalf("handed over %t: gRPC would keep a buffer for each idle connection", handedOver)
		}
		go func() {
			_, _ = client.Write(rest)
			_ = client.Close()
		}()
		var got []byte
		for {
			buffer, n, err := r.ReadOnReady(512, mem.DefaultBufferPool())
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, (*buffer)[:n]...)
			mem.DefaultBufferPool().Put(buffer)
		}
		if !bytes.Equal(got, sent) {
			t.Errorf("handed over %t: got %d bytes, want the %d that were sent", handedOver, len(got), len(sent))
		}
	}
}
