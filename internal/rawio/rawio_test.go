package rawio

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Std: []string{"io", "net", "os", "sync", "syscall", "unsafe"}, Third: []string{}})
}

// pair returns the two ends of a connection, the first one wrapped.
func pair(t *testing.T, network string) (wrapped, other net.Conn) {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	l := must.Get(net.Listen(network, address))(t)
	defer l.Close()
	dialed := must.Get(net.Dial(network, l.Addr().String()))(t)
	other = must.Get(l.Accept())(t)
	wrapped = Wrap(dialed)
	t.Cleanup(func() { _, _ = wrapped.Close(), other.Close() })
	return wrapped, other
}

func TestBytesPassInBothDirections(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			c, other := pair(t, network)
			data := bytes.Repeat([]byte("0123456789abcdef"), 200_000) // more than the buffers of the system
			var both sync.WaitGroup
			both.Go(func() { // sends everything back
				if _, err := io.CopyN(other, other, int64(len(data))); err != nil {
					t.Error(err)
				}
				_ = other.Close()
			})
			both.Go(func() {
				if n, err := c.Write(data); n != len(data) || err != nil {
					t.Errorf("Write: got %d, %v; want %d bytes", n, err, len(data))
				}
			})
			got, err := io.ReadAll(c)
			if err != nil || sha256.Sum256(got) != sha256.Sum256(data) {
				t.Errorf("got %d bytes, error %v; want the %d bytes that were sent", len(got), err, len(data))
			}
			both.Wait()
			if n, err := c.Read(nil); n != 0 || err != nil {
				t.Errorf("Read into nothing: got %d, %v", n, err)
			}
		})
	}
}

func TestDeadlinesAndCloseEndWaits(t *testing.T) {
	c, other := pair(t, "tcp")
	one := make([]byte, 1)
	must.Do(t, c.SetDeadline(time.Now().Add(-time.Second)))
	if _, err := c.Read(one); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read: got %v, want %v", err, os.ErrDeadlineExceeded)
	}
	if _, err := c.Write(one); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Write: got %v, want %v", err, os.ErrDeadlineExceeded)
	}
	must.Do(t, c.SetDeadline(time.Time{}))
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, c)
		ended <- err
	}()
	must.Get(other.Write(one))(t)
	must.Do(t, c.Close())
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read of a closed connection: got %v, want %v", err, net.ErrClosed)
	}
}

func TestErrorsAreAsPackageNetHasThem(t *testing.T) {
	c, other := pair(t, "tcp")
	if tcp, ok := other.(*net.TCPConn); !ok || tcp.SetLinger(0) != nil {
		t.Fatalf("%T cannot reset", other)
	}
	_ = other.Close() // resets
	_, err := io.Copy(io.Discard, c)
	op := new(net.OpError)
	if !errors.Is(err, syscall.ECONNRESET) || !errors.As(err, &op) || op.Op != "read" || op.Timeout() {
		t.Errorf("Read: got %v, want a reset", err)
	}
	if _, err = c.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Write: got %v, want a broken pipe", err)
	}
}

func TestOtherConnectionsStayAsTheyAre(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if Wrap(a) != a {
		t.Error("a pipe was wrapped")
	}
}
