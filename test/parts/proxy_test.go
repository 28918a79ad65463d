package parts

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// startProxy puts a proxy in front of a server that answers every byte with the same one.
func startProxy(t *testing.T) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return ProxyFor(t, listener.Addr().String())
}

// connect opens a connection through the proxy.
func connect(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask sends a byte and returns how long its answer took; it waits for one at most that long.
func ask(conn net.Conn, most time.Duration) (time.Duration, error) {
	start := time.Now()
	if err := conn.SetDeadline(start.Add(most)); err != nil {
		return 0, err
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		return 0, err
	}
	_, err := conn.Read(make([]byte, 1))
	return time.Since(start), err
}

const (
	long  = 20 * time.Second      // for an answer that should come
	short = 50 * time.Millisecond // for an answer that should not
)

// wantAnswer fails the test when the proxy does not pass a byte and its answer.
func wantAnswer(t *testing.T, conn net.Conn) time.Duration {
	t.Helper()
	took, err := ask(conn, long)
	if err != nil {
		t.Fatal(err)
	}
	return took
}

func TestAProxyPassesOnWhatItGets(t *testing.T) {
	wantAnswer(t, connect(t, startProxy(t)))
}

func TestLatencyDelaysAnswersUntilClear(t *testing.T) {
	p := startProxy(t)
	conn := connect(t, p)
	wantAnswer(t, conn)
	for _, d := range []time.Duration{20 * time.Millisecond, 150 * time.Millisecond} {
		p.Latency(d, 0)
		if got := wantAnswer(t, conn); got < d {
			t.Errorf("latency %s: an answer after %s", d, got)
		}
	}
	p.Latency(time.Hour, 0)
	p.Clear()
	wantAnswer(t, conn)
}

// Each answer of many that are on the way together comes after the latency, and not after the sum.
func TestAnswersOnTheWayTogetherShareTheLatency(t *testing.T) {
	p := startProxy(t)
	conn := connect(t, p)
	const answers, d = 40, time.Second // the sum is longer than long
	p.Latency(d, 0)
	begun := time.Now()
	for range answers {
		if _, err := conn.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // so that each is read alone
	}
	_ = conn.SetReadDeadline(begun.Add(long))
	if _, err := io.ReadFull(conn, make([]byte, answers)); err != nil {
		t.Fatal(err)
	}
	if got := time.Since(begun); got < d {
		t.Errorf("the last answer came after %v; want at least %v", got, d)
	}
}

func TestDownResetsConnectionsAndRefusesNewOnesUntilUp(t *testing.T) {
	p := startProxy(t)
	conn := connect(t, p)
	wantAnswer(t, conn)
	p.Down()
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the open one: got %v, want a reset", err)
	}
	if _, err := net.Dial("tcp", p.Address()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new one: got %v, want refused", err)
	}
	for range 2 {
		if err := p.Up(); err != nil {
			t.Fatal(err)
		}
	}
	wantAnswer(t, connect(t, p))
}

func TestCutResetsConnectionsAndTakesNewOnes(t *testing.T) {
	p := startProxy(t)
	conn := connect(t, p)
	wantAnswer(t, conn)
	if err := p.Cut(); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(conn, long); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the open one: got %v, want a reset", err)
	}
	wantAnswer(t, connect(t, p))
}

func TestResetResetsOldAndNewConnectionsAtTheirFirstAnswer(t *testing.T) {
	p := startProxy(t)
	old := connect(t, p)
	wantAnswer(t, old)
	p.Reset()
	for name, conn := range map[string]net.Conn{"old": old, "new": connect(t, p)} {
		if _, err := ask(conn, long); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the %s one: got %v, want a reset", name, err)
		}
	}
	p.Clear()
	wantAnswer(t, connect(t, p))
}

func TestHalfOpenConnectionsTakeDataAndNeverAnswer(t *testing.T) {
	for name, fault := range map[string]func(*Proxy){"both ways": (*Proxy).HalfOpen, "answers": (*Proxy).Mute} {
		t.Run(name, func(t *testing.T) {
			p := startProxy(t)
			old := connect(t, p)
			wantAnswer(t, old)
			fault(p)
			for name, conn := range map[string]net.Conn{"old": old, "new": connect(t, p)} {
				if _, err := ask(conn, short); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the %s one: got %v, want no answer", name, err)
				}
			}
			p.Clear()
			if _, err := ask(old, long); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the old one after Clear: got %v, want that it has ended", err)
			}
			wantAnswer(t, connect(t, p))
		})
	}
}

func TestAProxyStandsInFrontOfRedis(t *testing.T) {
	r := RedisFor(t, RedisOptions{})
	p := ProxyFor(t, r.Address())
	option := r.ClientOption()
	option.InitAddress, option.Dialer.Timeout, option.PipelineMultiplex = []string{p.Address()}, 30*time.Second, -1 // one connection
	client, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	p.Mute()
	answered := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { answered <- client.Do(ctx, client.B().Incr().Key("key").Build()).Error() }()
	if err := poll(Soon(t), "Redis to do what was asked while answers vanish", func() error {
		if got := do(t, r, "GET", "key"); got != "1" {
			return errors.New("key is " + got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-answered:
		t.Errorf("the client: got an answer or an error (%v), want a wait", err)
	case <-time.After(short):
	}
	cancel()
	p.Clear()
	if err := poll(Soon(t), "a new connection", func() error {
		return client.Do(Soon(t), client.B().Ping().Build()).Error()
	}); err != nil {
		t.Error(err)
	}
}

func TestAProxyResetsAClientWhenNobodyIsUpstream(t *testing.T) {
	p := ProxyFor(t, Nowhere(t))
	conn, err := net.Dial("tcp", p.Address())
	if err == nil { // else the reset came at once
		t.Cleanup(func() { _ = conn.Close() })
		_, err = conn.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
}

func TestAServerThatClosesMeansAResetForTheClient(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	client := connect(t, ProxyFor(t, listener.Addr().String()))
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
}

// A child holds a copy of all open files until the child runs its program, so the old listener may
// outlive Down.
func TestAProxyComesUpAgainWhileProgramsStart(t *testing.T) {
	p := ProxyFor(t, "127.0.0.1:1")
	var starting sync.WaitGroup
	defer starting.Wait()
	for range 4 {
		starting.Go(func() {
			for range 25 {
				_ = exec.CommandContext(t.Context(), "true").Run() // the failure does not matter
			}
		})
	}
	for range 300 {
		if err := p.Cut(); err != nil {
			t.Fatal(err)
		}
	}
}
