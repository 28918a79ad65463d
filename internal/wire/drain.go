package wire

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// headTime is the time that a drain leaves to clients of HTTP/1 for the rest of their first heads.
const headTime = time.Second

// heads notes the connections of an [HTTP] whose first requests have not reached the handler.
// [http.Server.Shutdown] waits up to five seconds for these connections, and then closes them
// without an answer, even if a head has become whole. The zero value is ready. All methods are safe
// for concurrent use.
type heads struct {
	mu         sync.Mutex            // guards the rest
	incomplete map[net.Conn]struct{} // nil: no connection yet
	whole      chan struct{}         // closed when incomplete becomes empty; nil: nobody waits
	over       bool                  // a drain waits no longer
}

// note is for [http.Server.ConnState].
func (h *heads) note(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		h.add(c)
	case http.StateActive: // the head is whole, and the handler comes next
	default:
		h.remove(c)
	}
}

// noted is a handler that notes each request that reaches it.
func (h *heads) noted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.remove(ConnOf(r))
		next.ServeHTTP(w, r)
	})
}

func (h *heads) add(c net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		_ = c.Close() // the server reports the end
		return
	}
	if h.incomplete == nil {
		h.incomplete = make(map[net.Conn]struct{})
	}
	h.incomplete[c] = struct{}{}
}

func (h *heads) remove(c net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.incomplete, c)
	if h.whole != nil && len(h.incomplete) == 0 {
		close(h.whole)
		h.whole = nil
	}
}

// drain waits until all first heads are complete, at most headTime, and closes the connections that
// are left.
func (h *heads) drain(ctx context.Context) {
	if whole := h.await(); whole != nil {
		late := time.NewTimer(headTime)
		defer late.Stop()
		select {
		case <-whole:
		case <-late.C:
		case <-ctx.Done():
		}
	}
	h.close()
}

// await returns a channel that is closed when all first heads are complete, or nil if they are.
func (h *heads) await() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.incomplete) == 0 {
		return nil
	}
	h.whole = make(chan struct{})
	return h.whole
}

func (h *heads) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	for c := range h.incomplete {
		_ = c.Close() // the server reports the end
	}
}

// greetTime is the time that a drain leaves to a client that has not sent its first frame.
const greetTime = time.Second

// greetings notes the connections of a gRPC server whose clients have not sent a first frame.
// [grpc.Server.GracefulStop] and Stop wait for these clients until the handshake times out. The
// zero value is ready. All methods are safe for concurrent use.
type greetings struct {
	mu      sync.Mutex             // guards the rest
	waiting map[*greeting]struct{} // nil: no connection yet
	drains  bool
}

type greetedListener struct {
	net.Listener
	of *greetings
}

func (l *greetedListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &greeting{Conn: raw, of: l.of}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if l.of.waiting == nil {
		l.of.waiting = make(map[*greeting]struct{})
	}
	l.of.waiting[c] = struct{}{}
	return c, nil
}

// drain ends connections whose clients do not send a first frame within so long, also connections
// that come later.
func (g *greetings) drain(within time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drains = true
	for c := range g.waiting {
		_ = c.Conn.SetDeadline(time.Now().Add(within)) // fails where the connection has ended
	}
}

type greeting struct {
	net.Conn

	of *greetings
}

func (c *greeting) NetConn() net.Conn { return c.Conn }

func (c *greeting) SetDeadline(t time.Time) error {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	switch {
	case t.IsZero():
		delete(c.of.waiting, c)
	case c.of.drains:
		t = time.Now().Add(greetTime)
	}
	return c.Conn.SetDeadline(t)
}

func (c *greeting) Close() error {
	c.of.mu.Lock()
	delete(c.of.waiting, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
