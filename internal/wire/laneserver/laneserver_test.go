package laneserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/wire", "internal/lane", "internal/loglimit", "internal/rawio"},
		Never: []string{"github.com/spf13", "flag"},
	})
}

func TestCallsAreAnsweredAtOnceAndLater(t *testing.T) {
	eachSocket(t, func(t *testing.T, f *fixture) {
		close(f.release)
		conn := f.dial(t)
		var asking sync.WaitGroup
		for range 20 {
			for _, text := range []string{"at once", "later", "later", string(make([]byte, 20_000)), ""} {
				asking.Go(func() {
					if got, err := ask(t.Context(), conn, text); err != nil || got != text {
						t.Errorf("got %.20q, %v; want %.20q", got, err, text)
					}
				})
			}
			asking.Go(func() {
				if _, err := ask(t.Context(), conn, "wrong"); status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != "it is wrong" {
					t.Errorf("got %v, want INVALID_ARGUMENT", err)
				}
			})
		}
		asking.Wait()
	})
}

// A buffer that a connection keeps while another one has it would mix their answers.
func TestConnectionsDoNotShareABuffer(t *testing.T) {
	f := serve(t, listenTCP(t), nil)
	close(f.release)
	var asking sync.WaitGroup
	for n := range 20 {
		conn := f.dial(t)
		for _, stem := range []string{"later", "at once"} {
			asking.Go(func() {
				text := fmt.Sprintf("%s of connection %d", stem, n)
				for range 200 {
					if got, err := ask(t.Context(), conn, text); err != nil || got != text {
						t.Errorf("got %q, %v; want %q", got, err, text)
						return
					}
				}
			})
		}
	}
	asking.Wait()
}

// Answered returns the calls that were answered with OK.
func (c *Conn) Answered() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.Answered()
}

func TestADrainLosesNoCall(t *testing.T) {
	eachSocket(t, func(t *testing.T, f *fixture) {
		conn := f.dial(t)
		must.Get(ask(t.Context(), conn, "at once"))(t)
		answers := make(chan error, 100)
		for range cap(answers) {
			go func() { _, err := ask(t.Context(), conn, "later"); answers <- err }()
		}
		for open := 0; open < cap(answers); {
			open = 0
			for _, c := range f.all() {
				c.mu.Lock()
				open += c.machine.Streams()
				c.mu.Unlock()
			}
			time.Sleep(time.Millisecond)
		}
		stopped := make(chan struct{})
		go func() { f.GracefulStop(); close(stopped) }()
		<-f.stopped
		close(f.release)
		for range cap(answers) {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		<-stopped
		if c, err := net.Dial(f.network, f.address); err == nil {
			_ = c.Close()
			t.Error("the address still listens")
		}
	})
}

func TestStopEndsCallsUnderWay(t *testing.T) {
	eachSocket(t, func(t *testing.T, f *fixture) {
		conn := f.dial(t)
		failed := make(chan error)
		go func() { _, err := ask(t.Context(), conn, "later"); failed <- err }()
		for len(f.all()) == 0 || !f.all()[0].asked() {
			time.Sleep(time.Millisecond)
		}
		f.Stop()
		if err := <-failed; status.Code(err) != codes.Unavailable {
			t.Errorf("got %v, want UNAVAILABLE", err)
		}
		f.GracefulStop()
		if got := f.gone.Load(); got != 1 {
			t.Errorf("canceled calls: got %d, want 1", got)
		}
		close(f.release) // an answer after the end does nothing
	})
}

// asked reports whether the Handler has a call.
func (c *Conn) asked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept > 0
}

func TestAClientThatSpeaksNoHTTP2LosesItsConnection(t *testing.T) {
	f := serve(t, listenTCP(t), nil)
	c := must.Get(net.Dial("tcp", f.address))(t)
	defer c.Close()
	must.Get(io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"))(t)
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Errorf("got %v, want the end of the connection", err)
	}
}

// marked is a listener whose connections count the answers that the server reports.
type marked struct {
	net.Listener
	answered *atomic.Int64
}

type markedConn struct {
	net.Conn
	answered *atomic.Int64
}

func (m marked) Accept() (net.Conn, error) {
	c, err := m.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &markedConn{c, m.answered}, nil
}

func (m *markedConn) Begin()    {}
func (m *markedConn) Done()     {}
func (m *markedConn) Answered() { m.answered.Add(1) }

// At the bound of connections a new one takes the place of one without answers. A client whose
// requests are wrong is no flood.
func TestErrorsAndOtherMethodsAreAnswersToo(t *testing.T) {
	var answered atomic.Int64
	f := serve(t, marked{listenTCP(t), &answered}, nil)
	conn := f.dial(t)
	for want := int64(1); want <= 2; want++ {
		if _, err := ask(t.Context(), conn, "wrong"); status.Code(err) != codes.InvalidArgument {
			t.Fatal(err)
		}
		if got := answered.Load(); got != want {
			t.Errorf("after %d errors: got %d answers", want, got)
		}
	}
	must.Get(healthgrpc.NewHealthClient(conn).Check(t.Context(), new(healthgrpc.HealthCheckRequest)))(t)
	if got := answered.Load(); got != 3 {
		t.Errorf("after a health check: got %d answers, want 3", got)
	}
}

// hello is the first bytes of a client, with a request.
func hello(t *testing.T) []byte {
	t.Helper()
	var out, block bytes.Buffer
	code := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", method},
		{":authority", "weir"},
		{"te", "trailers"},
		{"content-type", "application/grpc"},
		{"user-agent", "envoy"},
	} {
		must.Do(t, code.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
	}
	out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&out, nil)
	err := errors.Join(framer.WriteSettings(), framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}),
		framer.WriteData(1, true, []byte{0, 0, 0, 0, 3, 10, 1, 'a'}))
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// memory returns the bytes of the heap and of stacks.
func memory() int64 {
	for range 3 { // stacks shrink, and pools are emptied
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// The bytes include the client's end, some 500.
func TestAnIdleConnectionHoldsTenKiBAtMost(t *testing.T) {
	if race.Enabled {
		t.Skip("stacks are larger with the race detector")
	}
	const connections, most = 300, 10 << 10
	f := serve(t, listenTCP(t), nil)
	first := hello(t)
	clients := make([]net.Conn, 0, connections)
	open := func() {
		c := must.Get(net.Dial("tcp", f.address))(t)
		clients = append(clients, c)
		t.Cleanup(func() { _ = c.Close() })
		must.Get(c.Write(first))(t)
		framer := http2.NewFramer(io.Discard, c)
		for ended := false; !ended; {
			frame := must.Get(framer.ReadFrame())(t)
			h, ok := frame.(*http2.HeadersFrame)
			ended = ok && h.StreamEnded()
		}
	}
	for range 10 {
		open()
	}
	before := memory()
	for range connections {
		open()
	}
	each := func() int64 { return (memory() - before) / connections }
	got := each()
	for end := time.Now().Add(time.Minute); got > most && time.Now().Before(end); got = each() {
		time.Sleep(time.Millisecond) // a busy machine runs the goroutines of some connections later, and these are not idle yet
	}
	if got > most {
		t.Errorf("a connection: got %d bytes, want at most %d", got, most)
	} else {
		t.Logf("a connection: %d bytes", got)
	}
	runtime.KeepAlive(clients)
}
