package lane

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// loop moves the bytes of one connection between a client, the machine, and a gRPC server behind
// it.
type loop struct {
	mu    sync.Mutex // guards the rest
	front net.Conn
	conn  *Conn
	back  *Back
	to    net.Conn // the gRPC server; nil: not connected
	dial  func() net.Conn
	done  sync.WaitGroup
}

// run serves one connection until it ends.
func (l *loop) run() {
	l.mu.Lock()
	l.writeLocked()
	l.mu.Unlock()
	buffer := make([]byte, 32<<10)
	for {
		n, err := l.front.Read(buffer)
		l.mu.Lock()
		if err == nil {
			err = l.conn.receiveAll(buffer[:n], time.Now().UnixNano())
		}
		l.writeLocked()
		if err != nil || l.conn.Finished() {
			break
		}
		l.mu.Unlock()
	}
	l.conn.Close()
	l.writeLocked()
	_ = l.front.Close()
	if l.to != nil {
		_ = l.to.Close()
	}
	l.mu.Unlock()
	l.done.Wait()
}

func (l *loop) writeLocked() {
	for {
		front, back := l.conn.Output(), l.back.Output()
		if front == nil && back == nil {
			return
		}
		_, _ = l.front.Write(front)
		if back == nil {
			continue
		}
		if l.to == nil {
			l.to = l.dial()
			to := l.to
			l.done.Go(func() { l.read(to) })
		}
		_, _ = l.to.Write(back)
	}
}

// read takes the bytes of the gRPC server.
func (l *loop) read(from net.Conn) {
	buffer := make([]byte, 4<<10)
	for {
		n, err := from.Read(buffer)
		l.mu.Lock()
		if err == nil {
			err = l.back.Receive(buffer[:n], time.Now().UnixNano())
		}
		if err != nil {
			_ = from.Close()
			if l.to == from {
				l.to = nil
				l.back.Lost()
			}
		}
		l.writeLocked()
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// served is a lane with a gRPC server behind it, and a client in front of it.
type served struct {
	server *grpc.Server
	client *grpc.ClientConn
	mu     sync.Mutex
	loops  []*loop
}

// serve starts everything. The gRPC server has health checks, and a method that echoes a stream.
func serve(t *testing.T) *served {
	t.Helper()
	o := Options{MaxMessage: 1 << 20}
	s := &served{server: newServer(t, o)}
	l := newLane(t)
	inner := bufconn.Listen(1 << 16)
	outer := bufconn.Listen(1 << 16)
	var done sync.WaitGroup
	done.Go(func() { _ = s.server.Serve(inner) })
	done.Go(func() {
		for {
			front, err := outer.Accept()
			if err != nil {
				return
			}
			b := NewBack(nil)
			one := &loop{front: front, back: b, conn: l.Open(time.Now().UnixNano(), echo{}, b, 0), dial: func() net.Conn {
				c, err := inner.Dial()
				if err != nil {
					t.Error(err)
				}
				return c
			}}
			b.Attach(one.conn)
			s.mu.Lock()
			s.loops = append(s.loops, one)
			s.mu.Unlock()
			done.Go(one.run)
		}
	})
	client, err := grpc.NewClient("passthrough:lane", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return outer.Dial() }))
	if err != nil {
		t.Fatal(err)
	}
	s.client = client
	t.Cleanup(func() {
		_ = client.Close()
		_ = outer.Close()
		s.server.Stop()
		done.Wait()
	})
	return s
}

// check calls the method of the lane.
func (s *served) check(ctx context.Context, message []byte, o ...grpc.CallOption) ([]byte, error) {
	var response []byte
	err := s.client.Invoke(ctx, testPath, &message, &response, append(o, grpc.ForceCodecV2(newRaw()))...)
	return response, err
}

// quiet waits until no stream is open on any connection, and compares the counts that are left.
func (s *served) quiet(t *testing.T) {
	t.Helper()
	for _, l := range s.loops {
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			l.mu.Lock()
			open, behind := l.conn.Streams(), len(l.back.streams)
			if open == 0 && behind == 0 {
				checkCounts(t, l.conn)
				if l.back.held != 0 {
					t.Errorf("%d bytes of streams that have ended count", l.back.held)
				}
				if l.conn.flow.window+l.conn.flow.consumed != ConnWindow {
					t.Errorf("%d bytes of the window are lost", ConnWindow-l.conn.flow.window-l.conn.flow.consumed)
				}
				l.mu.Unlock()
				break
			}
			l.mu.Unlock()
			if time.Now().After(end) {
				t.Errorf("%d streams are open, %d behind", open, behind)
				return
			}
		}
	}
}
