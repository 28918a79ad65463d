package inflight

import (
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// Requests that stay open, such as health Watches, must not keep the bound crowded for ever.
func TestOldConnectionsEndWhileTheBoundStaysCrowded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBound(t)
		watch := func(c *Conn, ids ...uint32) {
			for _, id := range ids {
				c.receive(ending(id))
			}
		}
		few, busy := followed(t, b), followed(t, b)
		watch(few, 1) // an honest health check
		var watching []*Conn
		for !b.Crowded() {
			c := followed(t, b)
			watch(c, 1, 3, 5, 7, 9)
			watching = append(watching, c)
		}
		ended := func() (n int) {
			for _, c := range watching {
				if c.ended() {
					_ = c.Close() // as the server does
					n++
				}
			}
			return n
		}
		for id := uint32(1); id < 2*9; id += 2 { // an answer each second
			watch(busy, id)
			time.Sleep(time.Second)
			busy.wrote(answer(id))
		}
		if n := ended(); n != 0 || !b.Crowded() {
			t.Errorf("before their streams were old: %d connections ended, crowded %t", n, b.Crowded())
		}
		time.Sleep(3 * time.Second)
		before := ended()
		synctest.Wait()
		if b.Crowded() || before == 0 || before == len(watching) {
			t.Errorf("with %d bytes in flight: crowded %t, %d of %d connections ended; want some, until there is room", b.Stats().Bytes, b.Crowded(), before, len(watching))
		}
		time.Sleep(time.Hour)
		if n := ended(); n != before || few.ended() || busy.ended() {
			t.Errorf("afterwards: %d more ended, the one with one stream %t, the one with answers %t; want none", n-before, few.ended(), busy.ended())
		}
		if got := b.Stats().Ended["held_most"]; got != uint64(before) {
			t.Errorf("ended: got %d in the metrics, want %d", got, before)
		}
		var flood []*Conn
		for !b.Crowded() { // young streams
			c := followed(t, b)
			watch(c, 1, 3, 5, 7, 9, 11, 13, 15)
			flood = append(flood, c)
		}
		time.Sleep(5 * time.Second)
		if few.ended() || !b.Crowded() {
			t.Errorf("beside a flood of %d connections with young streams: ended %t, want the honest health check open", len(flood), few.ended())
		}
	})
}

// A client that took a million answers long ago may hold no more than another one.
func TestTheHistoryOfAConnectionFades(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBound(t)
		old, honest := followed(t, b), followed(t, b)
		old.answered.Store(1_000_000 * answerUnit)
		time.Sleep(2 * time.Minute)
		id := uint32(1)
		for range 10 {
			honest.receive(headers(id))
			honest.wrote(answer(id))
			id += 2
		}
		honest.receive(headers(id))
		for ; !b.Crowded(); id += 2 {
			old.receive(headers(id))
		}
		if !b.Admits(honest) || b.Admits(old) {
			t.Errorf("admits: the client of now %t, the client of two minutes ago %t; want the first alone", b.Admits(honest), b.Admits(old))
		}
		for ; !old.ended() && !honest.ended(); id += 2 {
			old.receive(headers(id))
			honest.receive(headers(id))
		}
		if honest.ended() {
			t.Error("the connection that takes its answers now ended before the other one")
		}
	})
}

// wave opens so many streams at once, and answers all of them.
func (c *Conn) wave(streams uint32) {
	first := c.streams.last + 1 + c.streams.last%2
	for id := first; id < first+2*streams; id += 2 {
		c.receive(headers(id))
	}
	for id := first; id < first+2*streams; id += 2 {
		c.wrote(answer(id))
	}
}

