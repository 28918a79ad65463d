package server

import (
	"bytes"
	"io"
	"net"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/internal/testing/must"
)

// frames is a client that sends single frames.
type frames struct {
	net.Conn
	*http2.Framer
	text bytes.Buffer
	code *hpack.Encoder
}

// dialFrames serves and connects to the server through memory that holds so many bytes in each
// direction.
func dialFrames(t *testing.T, serve func(net.Listener) error, buffer int, settings ...http2.Setting) *frames {
	t.Helper()
	l := bufconn.Listen(buffer)
	go func() { _ = serve(l) }()
	conn := must.Get(l.DialContext(t.Context()))(t)
	t.Cleanup(func() { _ = conn.Close() })
	c := &frames{Conn: conn, Framer: http2.NewFramer(conn, conn)}
	c.code = hpack.NewEncoder(&c.text)
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	must.Get(io.WriteString(conn, http2.ClientPreface))(t)
	must.Do(t, c.WriteSettings(settings...))
	return c
}

// call sends the headers of a ShouldRateLimit, with more fields.
func (c *frames) call(id uint32, end bool, more ...hpack.HeaderField) error {
	c.text.Reset()
	for _, field := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":authority", Value: "weir"},
		{Name: ":path", Value: ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName},
		{Name: "content-type", Value: "application/grpc"},
	}, more...) {
		if err := c.code.WriteField(field); err != nil {
			return err
		}
	}
	const most = 16 << 10
	block, rest := c.text.Bytes(), []byte(nil)
	if len(block) > most {
		block, rest = block[:most], block[most:]
	}
	err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndStream: end, EndHeaders: len(rest) == 0})
	for len(rest) > 0 && err == nil {
		n := min(len(rest), most)
		err = c.WriteContinuation(id, n == len(rest), rest[:n])
		rest = rest[n:]
	}
	return err
}

// drain reads until the connection ends.
func (c *frames) drain() { _, _ = io.Copy(io.Discard, c.Conn) }

// reset waits for a RST_STREAM and returns its stream and code.
func (c *frames) reset(t *testing.T) (id uint32, code http2.ErrCode) {
	t.Helper()
	for {
		frame := must.Get(c.ReadFrame())(t)
		if r, ok := frame.(*http2.RSTStreamFrame); ok {
			return r.StreamID, r.ErrCode
		}
	}
}

// message is a request with the head that gRPC gives it.
func message(request []byte) []byte {
	n := len(request)
	return append([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, request...)
}

// asking is an encoded request of n descriptors.
func asking(n int) []byte {
	d := bytesField(2, bytesField(1, bytesField(1, []byte("minute")), bytesField(2, []byte("a"))))
	return append(bytesField(1, []byte("edge")), bytes.Repeat(d, n)...)
}
