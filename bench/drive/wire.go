package drive

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/internal/rawio"
)

// A Wire is a connection that asks at little cost. As Envoy does, it sends the HEADERS and the DATA
// of a request side by side. Header blocks repeat, as Envoy's do, and the caller decides how many
// requests share a write. Send may run beside one Receive. Send waits until the server takes the
// messages. So a goroutine that does both must not have more than 32 KiB of requests open, or more
// requests than the server allows. Make a Wire with DialWire.
type Wire struct {
	call   Call
	conn   net.Conn
	in     []byte // has has bytes of a frame that is not complete
	has    int
	blocks blocks
	denied map[uint32]bool // streams with an answer that is over limit
	gone   int             // streams that ended in the last read

	mu      sync.Mutex // guards the rest
	opened  sync.Cond  // the server takes more, or the connection has ended
	err     error      // the connection has ended
	out     []byte
	block   []byte // of every request after the second
	sent    int    // header blocks that were encoded
	encoder *hpack.Encoder
	encoded bytes.Buffer
	timeout string
	next    uint32 // stream
	window  int64  // bytes of messages that the server takes
	open    int    // streams
	most    int    // open streams that the server takes
}

// Lengths in bytes.
const (
	readSize  = 64 << 10 // of a read
	frameHead = 9
	frameMost = 16 << 10 // the largest frame that a server may send without a SETTINGS of ours
)

// wireWindow is the window of answers, in bytes: more than a Wire ever reads.
const wireWindow = 1<<31 - 1

// ErrDenied is the outcome of a request with the answer OVER_LIMIT.
var ErrDenied = errors.New("the answer is over limit")

// noTimeout is the value of grpc-timeout that is not sent.
const noTimeout = "0m"

// DialWire connects to a host:port, or to "unix:" and the path of a socket, for the call of Envoy.
// Each request says that its caller waits for at most that timeout, in milliseconds. With a timeout
// of 0 a request says nothing. Ctx ends the connection.
func DialWire(ctx context.Context, address string, timeout time.Duration) (*Wire, error) {
	return ShouldRateLimit().Dial(ctx, address, timeout)
}

