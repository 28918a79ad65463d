package wire

import (
	"log/slog"
	"net"
	"testing"
)

func BenchmarkRequest(b *testing.B) {
	bound := NewConnections(ConnectionOptions{Max: 10, Logger: slog.New(slog.DiscardHandler)})
	client, server := net.Pipe()
	defer client.Close()
	c := bound.admit(server)
	defer c.Close()
	for b.Loop() {
		c.Begin()
		c.Answered()
		c.Done()
	}
}
