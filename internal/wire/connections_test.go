package wire

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{"internal/lane", "internal/loglimit"}, Third: []string{"golang.org/x/sync/semaphore", "google.golang.org/grpc/...", "google.golang.org/protobuf/proto"}})
}

// pipes is a listener of connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// bounded is Connections over a listener of connections in memory.
type bounded struct {
	*Connections
	log      *logtest.Log
	pipes    pipes
	accepted chan *Conn
}

// start returns Connections whose listener accepts until the test ends.
func start(t *testing.T, o ConnectionOptions) *bounded {
	t.Helper()
	b := &bounded{log: new(logtest.Log), pipes: make(pipes), accepted: make(chan *Conn, 10)}
	o.Logger, o.Server = slog.New(slog.NewTextHandler(b.log, nil)), "grpc"
	b.Connections = NewConnections(o)
	l := b.Listen(b.pipes)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		defer close(b.accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conn, _ := c.(*Conn)
			b.accepted <- conn
		}
	}()
	return b
}

// dial returns both ends of a new connection; server is nil when the connection was refused.
func (b *bounded) dial(t *testing.T) (client net.Conn, server *Conn) {
	t.Helper()
	client, raw := net.Pipe()
	t.Cleanup(func() { _, _ = client.Close(), raw.Close() })
	b.pipes <- raw
	synctest.Wait()
	select {
	case server = <-b.accepted:
	default:
	}
	return client, server
}

// open reports whether the server has left the connection open.
func open(t *testing.T, client net.Conn) bool {
	t.Helper()
	if err := client.SetReadDeadline(time.Now().Add(time.Millisecond)); errors.Is(err, io.ErrClosedPipe) {
		return false
	}
	_, err := client.Read(make([]byte, 1))
	return !errors.Is(err, io.EOF)
}

func TestTheConnectionThatIsQuietForLongestGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, ConnectionOptions{Max: 3, QuietFirst: true})
		busy, first := b.dial(t)
		first.Begin()
		time.Sleep(time.Millisecond)
		asked, second := b.dial(t)
		second.Begin()
		second.Answered()
		second.Done()
		time.Sleep(time.Millisecond)
		silent, _ := b.dial(t) // never asked, but is younger
		time.Sleep(time.Millisecond)
		last, server := b.dial(t)
		if server == nil || open(t, asked) || !open(t, busy) || !open(t, silent) || !open(t, last) {
			t.Errorf("got server %v; want the connection that had asked closed, and the others open", server)
		}
	})
}

func TestANewConnectionTakesThePlaceOfTheOldestThatNeverAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, ConnectionOptions{Max: 3})
		asked, first := b.dial(t)
		first.Begin()
		first.Answered()
		first.Done()
		time.Sleep(time.Hour)
		silent, _ := b.dial(t)
		time.Sleep(time.Millisecond)
		later, _ := b.dial(t)
		for n := range 100 { // a flood: each takes the place of an earlier one of its own
			last, server := b.dial(t)
			if server == nil {
				t.Fatalf("connection %d of the flood was refused", n)
			}
			time.Sleep(time.Millisecond)
			if !open(t, last) {
				t.Fatalf("connection %d of the flood was closed at once", n)
			}
		}
		if open(t, silent) || open(t, later) {
			t.Error("the silent connections are still open")
		}
		if !open(t, asked) {
			t.Error("the flood closed the connection of a client whose requests are answered")
		}
		if got := b.Stats(); got != (ConnectionStats{Open: 3, Max: 3, Replaced: 100}) {
			t.Errorf("got %+v", got)
		}
		if got := b.log.String(); strings.Count(got, "took the place of an idle one") != 1 || !strings.Contains(got, "max_connections=3") {
			t.Errorf("want one line in the log for a flood within a second, got:\n%s", got)
		}
	})
}

// A health check that watches, or a busy Envoy, always has an open request.
func TestAConnectionWithAnswersAndAnOpenRequestOutlivesAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, ConnectionOptions{Max: 3})
		busy, server := b.dial(t)
		server.Begin()
		server.Answered()
		time.Sleep(time.Hour)
		for range 100 {
			b.dial(t)
			time.Sleep(time.Millisecond)
		}
		if !open(t, busy) {
			t.Error("the flood closed a connection with answers, because one of its requests is open")
		}
	})
}

func TestABusyConnectionDoesNotGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, ConnectionOptions{Max: 2})
		newcomer, waits := b.dial(t)
		waits.Begin()
		_, busy := b.dial(t)
		busy.Begin()
		busy.Answered()
		busy.Done()
		busy.Begin()
		if client, server := b.dial(t); server != nil || open(t, client) {
			t.Error("a connection beyond the bound was accepted, though all are busy")
		}
		waits.Answered()
		waits.Done()
		waits.Begin()
		waits.Answered()
		waits.Done() // idle, but just now
		if _, server := b.dial(t); server != nil {
			t.Error("a connection was closed between two requests")
		}
		if !strings.Contains(b.log.String(), "all connections are busy") {
			t.Errorf("the log says nothing of the refusal: %s", b.log)
		}
		time.Sleep(2 * idleAge)
		if _, server := b.dial(t); server == nil || open(t, newcomer) {
			t.Error("want the connection that is idle replaced")
		}
		if got := b.Stats(); got.Refused != 2 || got.Replaced != 1 {
			t.Errorf("got %+v, want 2 refused and 1 replaced", got)
		}
	})
}

func TestAFirstRequestThatNeverEndsProtectsForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, ConnectionOptions{Max: 1})
		held, server := b.dial(t)
		server.Begin()
		if _, other := b.dial(t); other != nil {
			t.Error("the first request of a connection did not protect it")
		}
		time.Sleep(2 * newAge)
		second, other := b.dial(t)
		if other == nil || open(t, held) {
			t.Error("a first request that never ends keeps others out")
		}
		other.Begin()
		other.Done() // given up
		if _, third := b.dial(t); third == nil || open(t, second) {
			t.Error("a request that was given up keeps others out")
		}
	})
}

func TestCloseMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, ConnectionOptions{Max: 1})
		for range 5 {
			_, server := b.dial(t)
			if server == nil {
				t.Fatal("refused, though the one before was closed")
			}
			server.Begin()
			_, _ = server.Close(), server.Close()
		}
		if got := b.Stats(); got != (ConnectionStats{Max: 1}) {
			t.Errorf("got %+v", got)
		}
	})
}

func TestAClientThatDoesNotReadLosesItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, ConnectionOptions{WriteTimeout: 10 * time.Second})
		client, server := b.dial(t)
		must.Do(t, server.SetDeadline(time.Now().Add(time.Second)))
		if err := server.SetDeadline(time.Time{}); err != nil { // as gRPC does after the handshake
			t.Fatal(err)
		}
		go func() { _, _ = io.CopyN(io.Discard, client, 100) }()
		for range 100 { // within the time, also long after the first deadline
			must.Get(server.Write([]byte("x")))(t)
			time.Sleep(time.Second)
		}
		before := time.Now()
		if _, err := server.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got error %v, want the deadline", err)
		}
		if took := time.Since(before); took < 5*time.Second || took > 10*time.Second {
			t.Errorf("the write took %v, want half of the timeout to all of it", took)
		}
		if open(t, client) || b.Stats().Open != 0 {
			t.Error("the connection is still open")
		}
	})
}

// hold makes the connection the connection of a client that has taken one answer and keeps a
// request open.
func hold(c *Conn) {
	c.Begin()
	c.Answered()
}

// A client takes one answer and then holds a health Watch, or a message that never ends. Such
// clients must not lock a newcomer out for ever.
func TestABusyConnectionThatIsSilentForLongestMakesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, ConnectionOptions{Max: 3})
		asking, lively := b.dial(t)
		hold(lively)
		oldest, first := b.dial(t)
		hold(first)
		time.Sleep(time.Second)
		younger, second := b.dial(t)
		hold(second)
		for range 2 * silentAge / time.Second {
			time.Sleep(time.Second)
			lively.Answered()
			if _, c := b.dial(t); c != nil {
				if got := time.Since(b.begun); got < silentAge {
					t.Fatalf("a connection gave way after %v", got)
				}
				hold(c)
				break
			}
		}
		if open(t, oldest) || !open(t, younger) || !open(t, asking) {
			t.Errorf("open: silent for longest %t, silent for a shorter time %t, with answers %t; want the first one closed alone",
				open(t, oldest), open(t, younger), open(t, asking))
		}
		if got := b.Stats(); got.Replaced != 1 || !strings.Contains(b.log.String(), "took the place of a silent one") {
			t.Errorf("got %+v, want one replaced; log:\n%s", got, b.log)
		}
	})
}