// Dial is DialWire for another call.
func (c Call) Dial(ctx context.Context, address string, timeout time.Duration) (*Wire, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w := &Wire{
		call: c, conn: rawio.Wrap(conn), in: make([]byte, readSize), blocks: newBlocks(), denied: make(map[uint32]bool),
		timeout: strconv.FormatInt(timeout.Milliseconds(), 10) + "m", next: 1, window: 65535, most: math.MaxInt,
	}
	w.opened.L = &w.mu
	context.AfterFunc(ctx, func() { _ = w.Close() })
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

// Send sends requests that Request has made, at most 32 KiB together, in one write. Send waits
// while the window is too small, or the server has all the streams that it takes. Noted is called
// with the stream of each before the write.
func (w *Wire) Send(noted func(stream uint32), requests ...[]byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	bytes := int64(0)
	for _, r := range requests {
		bytes += int64(5 + len(r))
	}
	for w.err == nil && (w.window < bytes || w.open > 0 && w.open > w.most-len(requests)) {
		w.opened.Wait()
	}
	if w.err != nil {
		return w.err
	}
	w.window -= bytes
	w.open += len(requests)
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
	if w.sent == 2 {
		return w.block, nil
	}
	w.sent++
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
	n, err := w.conn.Read(w.in[w.has:])
	if err == nil {
		w.has += n
		n, err = w.frames(w.in[:w.has], func(stream uint32, err error) {
			w.gone++
			ended(stream, err)
		})
		w.has = copy(w.in, w.in[n:w.has])
		w.free()
	}
	if err != nil {
		w.end(err)
	}
	return err
}

// free lets Send use the streams that have ended.
func (w *Wire) free() {
	if w.gone == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open -= w.gone
	w.gone = 0
	w.opened.Broadcast()
}

// frames takes all whole frames, and returns their length.
func (w *Wire) frames(in []byte, ended func(stream uint32, err error)) (taken int, err error) {
	for len(in)-taken >= frameHead {
		head := in[taken:]
		length := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
		if length > frameMost {
			return taken, fmt.Errorf("the server sends a frame of %d bytes; the most is %d", length, frameMost)
		}
		if len(head) < frameHead+length {
			break
		}
		f := frame{http2.FrameType(head[3]), http2.Flags(head[4]), binary.BigEndian.Uint32(head[5:]), head[frameHead : frameHead+length]}
		if err := w.frame(&f, ended); err != nil {
			return taken, err
		}
		taken += frameHead + length
	}
	return taken, nil
}

type frame struct {
	kind    http2.FrameType
	flags   http2.Flags
	stream  uint32
	payload []byte
}

// least is the shortest payload of each kind of frame, in bytes.
func (f *frame) least() int {
	switch f.kind {
	case http2.FrameData:
		return 5
	case http2.FrameRSTStream, http2.FrameWindowUpdate:
		return 4
	case http2.FramePing, http2.FrameGoAway:
		return 8
	default:
		return 0
	}
}

var errReset = errors.New("the server resets a request")

func (w *Wire) frame(f *frame, ended func(stream uint32, err error)) error {
	if len(f.payload) < f.least() {
		return fmt.Errorf("%v of %d bytes from the server; the least is %d", f.kind, len(f.payload), f.least())
	}
	switch f.kind {
	case http2.FrameHeaders:
		return w.headers(f, ended)
	case http2.FrameData:
		denied, err := w.call.Denied(f.payload[5:])
		if err != nil || f.flags&http2.FlagDataPadded != 0 {
			return fmt.Errorf("the answer %q has no verdict: %w", f.payload, err)
		}
		if denied {
			w.denied[f.stream] = true
		}
	case http2.FrameRSTStream:
		delete(w.denied, f.stream)
		ended(f.stream, fmt.Errorf("%w: %v", errReset, http2.ErrCode(binary.BigEndian.Uint32(f.payload))))
	case http2.FrameWindowUpdate:
		if f.stream == 0 {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.window += int64(binary.BigEndian.Uint32(f.payload))
			w.opened.Broadcast()
		}
	case http2.FrameSettings, http2.FramePing:
		const ack = http2.FlagPingAck // the same flag as of SETTINGS
		if f.flags&ack == 0 {
			reply := f.payload
			if f.kind == http2.FrameSettings {
				reply = nil
				w.settings(f.payload)
			}
			return w.write(appendFrame(nil, f.kind, ack, 0, reply))
		}
	case http2.FrameGoAway:
		return fmt.Errorf("the server ends the connection: %v: %s", http2.ErrCode(binary.BigEndian.Uint32(f.payload[4:])), f.payload[8:])
	default: // of no stream
	}
	return nil
}

// settings takes SETTINGS_MAX_CONCURRENT_STREAMS.
func (w *Wire) settings(payload []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ; len(payload) >= 6; payload = payload[6:] {
		if http2.SettingID(binary.BigEndian.Uint16(payload)) == http2.SettingMaxConcurrentStreams {
			w.most = int(binary.BigEndian.Uint32(payload[2:]))
		}
	}
	w.opened.Broadcast()
}

func (w *Wire) headers(f *frame, ended func(stream uint32, err error)) error {
	if f.flags&^http2.FlagHeadersEndStream != http2.FlagHeadersEndHeaders {
		return fmt.Errorf("the headers of an answer have the flags 0x%x, and not END_HEADERS alone or with END_STREAM", f.flags)
	}
	status, err := w.blocks.status(f.payload)
	if err != nil || f.flags&http2.FlagHeadersEndStream == 0 {
		return err
	}
	var outcome error
	switch {
	case status != "0":
		outcome = fmt.Errorf("the answer has the gRPC status %q", status)
	case len(w.denied) > 0 && w.denied[f.stream]:
		outcome = ErrDenied
	}
	if len(w.denied) > 0 {
		delete(w.denied, f.stream)
	}
	ended(f.stream, outcome)
	return nil
}

func (w *Wire) write(frame []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.conn.Write(frame)
	return err
}
