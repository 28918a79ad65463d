package lane

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/net/http2/hpack"
)

// Back is a [Foreign] that speaks HTTP/2 to a gRPC server, as a client on one connection, again
// without input and output. The streams keep their numbers. Header blocks are decoded and encoded
// again. Each side has its own flow control.
//
//	b := lane.NewBack(nil)
//	c := l.Open(now, handler, b, age)
//	b.Attach(c)
//
// After each method of the Conn or the Back the caller writes the output of both. The first output
// of a Back comes with the first foreign stream. Then the caller connects to the gRPC server, by
// any net.Conn, also one in memory. When that connection ends, the caller calls [Back.Lost], and
// the next stream begins another one. A Conn and its Back are under one lock.
type Back struct {
	conn    *Conn
	out     []byte
	partial []byte // of a frame
	block   []byte // the header block that came last, as far as it is there
	stream  uint32 // of block
	end     bool   // of the stream of block

	text    bytes.Buffer // the output of encoder
	encoder *hpack.Encoder
	decoder *hpack.Decoder

	weigh      func(path string) int
	streams    map[uint32]*backStream // nil: not connected
	most       int                    // streams at once so far
	held       int                    // bytes of memory of streams
	reset      int                    // the same of streams that were reset, until Forget
	last       uint32                 // the largest stream that the server takes
	peerWindow int64                  // SETTINGS_INITIAL_WINDOW_SIZE of the server
	maxFrame   int
	sendWindow int64 // of the connection
	consumed   int   // bytes to open the connection's window by
}

type backStream struct {
	sendWindow int64
	queue      []byte // DATA that waits for the server's windows
	ended      bool   // the client has nothing more to send, behind queue
	sent       bool   // the end has gone out to the server
	over       bool   // the server has nothing more to send
	consumed   int    // bytes to open the stream's window by
	held       int    // bytes of memory in the server
	long       bool   // see Long
}

// Memory of the parts of a request in grpc-go, as measured with Go 1.26 and grpc-go 1.85 (decision
// 28).
const (
	// BackStreamBytes is a stream with its context, goroutine and map of headers.
	BackStreamBytes = 12 << 10
	// backFieldBytes is a header field, and backTextFactor is for each byte of its text.
	backFieldBytes = 128
	backTextFactor = 4
	// backDataFactor is for each byte of a message: receive buffers of up to 4 times the size, text,
	// and answer.
	backDataFactor = 8
	// backKept is the memory that two maps of grpc-go keep for a stream, until the end of its
	// connection. The maps grow with the most streams at once, and never shrink.
	backKept = 112
	backFree = 64 // streams whose part of the maps is in the memory of a connection
)

// backWindow is the window of the connection for responses, in bytes. A slow client can make the
// connection hold as much.
const backWindow = 512 << 10

// NewBack returns a Back that is not connected. weigh returns the bytes of memory that a stream of
// a method takes in the gRPC server, beside its headers and data. Nil: BackStreamBytes for each.
func NewBack(weigh func(path string) int) *Back {
	if weigh == nil {
		weigh = func(string) int { return BackStreamBytes }
	}
	return &Back{weigh: weigh, last: maxStreamID}
}

// Attach gives the Conn whose streams the Back takes. The caller must call Attach before the first
// Receive of the Conn.
func (b *Back) Attach(c *Conn) { b.conn = c }

// connect begins a connection to the gRPC server. Most connections of clients need none.
func (b *Back) connect() {
	*b = Back{
		conn: b.conn, weigh: b.weigh, decoder: hpack.NewDecoder(maxTable, nil), streams: make(map[uint32]*backStream), last: maxStreamID,
		peerWindow: defaultWindow, maxFrame: maxFrame, sendWindow: defaultWindow,
	}
	b.encoder = hpack.NewEncoder(&b.text)
	b.out = append(b.out, preface...)
	b.out = appendSetting(appendFrame(b.out, 6, frameSettings, 0, 0), settingPush, 0)
	b.out = appendWindow(b.out, 0, backWindow-defaultWindow)
}

// Output is as [Conn.Output], for the gRPC server.
func (b *Back) Output() []byte { return takeOutput(&b.out) }

// Idle reports whether no stream is open. The caller may then close the connection to the gRPC
// server, and call Lost.
func (b *Back) Idle() bool { return len(b.streams) == 0 }

// Lost forgets the connection to the gRPC server. The streams of that connection get
// REFUSED_STREAM.
func (b *Back) Lost() {
	streams := b.streams
	*b = Back{conn: b.conn, weigh: b.weigh, last: maxStreamID}
	for id, s := range streams {
		b.conn.ForeignCredit(id, len(s.queue))
		b.conn.ForeignReset(id, RefusedStream)
	}
}

