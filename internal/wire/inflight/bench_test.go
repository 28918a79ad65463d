package inflight

import (
	"io"
	"log/slog"
	"net"
	"testing"
	"time"
)

// A request and its answer on a connection, beside seven open ones.
func BenchmarkRequest(b *testing.B) {
	bound := New(Options{MaxBytes: 32 << 20, MaxStreams: 2048, MessageTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler)})
	client, server := net.Pipe()
	defer client.Close()
	go func() { _, _ = io.Copy(io.Discard, client) }()
	c := bound.Follow(server)
	defer c.Close()
	c.receive(make([]byte, preface))
	number := func(frames []byte, id uint32) {
		for at := 0; at < len(frames); at += frameHead + 10 {
			frames[at+5], frames[at+6], frames[at+7], frames[at+8] = byte(id>>24), byte(id>>16), byte(id>>8), byte(id)
		}
	}
	ask, reply := headers(1), answer(1)
	id := uint32(1)
	for ; id < 15; id += 2 {
		number(ask, id)
		c.receive(ask)
	}
	b.ReportAllocs()
	for b.Loop() {
		number(ask, id)
		c.receive(ask)
		number(reply, id-14)
		c.wrote(reply)
		id += 2
	}
}
