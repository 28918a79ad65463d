package laneserver

import (
	"encoding/binary"
	"net"
	"sync"

	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/internal/wire/connections"
)

// maxEarly bounds the bytes before the first request, which are kept for another server. Clients
// send a hundred bytes. A client that has sent more stays here.
const maxEarly = 1 << 10

// early is a connection before its first request.
type early struct {
	conn  net.Conn // behind the handshake
	bytes []byte   // from the client so far
	sent  sent
}

// sent counts the frames that were sent so far, which the next server will send again.
type sent struct {
	settings, windows, settingsAcks int
}

// count counts frames of the machine. The result is false when the next server cannot go on behind
// them: after a GOAWAY, a RST_STREAM, or the answer to a PING. That server would see the PINGs of
// hours at once, and take them for a flood.
func (e *early) count(out []byte) (ok bool) {
	for len(out) >= frameHead {
		h := head(out[:frameHead])
		n := e.sent.of(h)
		switch {
		case n != nil:
			*n++
		case h.kind == http2.FramePing && !h.flags.Has(http2.FlagPingAck): // the next server ignores the answer to our PING
		default:
			return false
		}
		out = out[frameHead+h.length:]
	}
	return true
}

// frameHead is the length of a frame without its payload, in bytes.
const frameHead = 9

// frame is the head of a frame.
type frame struct {
	length int
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
}

func head(b []byte) frame {
	return frame{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]), kind: http2.FrameType(b[3]), flags: http2.Flags(b[4]),
		stream: binary.BigEndian.Uint32(b[5:]),
	}
}

// of returns the number of the frames like this one, nil for other frames.
func (s *sent) of(h frame) *int {
	switch {
	case h.kind == http2.FrameSettings && h.flags.Has(http2.FlagSettingsAck):
		return &s.settingsAcks
	case h.kind == http2.FrameSettings:
		return &s.settings
	case h.kind == http2.FrameWindowUpdate && h.stream == 0:
		return &s.windows
	}
	return nil
}

// none reports whether no frame is left.
func (s *sent) none() bool { return s.settings+s.windows+s.settingsAcks == 0 }

// hand returns the connection for another server. last is the bytes that came last.
func (e *early) hand(c *Conn, last []byte) *Handed {
	return &Handed{Conn: e.conn, Info: c.info, early: append(e.bytes, last...), mark: c.mark, plain: c.plain, sent: e.sent}
}

// Handed is a connection for another server. Read begins with the first byte of the client. Write
// drops the frames that the client has already, such as SETTINGS. Both servers must have the same
// SETTINGS.
type Handed struct {
	net.Conn
	Info  any // of Options.Handshake
	early []byte
	mark  connections.Marker    // nil: nobody wants to know
	plain connections.Decrypter // the same

	// Of Write.
	sent sent
	head []byte // of an incomplete frame
	left int    // bytes of the payload of the current frame that are still to come
	drop bool   // the current frame is dropped
	kept []byte
}

// NetConn returns the connection below, as [tls.Conn.NetConn] does. Bytes of that connection come
// behind the Buffered ones.
func (h *Handed) NetConn() net.Conn { return h.Conn }

// Buffered returns the number of bytes that Read returns without waiting. The goroutine that reads
// may call Buffered.
func (h *Handed) Buffered() int { return len(h.early) }

// Read implements [net.Conn].
func (h *Handed) Read(p []byte) (int, error) {
	if len(h.early) > 0 {
		n := copy(p, h.early)
		if h.early = h.early[n:]; len(h.early) == 0 {
			h.early = nil
		}
		return n, nil
	}
	n, err := h.Conn.Read(p)
	if h.plain != nil && n > 0 {
		h.plain.Decrypted()
	}
	return n, err
}

// Write implements [net.Conn].
func (h *Handed) Write(p []byte) (int, error) {
	if h.left == 0 && len(h.head) == 0 && h.sent.none() {
		return h.Conn.Write(p)
	}
	h.kept = h.kept[:0]
	for rest := p; len(rest) > 0; {
		if h.left > 0 {
			n := min(h.left, len(rest))
			if !h.drop {
				h.kept = append(h.kept, rest[:n]...)
			}
			h.left -= n
			rest = rest[n:]
			continue
		}
		n := min(frameHead-len(h.head), len(rest))
		h.head = append(h.head, rest[:n]...)
		if rest = rest[n:]; len(h.head) < frameHead {
			break
		}
		f := head(h.head)
		again := h.sent.of(f)
		if h.drop = again != nil && *again > 0; h.drop {
			*again--
		} else {
			h.kept = append(h.kept, h.head...)
		}
		h.left, h.head = f.length, h.head[:0]
	}
	if len(h.kept) > 0 {
		if _, err := h.Conn.Write(h.kept); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Begin tells the bound of connections that the first request is open.
func (h *Handed) Begin() {
	if h.mark != nil {
		h.mark.Begin()
	}
}

// Answered tells the bound of connections that a request is answered.
func (h *Handed) Answered() {
	if h.mark != nil {
		h.mark.Answered()
	}
}

// Done tells the bound of connections that no request is open.
func (h *Handed) Done() {
	if h.mark != nil {
		h.mark.Done()
	}
}

// handover is the listener of connections for another server.
type handover struct {
	conns  chan *Handed
	closed chan struct{}
	close  func()
}

func newHandover() *handover {
	h := &handover{conns: make(chan *Handed), closed: make(chan struct{})}
	h.close = sync.OnceFunc(func() { close(h.closed) })
	return h
}

// give hands a connection to the other server. The result is false when no server takes the
// connection.
func (h *handover) give(c *Handed) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.closed:
		return false
	}
}

// Accept implements [net.Listener].
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (h *handover) Close() error {
	h.close()
	return nil
}

// Addr implements [net.Listener].
func (h *handover) Addr() net.Addr { return handoverAddr{} }

type handoverAddr struct{}

func (handoverAddr) Network() string { return "handover" }
func (handoverAddr) String() string  { return "handover" }
