package inflight

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{"internal/wire/connections", "internal/loglimit"}, Third: []string{"golang.org/x/sync/semaphore", "golang.org/x/sys/unix", "google.golang.org/grpc/..."}})
}

func TestAStreamHoldsBytesFromItsHeadersToItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBound(t)
		p := connect(t, b, false)
		p.open(t, 1, 100, 0)
		p.open(t, 3, 10, 50)
		want := int64(2*StreamBytes + 110*headerFactor + 50*messageFactor)
		if got := b.Stats(); got.Bytes != want || got.Streams != 2 {
			t.Errorf("two streams: got %+v, want %d bytes", got, want)
		}
		// The headers of an answer do not end it.
		if err := p.answer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte("x"), EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
		p.end(t, 1)
		if got, want := b.Stats().Bytes, int64(StreamBytes+10*headerFactor+50*messageFactor); got != want {
			t.Errorf("after one answer: got %d bytes, want %d", got, want)
		}
		if err := p.send.WriteRSTStream(3, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := b.Stats(); got.Bytes != 0 || got.Streams != 0 {
			t.Errorf("after a reset of the other one: got %+v, want nothing", got)
		}
		p.open(t, 5, 10, 0)
		_ = p.server.Close()
		if got := b.Stats(); got.Bytes != 0 || got.Streams != 0 {
			t.Errorf("after the end of the connection: got %+v, want nothing", got)
		}
	})
}

func TestChunksOfAnySizeCountTheSame(t *testing.T) {
	synctest.Test(t, testChunks)
}

func testChunks(t *testing.T) {
	t.Helper()
	var sent bytes.Buffer
	sent.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&sent, nil)
	for id := uint32(1); id < 40; id += 2 {
		for _, err := range []error{
			f.WriteSettings(http2.Setting{ID: 1, Val: 2}),
			f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: make([]byte, id), EndHeaders: false}),
			f.WriteContinuation(id, true, make([]byte, 7)),
			f.WriteData(id, false, make([]byte, 3*id)),
			f.WritePing(false, [8]byte{}),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if id%3 == 0 {
			if err := f.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
				t.Fatal(err)
			}
		}
	}
	var want int64
	for size := sent.Len(); size > 0; size-- {
		b, _ := newBound(t)
		c := b.Follow(nil)
		for chunk := sent.Bytes(); len(chunk) > 0; {
			n := min(size, len(chunk))
			c.receive(chunk[:n])
			chunk = chunk[n:]
		}
		c.sawResets()
		synctest.Wait()
		got := b.Stats()
		if size == sent.Len() {
			want = got.Bytes
			if got.Streams != 13 {
				t.Fatalf("got %d streams, want 13", got.Streams)
			}
		}
		if got.Bytes != want || got.Streams != 13 {
			t.Fatalf("chunks of %d bytes: got %d bytes in %d streams, want %d in 13", size, got.Bytes, got.Streams, want)
		}
		c.release()
	}
}

func TestAtTheBoundTheConnectionThatHoldsMostForLongestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, log := newBound(t)
		honest, greedy := connect(t, b, false), connect(t, b, false)
		for id := uint32(1); id < 60; id += 2 { // many, but just now
			greedy.open(t, id, 10, 0)
		}
		time.Sleep(5 * time.Second)
		for id := uint32(1); id < 90; id += 2 {
			honest.open(t, id, 10, 0)
		}
		if got := b.Stats().Bytes; got > most {
			t.Fatalf("got %d bytes, want at most %d", got, most)
		}
		for id := uint32(91); id < 121; id += 2 {
			honest.open(t, id, 10, 0)
		}
		if !greedy.isEnded() || honest.isEnded() {
			t.Errorf("ended: greedy %t, honest %t; want the greedy one alone", greedy.isEnded(), honest.isEnded())
		}
		if got := b.Stats(); got.Bytes > most || got.Ended["held_most"] != 1 {
			t.Errorf("got %+v, want at most %d bytes and one connection ended", got, most)
		}
		if !strings.Contains(log.String(), "reason=held_most") {
			t.Errorf("the log does not say so: %s", log)
		}
	})
}