// The maps of grpc-go keep the room of the most streams that were open at once.
func TestTheMostStreamsOfAConnectionCountAsLongAsItIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{MaxBytes: 32 << 20, MaxStreams: 2048, MessageTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler)})
		usual, most := followed(t, b), followed(t, b)
		usual.wave(freeStreams)
		if got := b.kept.Load(); got != 0 {
			t.Errorf("after %d streams at once: got %d bytes, want 0", freeStreams, got)
		}
		for range 3 { // the second wave finds the room of the first
			most.wave(1024)
			if got, want := b.kept.Load(), int64((1024-freeStreams)*keptBytes); got != want {
				t.Errorf("after 1024 streams at once: got %d bytes, want %d", got, want)
			}
		}
		_ = most.Close()
		synctest.Wait()
		if got := b.kept.Load(); got != 0 {
			t.Errorf("after the end of the connection: got %d bytes, want 0", got)
		}
	})
}

// Each Envoy had 1024 requests before the server's SETTINGS arrived. The connections of an attacker
// that has as many streams end one after the other.
func TestTheMostStreamsOfAnAttackerEndNoConnectionOfAnEnvoy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{MaxBytes: 32 << 20, MaxStreams: 2048, MessageTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler)})
		const honest = 150
		var envoys []*Conn
		for range honest {
			c := followed(t, b)
			c.wave(1024)
			envoys = append(envoys, c)
		}
		for range 20 { // each asks once a second
			time.Sleep(time.Second)
			for _, c := range envoys {
				c.wave(1)
			}
		}
		if got := b.Stats(); got.Ended["held_most"] != 0 || b.Crowded() {
			t.Errorf("%d connections of Envoys: got %+v, want all open", honest, got)
		}
		for n := range 300 {
			c := followed(t, b)
			for id := uint32(1); id < 2*1024; id += 2 {
				c.receive(headers(id))
			}
			for id := uint32(1); id < 2*1024; id += 2 {
				c.receive(reset(id))
			}
			c.sawResets()
			time.Sleep(10 * time.Millisecond)
			for _, c := range envoys[n%10*honest/10:][:honest/10] {
				c.wave(1)
			}
		}
		for _, c := range envoys {
			if c.ended() {
				t.Fatal("the connection of an Envoy was ended")
			}
		}
		if got := b.kept.Load(); got > 16<<20 || b.Stats().Ended["held_most"] < 250 {
			t.Errorf("got %d bytes, %+v; want the attacker's connections ended, down to half of the bound", got, b.Stats())
		}
	})
}

// sending returns the connection of a client that sends its preface and frames in one chunk, and
// then ends.
func sending(t *testing.T, b *Bound, frames []byte) *Conn {
	t.Helper()
	client, server := net.Pipe()
	c := b.Follow(server)
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		defer client.Close()
		_, _ = client.Write(append(make([]byte, preface), frames...))
	}()
	return c
}

// A client opens and resets twenty streams in one chunk. The bytes count until the server has seen
// the chunk.
func TestStreamsOfOneChunkCountUntilTheServerHasSeenIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBound(t)
		var frames []byte
		for id := uint32(1); id < 40; id += 2 {
			frames = append(append(frames, headers(id)...), reset(id)...)
		}
		c := sending(t, b, frames)
		if _, err := c.Read(make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, want := b.Stats().Bytes, int64(20*(StreamBytes+10*headerFactor)); got != want {
			t.Errorf("before the server has seen the frames: got %d bytes, want %d", got, want)
		}
		_, _ = c.Read(make([]byte, 4096))
		synctest.Wait()
		if got := b.Stats().Bytes; got != 0 {
			t.Errorf("afterwards: got %d bytes, want 0", got)
		}
	})
}

// Frames of a connection that was ended must not reach the server: they would open streams that
// nobody counts.
func TestTheServerSeesNoFramesOfAnEndedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBound(t)
		var frames []byte
		for id := uint32(1); id < 200; id += 2 {
			frames = append(frames, headers(id)...)
		}
		c := sending(t, b, frames)
		if n, err := c.Read(make([]byte, 4096)); n != 0 || err == nil {
			t.Errorf("got %d bytes, %v; want an error, as the chunk goes beyond the bound", n, err)
		}
	})
}