// Begin implements [Foreign].
func (b *Back) Begin(id uint32, fields []hpack.HeaderField, end bool) {
	if id > b.last {
		b.conn.ForeignReset(id, RefusedStream)
		return
	}
	if b.streams == nil {
		b.connect()
	}
	b.text.Reset()
	held := BackStreamBytes
	for _, f := range fields {
		held += backFieldBytes + backTextFactor*(len(f.Name)+len(f.Value))
		if f.Name == ":path" {
			held += b.weigh(f.Value) - BackStreamBytes
		}
		if err := b.encoder.WriteField(f); err != nil {
			b.conn.ForeignReset(id, InternalError) // a bytes.Buffer makes no errors
			return
		}
	}
	b.streams[id] = &backStream{sendWindow: b.peerWindow, ended: end, sent: end, held: held}
	b.held += held
	b.most = max(b.most, len(b.streams))
	b.out = appendHeaderFrames(b.out, id, b.text.Bytes(), end, b.maxFrame)
}

// Long says that a stream has many messages: bytes that the server has read do not count as held.
func (b *Back) Long(id uint32) {
	if s := b.streams[id]; s != nil {
		s.long = true
	}
}

// Data implements [Foreign].
func (b *Back) Data(id uint32, data []byte, end bool) {
	s := b.streams[id]
	if s == nil { // the server has ended it
		b.conn.ForeignCredit(id, len(data))
		return
	}
	s.queue = append(s.queue, data...)
	s.held += backDataFactor * len(data)
	b.held += backDataFactor * len(data)
	s.ended = end
	b.flush(id, s)
}

func (b *Back) flush(id uint32, s *backStream) {
	for !s.sent {
		n := int(min(int64(len(s.queue)), b.sendWindow, s.sendWindow, int64(b.maxFrame)))
		last := s.ended && n == len(s.queue)
		if n <= 0 && !last {
			return
		}
		flags := byte(0)
		if last {
			flags = flagEndStream
		}
		b.out = append(appendFrame(b.out, n, frameData, flags, id), s.queue[:n]...)
		s.queue = append(s.queue[:0], s.queue[n:]...)
		s.sendWindow -= int64(n)
		b.sendWindow -= int64(n)
		s.sent = last
		if n > 0 {
			b.conn.ForeignCredit(id, n)
		}
	}
	b.closeBoth(id, s)
}

// closeBoth forgets a stream that both ends have ended.
func (b *Back) closeBoth(id uint32, s *backStream) {
	if s.sent && s.over {
		b.drop(id, s)
	}
}

// Reset implements [Foreign].
func (b *Back) Reset(id uint32, code Code) {
	if s := b.streams[id]; s != nil {
		b.out = appendReset(b.out, id, code)
		b.drop(id, s)
		b.reset += s.held
	}
}

// Held returns the bytes of memory of the Back, and of its streams in the gRPC server, by an upper
// estimate. Streams that were reset count until Forget.
func (b *Back) Held() int {
	return b.held + b.reset + backKept*max(b.most-backFree, 0) + len(b.out) + len(b.partial)
}

// ResetBytes returns the bytes of streams that were reset, and not forgotten.
func (b *Back) ResetBytes() int { return b.reset }

// Forget takes off bytes of streams that were reset: the gRPC server has seen the end of these.
func (b *Back) Forget(bytes int) { b.reset = max(b.reset-bytes, 0) }

func (b *Back) drop(id uint32, s *backStream) {
	delete(b.streams, id)
	b.held -= s.held
	if n := len(s.queue); n > 0 {
		b.conn.ForeignCredit(id, n)
	}
}

// Credit implements [Foreign].
func (b *Back) Credit(id uint32, n int) {
	if b.streams == nil {
		return
	}
	if b.consumed += n; b.consumed >= backWindow/2 {
		b.out = appendWindow(b.out, 0, b.consumed)
		b.consumed = 0
	}
	if s := b.streams[id]; s != nil {
		if s.consumed += n; s.consumed >= defaultWindow/2 {
			b.out = appendWindow(b.out, id, s.consumed)
			s.consumed = 0
		}
	}
}

// Arrived implements [Foreign]. The gRPC server does not get it.
func (b *Back) Arrived(uint64, int64) {}