func TestWhenCrowdedAConnectionWithMoreThanItsShareIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBound(t)
		honest, greedy := connect(t, b, false), connect(t, b, false)
		honest.open(t, 1, 10, 0)
		for id := uint32(1); !b.Crowded(); id += 2 {
			greedy.open(t, id, 10, 0)
		}
		if !b.Admits(honest.server) || b.Admits(greedy.server) {
			t.Errorf("admits: honest %t, greedy %t; want the honest one alone", b.Admits(honest.server), b.Admits(greedy.server))
		}
		if got := b.Stats().Refused; got != 1 {
			t.Errorf("refused: got %d, want 1", got)
		}
		if greedy.isEnded() {
			t.Error("a connection ended below the bound")
		}
		_, _ = greedy.server.Close(), honest.server.Close()
		synctest.Wait()
		if got, ok := b.Take(t.Context(), most); !ok || got != most/4 {
			t.Errorf("Take: got %d, %t; want a quarter of the bound, %d", got, ok, most/4)
		}
		begun := time.Now()
		if _, ok := b.Take(t.Context(), 1); ok || time.Since(begun) != BudgetWait {
			t.Errorf("a Take beyond a quarter of the bound: got %t after %v, want false after %v", ok, time.Since(begun), BudgetWait)
		}
		time.AfterFunc(time.Second/2, func() { b.Give(most / 4) })
		if got, ok := b.Take(t.Context(), 1); !ok || got != 1 {
			t.Errorf("a Take that waits for room: got %d, %t; want 1", got, ok)
		}
		b.Give(1)
		if got := b.Stats().Bytes; got != 0 || b.Crowded() {
			t.Errorf("afterwards: got %d bytes, want 0", got)
		}
	})
}

// Answers wait behind a Write that the client does not read.
func TestWhileAClientDoesNotReadEverythingItSendsCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBound(t)
		p := connect(t, b, true)
		p.open(t, 1, 10, 0)
		p.open(t, 3, 10, 0)
		one := int64(StreamBytes + 10*headerFactor)
		go func() {
			_ = p.answer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("x"), EndHeaders: true, EndStream: true})
		}()
		synctest.Wait()
		if err := p.send.WriteRSTStream(3, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := b.Stats().Bytes; got != 2*one {
			t.Errorf("a reset behind a Write: got %d bytes, want %d", got, 2*one)
		}
		time.Sleep(time.Second)
		for range 10 {
			if err := p.send.WritePing(false, [8]byte{}); err != nil {
				t.Fatal(err)
			}
		}
		p.open(t, 5, 10, 0)
		if got, want := b.Stats().Bytes, 2*one+10*(replyBytes+2*8)+blockedBytes; got != want {
			t.Errorf("pings and a stream behind a Write: got %d bytes, want %d", got, want)
		}
		if _, err := io.ReadFull(p.client, make([]byte, frameHead+1)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, want := b.Stats(), int64(blockedBytes); got.Bytes != want || got.Streams != 1 {
			t.Errorf("when the client has read: got %+v, want %d bytes of one stream", got, want)
		}
	})
}

// marked is a connection that wants to know about requests.
type marked struct {
	net.Conn
	calls []string
}

func (m *marked) Begin()    { m.calls = append(m.calls, "begin") }
func (m *marked) Answered() { m.calls = append(m.calls, "answered") }
func (m *marked) Done()     { m.calls = append(m.calls, "done") }

func TestTheConnectionBelowHearsOfRequests(t *testing.T) {
	b, _ := newBound(t)
	m := new(marked)
	c := b.Follow(m)
	defer c.release()
	var sent, answers bytes.Buffer
	sent.WriteString(http2.ClientPreface)
	f, g := http2.NewFramer(&sent, nil), http2.NewFramer(&answers, nil)
	open := func(id uint32) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true, EndStream: true})
	}
	for _, err := range []error{open(1), open(3)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	c.receive(sent.Bytes())
	sent.Reset()
	for _, err := range []error{
		g.WriteRSTStream(1, http2.ErrCodeCancel),
		g.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, EndHeaders: true, EndStream: true}), open(5),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	c.writes.Add(1)
	c.wrote(answers.Bytes())
	c.receive(sent.Bytes())
	sent.Reset()
	if err := f.WriteRSTStream(5, http2.ErrCodeCancel); err != nil {
		t.Fatal(err)
	}
	c.receive(sent.Bytes())
	if got, want := strings.Join(m.calls, ", "), "begin, answered, done, begin, done"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
