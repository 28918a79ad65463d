package lane

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// conversation writes the bytes of a client on one connection: requests of all kinds, with frames
// of their streams mixed.
type conversation struct {
	*client
	r       *rand.Rand
	ids     []uint32
	pending [][]func() // frames that are still to come, of each open request
	pings   int
	strict  bool // only requests that grpc-go answers in one way
}

func newConversation(tb testing.TB, seed uint64, strict bool) *conversation {
	tb.Helper()
	return &conversation{client: newClient(tb), r: rand.New(rand.NewPCG(seed, 2)), strict: strict}
}

// message returns a message of any kind for the handler of tests.
func (c *conversation) message() string {
	words := []string{"", "hello", "fail", strings.Repeat("x", c.r.IntN(900)), "hello", "hello", "later"}
	if c.strict {
		words = words[:6]
	}
	return words[c.r.IntN(len(words))]
}

// fields returns the header fields of a request, with a mistake in some.
func (c *conversation) fields() []string {
	mistakes := [][]string{
		{"content-type", "application/grpc+proto"},
		{"content-type", "application/grpc;x"},
		{"content-type", "text/plain"},
		{"content-type", ""},
		{":method", "GET"},
		{"grpc-timeout", "1"},
		{"grpc-timeout", "0m"},
		{"grpc-timeout", "12x"},
		{"grpc-timeout", "123456789S"},
		{"grpc-timeout", "-1S"},
		{"grpc-timeout", "99999999H"},
		{":authority", ""},
		{":authority", "", "host", "limits"},
		{"host", "limits"},
		{"host", "a", "+host", "b"},
		{":authority", "", "host", "a", "+host", "b"},
		{"x-bin", "AAE="},
		{"x-bin", "AAA"},
		{"x-bin", "A*A"},
		{"grpc-encoding", "gzip"},
		{"grpc-encoding", "identity"},
		{"connection", "close"},
		{"X-Upper", "no"},
		{"x-value", "a\x00b"},
		{"x-large", strings.Repeat("y", 9000), "x-larger", strings.Repeat("z", 9000)},
		{":late", "pseudo"},
		{"grpc-accept-encoding", "identity,gzip"},
		{"user-agent", "a test"},
		{"x-trace", fmt.Sprint(c.r.Uint64())},
	}
	if c.r.IntN(3) > 0 {
		return usual("grpc-timeout", fmt.Sprint(1+c.r.IntN(3), "M"))
	}
	return usual(append([]string{"grpc-timeout", "1H"}, mistakes[c.r.IntN(len(mistakes))]...)...)
}

// payload returns the DATA of a request, with a mistake in some.
func (c *conversation) payload() []byte {
	whole := prefixed(c.message())
	switch c.r.IntN(12) {
	case 0:
		whole[0] = byte(c.r.IntN(3))
	case 1:
		return append(whole, prefixed(c.message())...)
	case 2:
		return whole[:c.r.IntN(len(whole))]
	case 3:
		return prefixed(strings.Repeat("z", 1001+c.r.IntN(3000)))
	case 4:
		if !c.strict {
			return prefixed(strings.Repeat("later", 100))
		}
	}
	return whole
}

// request plans the frames of one request.
func (c *conversation) request(id uint32) []func() {
	fields, payload := c.fields(), c.payload()
	frames := []func(){func() { c.cutHeaders(id, fields) }}
	for len(payload) > 0 && c.r.IntN(3) == 0 {
		n := 1 + c.r.IntN(len(payload))
		piece, padding := payload[:n], make([]byte, c.r.IntN(2)*c.r.IntN(20))
		payload = payload[n:]
		frames = append(frames, func() { c.must(c.framer.WriteDataPadded(id, false, piece, padding)) })
	}
	frames = append(frames, func() { c.must(c.framer.WriteData(id, true, payload)) })
	if !c.strict && c.r.IntN(6) == 0 {
		frames = slices.Insert(frames, 1+c.r.IntN(len(frames)), func() { c.must(c.framer.WriteRSTStream(id, http2.ErrCodeCancel)) })
	}
	return frames
}

// cutHeaders writes HEADERS, and CONTINUATION in some cases. A block that is larger than a frame
// needs it.
func (c *conversation) cutHeaders(id uint32, fields []string) {
	block := c.block(fields...)
	n := min(len(block), maxFrame)
	if c.r.IntN(4) == 0 {
		n = c.r.IntN(n)
	}
	p := http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndHeaders: n == len(block)}
	if c.r.IntN(4) == 0 {
		p.Priority = http2.PriorityParam{StreamDep: 0, Weight: 15}
		p.PadLength = uint8(c.r.IntN(30))
	}
	if len(p.BlockFragment)+40 > maxFrame {
		p.Priority, p.PadLength = http2.PriorityParam{}, 0
	}
	c.must(c.framer.WriteHeaders(p))
	if n < len(block) {
		c.must(c.framer.WriteContinuation(id, true, block[n:]))
	}
}

// other writes a frame that belongs to no request.
func (c *conversation) other() {
	switch c.r.IntN(7) {
	case 0:
		if c.pings++; c.pings < 3 { // more are a flood
			c.must(c.framer.WritePing(false, [8]byte{1, 2, 3}))
		}
	case 1:
		c.must(c.framer.WriteWindowUpdate(0, uint32(1+c.r.IntN(100))))
	case 2:
		c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(60000 + c.r.IntN(10000))}))
	case 3:
		c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(c.r.IntN(5000))}))
	case 4:
		c.must(c.framer.WriteRawFrame(0xfa, 0, c.r.Uint32N(9), []byte("unknown")))
	case 5:
		c.must(c.framer.WritePriority(c.r.Uint32N(9)*2+1, http2.PriorityParam{Weight: 3}))
	case 6:
		c.must(c.framer.WriteSettingsAck())
	}
}

// write writes a whole conversation and returns its bytes.
func (c *conversation) write(requests int) []byte {
	c.greet(http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	next := uint32(1)
	for len(c.pending) > 0 || requests > 0 {
		switch {
		case c.r.IntN(6) == 0:
			c.other()
		case requests > 0 && (len(c.pending) == 0 || c.r.IntN(3) == 0):
			c.ids = append(c.ids, next)
			frames := c.request(next)
			if c.r.IntN(2) == 0 { // all at once
				for _, f := range frames {
					f()
				}
			} else {
				frames[0]() // streams begin in their order
				c.pending = append(c.pending, frames[1:])
			}
			requests--
			next += 2 * (1 + c.r.Uint32N(2))
		default:
			i := c.r.IntN(len(c.pending))
			c.pending[i][0]()
			if c.pending[i] = c.pending[i][1:]; len(c.pending[i]) == 0 {
				c.pending = slices.Delete(c.pending, i, i+1)
			}
		}
	}
	return c.take()
}
