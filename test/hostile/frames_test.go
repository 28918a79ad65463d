package hostile

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A peer is the client's end of a raw HTTP/2 connection. A peer keeps to no window and to no bound
// of the program. A peer is not safe for concurrent use.
type peer struct {
	net.Conn
	*http2.Framer // writes into out

	out    *bufio.Writer
	block  bytes.Buffer // header block under construction
	fields *hpack.Encoder
	path   string // of the calls
	stream uint32 // last stream
}

// raw opens a raw connection, which ends with ctx, and sends the settings. The caller chooses
// whether it reads.
func (a *assault) raw(ctx context.Context, settings ...http2.Setting) (*peer, error) {
	conn, err := a.dial(ctx, a.address)
	if err != nil {
		return nil, err
	}
	p := &peer{Conn: conn, out: bufio.NewWriterSize(conn, 32<<10), path: method}
	p.Framer = http2.NewFramer(p.out, nil)
	p.AllowIllegalWrites = true
	p.fields = hpack.NewEncoder(&p.block)
	if _, err := p.out.WriteString(http2.ClientPreface); err != nil {
		return nil, err
	}
	return p, p.WriteSettings(settings...)
}

// discard reads and forgets the program's frames, on a goroutine of its own.
func (p *peer) discard() { go func() { _, _ = io.Copy(io.Discard, p.Conn) }() }

// open begins the next stream with the headers of a call and more fields. The caller ends the
// header block with more frames where whole is false.
func (p *peer) open(whole bool, more ...hpack.HeaderField) error {
	p.stream = max(p.stream+2, 1)
	if p.stream%2 == 0 {
		p.stream-- // the first stream is 1
	}
	p.block.Reset()
	fields := append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: p.path},
		{Name: ":authority", Value: "weir"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, more...)
	for _, f := range fields {
		if err := p.fields.WriteField(f); err != nil {
			return err
		}
	}
	return p.WriteHeaders(http2.HeadersFrameParam{StreamID: p.stream, BlockFragment: p.block.Bytes(), EndHeaders: whole})
}

// reset resets the streams from first to the last one.
func (p *peer) reset(first uint32) error {
	for id := first; id <= p.stream; id += 2 {
		if err := p.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			return err
		}
	}
	return p.out.Flush()
}

// send makes a whole call on the next stream. The frames wait in the buffer.
func (p *peer) send(body []byte) error {
	if err := p.open(true); err != nil {
		return err
	}
	for len(body) > 0 {
		n := min(len(body), 16<<10) // the largest frame that a peer accepts without more settings
		if err := p.WriteData(p.stream, n == len(body), body[:n]); err != nil {
			return err
		}
		body = body[n:]
	}
	return nil
}
