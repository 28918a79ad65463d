package drive

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A Wire is a connection that asks at little cost. Header blocks repeat, as Envoy's do, and the
// caller decides how many requests share a write. Send may run beside one Receive. A goroutine that
// does both must not have more than 32 KiB of requests open, as Send waits until the server takes
// the messages. Make a Wire with DialWire.
type Wire struct {
	call    Call
	conn    net.Conn
	in      *bufio.Reader
	framer  *http2.Framer // reads
	decoder *hpack.Decoder
	status  string          // grpc-status of the header block that is read
	denied  map[uint32]bool // streams with an answer that is over limit

	mu      sync.Mutex // guards the rest
	opened  sync.Cond  // the window has grown, or the connection has ended
	err     error      // the connection has ended
	out     []byte
	block   []byte // of every request after the second
	blocks  int
	encoder *hpack.Encoder
	encoded bytes.Buffer
	timeout string
	next    uint32 // stream
	window  int64  // bytes of messages that the server takes
}

// wireWindow is the window of answers, in bytes: more than a Wire ever reads.
const wireWindow = 1<<31 - 1

// ErrDenied is the outcome of a request with the answer OVER_LIMIT.
var ErrDenied = errors.New("the answer is over limit")

// noTimeout is the value of grpc-timeout that is not sent.
const noTimeout = "0m"

// DialWire connects, for the call of Envoy. Each request says that its caller waits for at most
// that timeout, in milliseconds. With a timeout of 0 a request says nothing. Ctx ends the
// connection.
func DialWire(ctx context.Context, address string, timeout time.Duration) (*Wire, error) {
	return ShouldRateLimit().Dial(ctx, address, timeout)
}

// Dial is DialWire for another call.
func (c Call) Dial(ctx context.Context, address string, timeout time.Duration) (*Wire, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(conn, 16<<10)
	w := &Wire{call: c, conn: conn, in: in, framer: http2.NewFramer(nil, in), denied: make(map[uint32]bool), next: 1, window: 65535}
	w.timeout = strconv.FormatInt(timeout.Milliseconds(), 10) + "m"
	w.opened.L = &w.mu
	context.AfterFunc(ctx, func() { _ = w.Close() })
	w.framer.SetReuseFrames()
	w.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == "grpc-status" {
			w.status = f.Value
		}
	})
	w.encoder = hpack.NewEncoder(&w.encoded)
	var hello bytes.Buffer
	hello.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&hello, nil)
	if err := errors.Join(framer.WriteSettings(), framer.WriteWindowUpdate(0, wireWindow-65535)); err != nil {
		return nil, err
	}
	if _, err = conn.Write(hello.Bytes()); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return w, nil
}

// Close ends the connection.
func (w *Wire) Close() error {
	w.end(net.ErrClosed)
	return w.conn.Close()
}

// end lets Send fail.
func (w *Wire) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.opened.Broadcast()
}

// Send sends requests that Request has made, at most 32 KiB together, in one write. Noted is called
// with the stream of each before the write.
func (w *Wire) Send(noted func(stream uint32), requests ...[]byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	bytes := int64(0)
	for _, r := range requests {
		bytes += int64(5 + len(r))
	}
	for w.err == nil && w.window < bytes {
		w.opened.Wait()
	}
	if w.err != nil {
		return w.err
	}
	w.window -= bytes
	w.out = w.out[:0]
	for _, r := range requests {
		block, err := w.blockLocked()
		if err != nil {
			return err
		}
		w.out = appendFrame(w.out, http2.FrameHeaders, http2.FlagHeadersEndHeaders, w.next, block)
		w.out = appendFrame(w.out, http2.FrameData, http2.FlagDataEndStream, w.next, binary.BigEndian.AppendUint32([]byte{0}, uint32(len(r))), r)
		if noted != nil {
			noted(w.next)
		}
		w.next += 2
	}
	_, err := w.conn.Write(w.out)
	return err
}

// blockLocked returns the header block of the next request. The first one fills the server's table,
// the second one uses it.
func (w *Wire) blockLocked() ([]byte, error) {
	if w.blocks == 2 {
		return w.block, nil
	}
	w.blocks++
	w.encoded.Reset()
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", w.call.Method},
		{":authority", "weir"},
		{"te", "trailers"},
		{"grpc-timeout", w.timeout},
		{"content-type", "application/grpc"},
	} {
		if f[1] == noTimeout {
			continue
		}
		if err := w.encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return nil, err
		}
	}
	w.block = bytes.Clone(w.encoded.Bytes())
	return w.block, nil
}

func appendFrame(out []byte, kind http2.FrameType, flags http2.Flags, stream uint32, payload ...[]byte) []byte {
	n := 0
	for _, p := range payload {
		n += len(p)
	}
	out = append(out, byte(n>>16), byte(n>>8), byte(n), byte(kind), byte(flags))
	out = binary.BigEndian.AppendUint32(out, stream)
	for _, p := range payload {
		out = append(out, p...)
	}
	return out
}

// Receive waits for bytes of the server and reads all whole frames. Receive calls ended for each
// request that got its answer, with an error unless the answer is within the limit. The error of an
// answer over limit is ErrDenied.
func (w *Wire) Receive(ended func(stream uint32, err error)) error {
	for first := true; first || w.in.Buffered() > 0; first = false {
		frame, err := w.framer.ReadFrame()
		if err == nil {
			err = w.frame(frame, ended)
		}
		if err != nil {
			w.end(err)
			return err
		}
	}
	return nil
}

func (w *Wire) frame(frame http2.Frame, ended func(stream uint32, err error)) error {
	switch f := frame.(type) {
	case *http2.HeadersFrame:
		w.status = ""
		if _, err := w.decoder.Write(f.HeaderBlockFragment()); err != nil || !f.HeadersEnded() {
			return fmt.Errorf("the headers of an answer: not in one frame, or %w", err)
		}
		if !f.StreamEnded() {
			return nil
		}
		var outcome error
		switch denied := w.denied[f.StreamID]; {
		case w.status != "0":
			outcome = fmt.Errorf("the answer has the gRPC status %q", w.status)
		case denied:
			outcome = ErrDenied
		}
		delete(w.denied, f.StreamID)
		ended(f.StreamID, outcome)
	case *http2.DataFrame:
		if len(f.Data()) < 5 {
			return fmt.Errorf("the answer %q has no verdict", f.Data())
		}
		denied, err := w.call.Denied(f.Data()[5:])
		if err != nil {
			return fmt.Errorf("the answer %q has no verdict: %w", f.Data(), err)
		}
		if denied {
			w.denied[f.StreamID] = true
		}
	case *http2.RSTStreamFrame:
		delete(w.denied, f.StreamID)
		ended(f.StreamID, fmt.Errorf("the server resets a request: %v", f.ErrCode))
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.window += int64(f.Increment)
			w.opened.Broadcast()
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return w.write(appendFrame(nil, http2.FrameSettings, http2.FlagSettingsAck, 0))
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return w.write(appendFrame(nil, http2.FramePing, http2.FlagPingAck, 0, f.Data[:]))
		}
	case *http2.GoAwayFrame:
		return fmt.Errorf("the server ends the connection: %v: %s", f.ErrCode, f.DebugData())
	}
	return nil
}

func (w *Wire) write(frame []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.conn.Write(frame)
	return err
}
