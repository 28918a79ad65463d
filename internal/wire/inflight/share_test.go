package inflight

import (
	"io"
	"log/slog"
	"net"
	"testing"
	"time"
)

// Large requests of other clients must not end the connection of a client that holds little.
func TestLargeRequestsOfOthersEndNoModestConnection(t *testing.T) {
	b := New(Options{MaxBytes: 1 << 20, MaxStreams: 1000, MessageTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler)})
	modest, greedy := followed(t, b), followed(t, b)
	modest.receive(headers(1))
	for range 4 { // a quarter of the bound
		if _, ok := b.Take(t.Context(), 64<<10); !ok {
			t.Fatal("a large request was refused")
		}
	}
	for id := uint32(1); id < 400 && !greedy.ended(); id += 2 {
		greedy.receive(headers(id))
	}
	if !greedy.ended() {
		t.Errorf("a connection holds %d of %d bytes, and goes on", greedy.held.Load(), 1<<20)
	}
	if modest.ended() {
		t.Error("a connection with one stream was ended for the bytes of others")
	}
	if got := b.Stats().Bytes; got > 1<<20 {
		t.Errorf("bytes in flight: %d, beyond the bound", got)
	}
}

// A client that has taken many answers holds more than each of many hostile ones while its requests
// wait behind theirs.
func TestTheBoundEndsTheConnectionsWithoutAHistoryFirst(t *testing.T) {
	b := New(Options{MaxBytes: 1 << 20, MaxStreams: 1000, MessageTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler)})
	honest := followed(t, b)
	id := uint32(1)
	for range 50 {
		honest.receive(headers(id))
		honest.wrote(answer(id))
		id += 2
	}
	for range 10 {
		honest.receive(headers(id))
		id += 2
	}
	hostile := make([]*Conn, 30)
	for i := range hostile {
		hostile[i] = followed(t, b)
		for id := uint32(1); id < 12; id += 2 {
			hostile[i].receive(headers(id))
			hostile[i].wrote(ending(id)) // an answer without a message is no history
			hostile[i].receive(headers(id + 100))
		}
	}
	if !b.Crowded() || !b.Admits(honest) {
		t.Errorf("with %d bytes in flight an honest client with %d of them is refused; its share is %d", b.Stats().Bytes, honest.held.Load(), b.share())
	}
	if honest.ended() {
		t.Error("the honest client's connection was ended, though hostile ones without a history were open")
	}
	if b.Stats().Ended[reasonNames()[heldMost]] == 0 {
		t.Error("no connection was ended: the test did not reach the bound")
	}
}

// answer is the frames of an answer: headers, a message, trailers.
func answer(id uint32) []byte {
	frames := headers(id)
	data := headers(id)
	data[3], data[4] = frameData, 0
	return append(append(frames, data...), ending(id)...)
}

// ending is headers that end their side of a stream: a request without a message, or an answer of
// trailers alone.
func ending(id uint32) []byte {
	frame := headers(id)
	frame[4] |= flagEndStream
	return frame
}

// reset is a RST_STREAM frame of a client.
func reset(id uint32) []byte {
	frame := make([]byte, frameHead+4)
	frame[2], frame[3] = 4, frameReset
	frame[7], frame[8] = byte(id>>8), byte(id)
	return frame
}

// followed returns a connection that has sent its preface.
func followed(t *testing.T, b *Bound) *Conn {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { _ = client.Close() })
	go func() { _, _ = io.Copy(io.Discard, client) }()
	c := b.Follow(server)
	t.Cleanup(func() { _ = c.Close() })
	c.receive(make([]byte, preface))
	return c
}

// headers is a HEADERS frame of ten bytes that opens a stream.
func headers(id uint32) []byte {
	frame := make([]byte, frameHead+10)
	frame[2], frame[3], frame[4] = 10, frameHeaders, flagEndHeaders
	frame[7], frame[8] = byte(id>>8), byte(id)
	return frame
}

// ended reports whether the bound has ended the connection.
func (c *Conn) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone
}
