package inflight

import (
	"maps"
	"net"
	"slices"
	"time"
)

// greetTime is the time that a drain leaves to a client that has not sent its first frame.
const greetTime = time.Second

// Shake notes a connection whose client makes the handshake of TLS, until the caller calls shaken.
func (b *Bound) Shake(raw net.Conn) (shaken func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shaking[raw] = struct{}{}
	if b.drains {
		_ = raw.SetDeadline(time.Now().Add(greetTime)) // fails where the connection has ended
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.shaking, raw)
	}
}

// Drain ends connections whose clients do not send a first frame within a second, also connections
// that come later. A gRPC server that stops in good order would wait for these clients until the
// handshake times out. The server takes the deadline back after the first frame.
func (b *Bound) Drain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drains = true
	end := time.Now().Add(greetTime)
	for raw := range b.shaking {
		_ = raw.SetDeadline(end) // fails where the connection has ended
	}
	for c := range b.open {
		c.greetUntil(end)
	}
}

// greetUntil sets the deadline of a connection without a first frame.
func (c *Conn) greetUntil(end time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.told && !c.greeted {
		_ = c.Conn.SetDeadline(end)
	}
}

// Close closes all connections, and later ones at once. A stop of a gRPC server does not close
// connections before the end of their handshake, and waits until the handshake times out.
func (b *Bound) Close() {
	b.mu.Lock()
	b.closed = true
	open := slices.Collect(maps.Keys(b.open))
	b.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}
