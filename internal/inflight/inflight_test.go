package inflight

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/internal/deptest"
	"github.com/weirproxy/weir/internal/logtest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{}, Third: []string{"google.golang.org/grpc/..."}})
}

// peers are a followed connection, and the client's end of it.
type peers struct {
	bound  *Bound
	server *Conn
	client net.Conn
	send   *http2.Framer // frames of the client, in one Write each
	answer *http2.Framer // frames of the server
	ended  chan struct{} // closed when the server's reading ends
}

const most = 1 << 20 // bytes of every bound here

func newBound(t *testing.T) (*Bound, *logtest.Log) {
	t.Helper()
	log := new(logtest.Log)
	return New(Options{
		MaxBytes: most, MaxStreams: 200, MessageTimeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(log, nil)),
	}), log
}

// connect returns a connection whose server reads all the time, and whose client reads unless it is silent.
func connect(t *testing.T, b *Bound, silent bool) *peers {
	t.Helper()
	client, raw := net.Pipe()
	p := &peers{bound: b, server: b.Follow(raw), client: client, ended: make(chan struct{})}
	p.send, p.answer = http2.NewFramer(client, nil), http2.NewFramer(p.server, nil)
	go func() {
		defer close(p.ended)
		_, _ = io.Copy(io.Discard, p.server)
	}()
	if !silent {
		go func() { _, _ = io.Copy(io.Discard, client) }()
	}
	if _, err := io.WriteString(client, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.server.Close(), client.Close() })
	return p
}

// open sends headers of n bytes; the stream has a message of so many bytes, of which the first half comes.
func (p *peers) open(t *testing.T, id uint32, n, half int) {
	t.Helper()
	if err := p.send.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: make([]byte, n), EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	if half > 0 {
		if err := p.send.WriteData(id, false, append([]byte{0, 0, 0, byte(2 * half >> 8), byte(2 * half)}, make([]byte, half-5)...)); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
}

// end answers a stream.
func (p *peers) end(t *testing.T, id uint32) {
	t.Helper()
	if err := p.answer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte("x"), EndHeaders: true, EndStream: true}); err != nil {
		t.Fatal(err)
	}
}

// isEnded reports whether the connection has ended.
func (p *peers) isEnded() bool {
	synctest.Wait()
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
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
		if _, ok := b.Take(1000); ok {
			t.Error("Take found room that is not there")
		}
		if got := b.Stats().Refused; got != 2 {
			t.Errorf("refused: got %d, want 2", got)
		}
		if greedy.isEnded() {
			t.Error("a connection ended below the bound")
		}
		_, _ = greedy.server.Close(), honest.server.Close()
		for range 2 { // each a quarter of the bound, whatever it asks for
			if got, ok := b.Take(most); !ok || got != most/4 {
				t.Errorf("Take: got %d, %t; want %d", got, ok, most/4)
			}
		}
		if _, ok := b.Take(1); ok {
			t.Error("Take filled more than half of the bound")
		}
		b.Give(most / 2)
		if got := b.Stats().Bytes; got != 0 || b.Crowded() {
			t.Errorf("afterwards: got %d bytes, want 0", got)
		}
	})
}

func TestAConnectionEndsWhenItsMessageDoesNotCome(t *testing.T) {
	frame := func(f func(*peers) error) func(*testing.T, *peers) {
		return func(t *testing.T, p *peers) {
			t.Helper()
			if err := f(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		begin func(t *testing.T, p *peers)
		ends  bool
	}{
		"nothing":        {func(*testing.T, *peers) {}, false},
		"headers":        {func(t *testing.T, p *peers) { t.Helper(); p.open(t, 1, 10, 0) }, true},
		"half_a_message": {func(t *testing.T, p *peers) { t.Helper(); p.open(t, 1, 10, 50) }, true},
		"a_message_and_more": {func(t *testing.T, p *peers) {
			t.Helper()
			p.open(t, 1, 10, 0)
			_ = p.send.WriteData(1, false, make([]byte, 5))
		}, false},
		"half_a_frame":   {frame(func(p *peers) error { _, err := p.client.Write([]byte{0, 0, 100, 0, 1}); return err }), true},
		"half_a_payload": {frame(func(p *peers) error { _, err := p.client.Write([]byte{0, 0, 100, 0, 1, 0, 0, 0, 1, 0, 0}); return err }), true},
		"a_ping":         {frame(func(p *peers) error { return p.send.WritePing(false, [8]byte{}) }), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, _ := newBound(t)
				p := connect(t, b, false)
				test.begin(t, p)
				time.Sleep(9 * time.Second)
				if p.isEnded() {
					t.Error("the connection ended early")
				}
				time.Sleep(3 * time.Second)
				if p.isEnded() != test.ends || b.Stats().Ended["slow_message"] != map[bool]uint64{true: 1}[test.ends] {
					t.Errorf("ended: got %t, %+v; want %t", p.isEnded(), b.Stats(), test.ends)
				}
			})
		})
	}
}

func TestAConnectionEndsForFramesOfAnAttack(t *testing.T) {
	for name, test := range map[string]struct {
		send func(p *peers) error
		want string
	}{
		"continuations": {func(p *peers) error {
			err := p.send.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("x")})
			for range maxContinuations + 1 {
				if err == nil {
					err = p.send.WriteContinuation(1, false, []byte("x"))
				}
			}
			return err
		}, "bad_frames"},
		"large_settings": {func(p *peers) error { return p.send.WriteSettings(make([]http2.Setting, 200)...) }, "bad_frames"},
		"streams": {func(p *peers) (err error) {
			for id := uint32(1); id <= 2*200+1 && err == nil; id += 2 {
				err = p.send.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true, EndStream: true})
			}
			return err
		}, "too_many_streams"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := New(Options{MaxBytes: 1 << 30, MaxStreams: 200, MessageTimeout: time.Hour, Logger: slog.New(slog.DiscardHandler)})
				p := connect(t, b, false)
				_ = test.send(p)
				if !p.isEnded() || b.Stats().Ended[test.want] != 1 || b.Stats().Bytes != 0 {
					t.Errorf("ended: got %t, %+v; want the reason %s", p.isEnded(), b.Stats(), test.want)
				}
			})
		})
	}
}

// The answers to what a client sends wait behind a Write that the client does not read.
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

func (m *marked) Begin() { m.calls = append(m.calls, "begin") }
func (m *marked) Done(answered bool) {
	m.calls = append(m.calls, map[bool]string{true: "answered", false: "given up"}[answered])
}

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
	if got, want := strings.Join(m.calls, ", "), "begin, answered, begin, given up"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
