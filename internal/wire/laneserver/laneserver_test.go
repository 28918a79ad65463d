package laneserver

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
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