// Receive takes the next bytes from the gRPC server. After an error the caller closes that
// connection and calls Lost.
func (b *Back) Receive(chunk []byte, now int64) error {
	if b.conn.err != nil {
		return b.conn.err
	}
	b.conn.now = now
	b.partial = append(b.partial, chunk...)
	rest := b.partial
	for len(rest) >= frameHead {
		f := parseFrame(rest)
		if f.length > maxFrame {
			return fmt.Errorf("the gRPC server sent a frame of %d bytes", f.length)
		}
		if len(rest) < frameHead+f.length {
			break
		}
		if err := b.frame(f, rest[frameHead:frameHead+f.length]); err != nil {
			return err
		}
		rest = rest[frameHead+f.length:]
	}
	b.partial = append(b.partial[:0], rest...)
	return nil
}

func (b *Back) frame(f frame, payload []byte) error {
	switch f.kind {
	case frameHeaders, frameData:
		padded := f.length
		payload, ok := unpad(f, payload)
		if !ok {
			return fmt.Errorf("the gRPC server sent a frame of type %d with too much padding", f.kind)
		}
		if f.kind == frameData {
			b.data(f, payload, padded-len(payload))
			return nil
		}
		b.block, b.stream, b.end = append(b.block[:0], payload...), f.stream, f.has(flagEndStream)
		return b.headers(f)
	case frameContinuation:
		b.block = append(b.block, payload...)
		return b.headers(f)
	case frameReset:
		if s := b.streams[f.stream]; s != nil && len(payload) == 4 {
			b.drop(f.stream, s)
			b.conn.ForeignReset(f.stream, Code(binary.BigEndian.Uint32(payload)))
		}
	case frameSettings:
		b.settings(f, payload)
	case framePing:
		if !f.has(flagAck) {
			b.out = appendPing(b.out, flagAck, payload)
		}
	case frameGoAway:
		b.goAway(payload)
	case frameWindow:
		b.windowUpdate(f, payload)
	}
	return nil
}

func (b *Back) data(f frame, payload []byte, padding int) {
	if padding > 0 {
		b.Credit(f.stream, padding)
	}
	s := b.streams[f.stream]
	if s == nil || s.over {
		b.Credit(f.stream, len(payload))
		return
	}
	s.over = f.has(flagEndStream)
	b.closeBoth(f.stream, s)
	b.conn.ForeignData(f.stream, payload, f.has(flagEndStream))
}

// headers decodes a header block of the gRPC server, when it is complete.
func (b *Back) headers(f frame) error {
	if !f.has(flagEndHeaders) {
		return nil
	}
	fields, err := b.decoder.DecodeFull(b.block)
	if err != nil {
		return fmt.Errorf("the gRPC server sent a header block that is wrong: %w", err)
	}
	s := b.streams[b.stream]
	if s == nil || s.over {
		return nil
	}
	s.over = b.end
	b.closeBoth(b.stream, s)
	b.conn.ForeignHeaders(b.stream, fields, b.end)
	return nil
}

func (b *Back) settings(f frame, payload []byte) {
	if f.has(flagAck) {
		return
	}
	for ; len(payload) >= 6; payload = payload[6:] {
		value := binary.BigEndian.Uint32(payload[2:])
		switch binary.BigEndian.Uint16(payload) {
		case settingTableSize:
			b.encoder.SetMaxDynamicTableSizeLimit(value)
		case settingMaxFrame:
			b.maxFrame = int(min(value, maxFrame))
		case settingWindow:
			more := int64(value) - b.peerWindow
			b.peerWindow = int64(value)
			for _, s := range b.streams {
				s.sendWindow += more
			}
		}
	}
	b.out = appendFrame(b.out, 0, frameSettings, flagAck, 0)
	b.flushAll()
}

func (b *Back) flushAll() {
	for id, s := range b.streams {
		b.flush(id, s)
	}
}

func (b *Back) windowUpdate(f frame, payload []byte) {
	if len(payload) != 4 {
		return
	}
	increment := int64(binary.BigEndian.Uint32(payload) & maxWindow)
	if f.stream == 0 {
		b.sendWindow += increment
		b.flushAll()
	} else if s := b.streams[f.stream]; s != nil {
		s.sendWindow += increment
		if s.long {
			read := min(backDataFactor*int(increment), s.held-BackStreamBytes)
			s.held -= read
			b.held -= read
		}
		b.flush(f.stream, s)
	}
}

// goAway takes a GOAWAY of the gRPC server, which drains: the client must connect again too.
func (b *Back) goAway(payload []byte) {
	if len(payload) < 8 {
		return
	}
	b.last = binary.BigEndian.Uint32(payload) & maxStreamID
	b.conn.Shutdown(string(payload[8:]), b.conn.now)
	for id, s := range b.streams {
		if id > b.last {
			b.drop(id, s)
			b.conn.ForeignReset(id, RefusedStream)
		}
	}
}