// A request that begins after a long quiet time is new, and not old.
func TestSilenceBeginsWithTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, ConnectionOptions{Max: 1})
		client, server := b.dial(t)
		hold(server)
		server.Done()
		time.Sleep(time.Hour)
		server.Begin()
		time.Sleep(silentAge - time.Millisecond)
		if _, other := b.dial(t); other != nil || !open(t, client) {
			t.Error("a connection gave way while a request of it was younger than silentAge")
		}
	})
}

// An attacker gives up its only request and opens another one again and again.
func TestRequestsWithoutAnAnswerDoNotEndTheSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, ConnectionOptions{Max: 1})
		client, server := b.dial(t)
		hold(server)
		for range 2 * silentAge / time.Second {
			time.Sleep(time.Second / 2)
			server.Done()
			server.Begin()
			time.Sleep(time.Second / 2)
		}
		if _, other := b.dial(t); other == nil || open(t, client) {
			t.Error("a connection without answers keeps others out")
		}
	})
}

func TestTheSystemKeepsFewAnswersForAUnixSocketThatNobodyReads(t *testing.T) {
	below := must.Get(net.Listen("unix", filepath.Join(t.TempDir(), "s")))(t)
	l := NewConnections(ConnectionOptions{SocketBuffer: 16 << 10, Logger: slog.New(slog.DiscardHandler)}).Listen(below)
	defer l.Close()
	client := must.Get(net.Dial("unix", below.Addr().String()))(t)
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	sent := 0
	for answer := make([]byte, 4<<10); err == nil || sent == 0; {
		if err := server.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil { // which a busy machine may miss
			t.Fatal(err)
		}
		var n int
		n, err = server.Write(answer)
		sent += n
	}
	if sent > 40<<10 { // twice 16 KiB and a part of an answer; the system's own size is 208 KiB
		t.Errorf("%d bytes in the buffer; want at most %d", sent, 40<<10)
	}
}

func TestTheBuffersOfAllConnectionsStayWithinOneBound(t *testing.T) {
	for _, most := range []int{1, 3, 64, 128, 1000, 5000} {
		b := NewConnections(ConnectionOptions{Max: most, SocketBuffer: 16 << 10, Logger: slog.New(slog.DiscardHandler)})
		for open := 1; open <= most; open++ {
			if size := b.bufferOf(open); size < 16<<10 || size > 256<<10 || open*size > max(open, most/8)*16<<10 {
				t.Fatalf("each of %d of at most %d connections has %d bytes; want 16 to 256 KiB, and %d KiB in all",
					open, most, size, 16*max(open, most/8))
			}
		}
	}
}

func TestFewConnectionsHaveLargerBuffers(t *testing.T) {
	const most, small = 256, 16 << 10
	below := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	b := NewConnections(ConnectionOptions{Max: most, SocketBuffer: small, Logger: slog.New(slog.DiscardHandler)})
	l := b.Listen(below)
	defer l.Close()
	var servers []net.Conn
	open := func(n int) {
		for len(servers) < n {
			client := must.Get(net.Dial("tcp", below.Addr().String()))(t)
			t.Cleanup(func() { _ = client.Close() })
			servers = append(servers, must.Get(l.Accept())(t))
		}
		for ; len(servers) > n; servers = servers[:len(servers)-1] {
			must.Do(t, servers[len(servers)-1].Close())
		}
	}
	size := func() (receive, send int) {
		bounded, _ := servers[0].(*Conn)
		system, ok := bounded.NetConn().(syscall.Conn)
		if !ok {
			t.Fatal("the connection has no socket")
		}
		raw := must.Get(system.SyscallConn())(t)
		must.Do(t, raw.Control(func(fd uintptr) {
			receive = must.Get(syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF))(t)
			send = must.Get(syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF))(t)
		}))
		return receive, send
	}
	defer func() { open(0) }()
	open(1)
	large, _ := size()
	for _, step := range []struct{ open, part int }{{2, 1}, {3, 2}, {4, 2}, {8, 4}, {16, 8}, {17, 16}, {32, 16}, {8, 8}, {3, 4}, {1, 1}} {
		open(step.open)
		receive, send := size()
		if want := min(large, 2*(16*small/step.part)); receive != want || send != want {
			t.Errorf("of %d connections the first has buffers of %d and %d bytes, want %d", step.open, receive, send, want)
		}
	}
	open(64)
	if receive, _ := size(); receive >= large {
		t.Errorf("with 64 connections a buffer has %d bytes, as many as with one", receive)
	}
}
