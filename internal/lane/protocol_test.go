package lane

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
)

// The demands of RFC 9113 on a server, most of them as h2spec asks. A connection that goes on
// answers the call on stream 99.
func TestFramesOfAllKinds(t *testing.T) {
	const stay = `99 DATA "\x00\x00\x00\x00\x04stay"`
	ended := func(last int, code, text string) []string {
		return []string{fmt.Sprintf("GOAWAY %d %s %s", last, code, text)}
	}
	raw := func(kind http2.FrameType, flags http2.Flags, id uint32, payload string) func(c *talk) {
		return func(c *talk) { c.must(c.framer.WriteRawFrame(kind, flags, id, []byte(payload))) }
	}
	open := func(c *talk) { c.headers(1, false, usual()...) }
	both := func(f ...func(*talk)) func(*talk) {
		return func(c *talk) {
			for _, f := range f {
				f(c)
			}
		}
	}
	hello := func(c *talk) { c.ask(1, "hello") }
	const answer1, answer2, answer3 = "1 HEADERS :status=200 content-type=application/grpc", `1 DATA "\x00\x00\x00\x00\x05hello"`, "1 HEADERS grpc-status=0 END"
	for _, row := range []struct {
		name string
		does func(c *talk)
		want []string // the last one stay: the connection goes on
	}{
		{"unknown type", raw(0xee, 0xff, 9, "any"), []string{stay}},
		{"PING", raw(http2.FramePing, 0, 0, "12345678"), []string{"PING ack 3132333435363738", stay}},
		{"PING ack", raw(http2.FramePing, 1, 0, "12345678"), []string{stay}},
		{"PING with unknown flags", raw(http2.FramePing, 0xf6, 0, "12345678"), []string{"PING ack 3132333435363738", stay}},
		{"PING on a stream", raw(http2.FramePing, 0, 1, "12345678"), ended(0, "PROTOCOL_ERROR", "PING on stream 1")},
		{"PING of 7 bytes", raw(http2.FramePing, 0, 0, "1234567"), ended(0, "FRAME_SIZE_ERROR", "PING must have 8 bytes")},
		{"PUSH_PROMISE", raw(http2.FramePushPromise, 4, 1, "1234"), ended(0, "PROTOCOL_ERROR", "PUSH_PROMISE from a client")},
		{"GOAWAY", raw(http2.FrameGoAway, 0, 0, "12345678"), []string{stay}},
		{"GOAWAY on a stream", raw(http2.FrameGoAway, 0, 1, "12345678"), ended(0, "PROTOCOL_ERROR", "GOAWAY on a stream")},
		{"GOAWAY of 7 bytes", raw(http2.FrameGoAway, 0, 0, "1234567"), ended(0, "FRAME_SIZE_ERROR", "GOAWAY is too short")},
		{"SETTINGS", raw(http2.FrameSettings, 0, 0, "\x00\x03\x00\x00\x00\x01\xff\xff\x00\x00\x00\x01"), []string{"SETTINGS ack", stay}},
		{"SETTINGS on a stream", raw(http2.FrameSettings, 0, 1, ""), ended(0, "PROTOCOL_ERROR", "SETTINGS on stream 1")},
		{"SETTINGS of 5 bytes", raw(http2.FrameSettings, 0, 0, "12345"), ended(0, "FRAME_SIZE_ERROR", "SETTINGS of 5 bytes")},
		{"SETTINGS ack with payload", raw(http2.FrameSettings, 1, 0, "123456"), ended(0, "FRAME_SIZE_ERROR", "SETTINGS of 6 bytes")},
		{"SETTINGS above 1 KiB", raw(http2.FrameSettings, 0, 0, strings.Repeat("123456", 171)), ended(0, "ENHANCE_YOUR_CALM", "SETTINGS is too large")},
		{"ENABLE_PUSH 2", raw(http2.FrameSettings, 0, 0, "\x00\x02\x00\x00\x00\x02"), ended(0, "PROTOCOL_ERROR", "SETTINGS_ENABLE_PUSH 2")},
		{
			"INITIAL_WINDOW_SIZE 2^31", raw(http2.FrameSettings, 0, 0, "\x00\x04\x80\x00\x00\x00"),
			ended(0, "FLOW_CONTROL_ERROR", "SETTINGS_INITIAL_WINDOW_SIZE is above 2^31-1"),
		},
		{"MAX_FRAME_SIZE 16383", raw(http2.FrameSettings, 0, 0, "\x00\x05\x00\x00\x3f\xff"), ended(0, "PROTOCOL_ERROR", "SETTINGS_MAX_FRAME_SIZE 16383")},
		{"MAX_FRAME_SIZE 2^24", raw(http2.FrameSettings, 0, 0, "\x00\x05\x01\x00\x00\x00"), ended(0, "PROTOCOL_ERROR", "SETTINGS_MAX_FRAME_SIZE 16777216")},
		{"PRIORITY", raw(http2.FramePriority, 0, 5, "\x00\x00\x00\x01\x10"), []string{stay}},
		{"PRIORITY on stream 0", raw(http2.FramePriority, 0, 0, "12345"), ended(0, "PROTOCOL_ERROR", "PRIORITY on stream 0")},
		{"PRIORITY of 4 bytes", raw(http2.FramePriority, 0, 5, "1234"), []string{"5 RST_STREAM FRAME_SIZE_ERROR", stay}},
		{"PRIORITY on itself", raw(http2.FramePriority, 0, 5, "\x00\x00\x00\x05\x10"), []string{"5 RST_STREAM PROTOCOL_ERROR", stay}},
		{"RST_STREAM", both(open, raw(http2.FrameRSTStream, 0, 1, "1234")), []string{stay}},
		{"RST_STREAM on stream 0", raw(http2.FrameRSTStream, 0, 0, "1234"), ended(0, "PROTOCOL_ERROR", "RST_STREAM on stream 0, which is idle")},
		{"RST_STREAM on an idle stream", raw(http2.FrameRSTStream, 0, 3, "1234"), ended(0, "PROTOCOL_ERROR", "RST_STREAM on stream 3, which is idle")},
		{"RST_STREAM of 3 bytes", both(open, raw(http2.FrameRSTStream, 0, 1, "123")), ended(1, "FRAME_SIZE_ERROR", "RST_STREAM of 3 bytes")},
		{"WINDOW_UPDATE of 0", raw(http2.FrameWindowUpdate, 0, 0, "\x00\x00\x00\x00"), ended(0, "PROTOCOL_ERROR", "WINDOW_UPDATE of 0")},
		{
			"WINDOW_UPDATE of 0 on a stream", both(open, raw(http2.FrameWindowUpdate, 0, 1, "\x00\x00\x00\x00")),
			[]string{"1 RST_STREAM PROTOCOL_ERROR", stay},
		},
		{"WINDOW_UPDATE of 3 bytes", raw(http2.FrameWindowUpdate, 0, 0, "123"), ended(0, "FRAME_SIZE_ERROR", "WINDOW_UPDATE of 3 bytes")},
		{
			"WINDOW_UPDATE on an idle stream", raw(http2.FrameWindowUpdate, 0, 1, "\x00\x00\x00\x01"),
			ended(0, "PROTOCOL_ERROR", "WINDOW_UPDATE on stream 1, which is idle"),
		},
		{
			"window above 2^31-1", raw(http2.FrameWindowUpdate, 0, 0, "\x7f\xff\xff\xff"),
			ended(0, "FLOW_CONTROL_ERROR", "the window of the connection is above 2^31-1"),
		},
		{
			"window of a stream above 2^31-1", both(open, raw(http2.FrameWindowUpdate, 0, 1, "\x7f\xff\xff\xff")),
			[]string{"1 RST_STREAM FLOW_CONTROL_ERROR", stay},
		},
		{
			"window of a stream above 2^31-1 by SETTINGS",
			both(open, raw(http2.FrameWindowUpdate, 0, 1, "\x7f\xff\x00\x00"), raw(http2.FrameSettings, 0, 0, "\x00\x04\x00\x01\xff\xff")),
			ended(1, "FLOW_CONTROL_ERROR", "SETTINGS_INITIAL_WINDOW_SIZE makes a window larger than 2^31-1"),
		},
		{"DATA on stream 0", raw(http2.FrameData, 0, 0, "data"), ended(0, "PROTOCOL_ERROR", "DATA on stream 0")},
		{"DATA on an idle stream", raw(http2.FrameData, 0, 1, "data"), ended(0, "PROTOCOL_ERROR", "DATA on stream 1, which is idle")},
		{"DATA with too much padding", both(open, raw(http2.FrameData, 8, 1, "\x04abc")), ended(1, "PROTOCOL_ERROR", "DATA with more padding than payload")},
		{"DATA behind the end", both(hello, raw(http2.FrameData, 0, 1, "data")), []string{answer1, answer2, answer3, "1 RST_STREAM STREAM_CLOSED", stay}},
		{
			"DATA behind the client's RST_STREAM", both(open, raw(http2.FrameRSTStream, 0, 1, "1234"), raw(http2.FrameData, 1, 1, "data")),
			[]string{"1 RST_STREAM STREAM_CLOSED", stay},
		},
		{
			"DATA of a stream that the server has reset", both(open, raw(http2.FramePriority, 0, 1, "1234"), raw(http2.FrameData, 1, 1, "data")),
			[]string{"1 RST_STREAM FRAME_SIZE_ERROR", stay},
		},
		{"DATA above the frame size", raw(http2.FrameData, 0, 1, strings.Repeat("x", 16385)), ended(0, "FRAME_SIZE_ERROR", "a frame of 16385 bytes: the bound is 16384")},
		{"HEADERS on stream 2", raw(http2.FrameHeaders, 4, 2, "\x82"), ended(0, "PROTOCOL_ERROR", "HEADERS on stream 2")},
		{"HEADERS on stream 0", raw(http2.FrameHeaders, 4, 0, "\x82"), ended(0, "PROTOCOL_ERROR", "HEADERS on stream 0")},
		{"HEADERS with too much padding", raw(http2.FrameHeaders, 12, 1, "\x02\x82"), ended(0, "PROTOCOL_ERROR", "HEADERS with more padding than payload")},
		{"HEADERS on itself", func(c *talk) {
			c.must(c.framer.WriteHeaders(http2.HeadersFrameParam{
				StreamID: 1, BlockFragment: c.block(usual()...), EndHeaders: true, Priority: http2.PriorityParam{StreamDep: 1},
			}))
		}, []string{"1 RST_STREAM PROTOCOL_ERROR", stay}},
		{"HEADERS behind the end", both(hello, hello), append([]string{answer1, answer2, answer3}, ended(1, "STREAM_CLOSED", "HEADERS on a closed stream")...)},
		{"HEADERS of a smaller stream", func(c *talk) {
			c.headers(5, false, usual()...)
			c.headers(3, false, usual()...)
		}, ended(5, "PROTOCOL_ERROR", "HEADERS on stream 3 after stream 5")},
		{"HPACK error", raw(http2.FrameHeaders, 4, 1, "\xbe"), ended(0, "COMPRESSION_ERROR", "HPACK: an index is not in the tables")},
		{"trailers", func(c *talk) {
			open(c)
			c.must(c.framer.WriteData(1, false, prefixed("hello")))
			c.headers(1, true, "x-trailer", "yes")
		}, []string{answer1, answer2, answer3, stay}},
		{"trailers without END_STREAM", both(open, func(c *talk) { c.headers(1, false, "x-trailer", "yes") }), []string{"1 RST_STREAM PROTOCOL_ERROR", stay}},
		{"trailers with a pseudo-header", both(open, func(c *talk) { c.headers(1, true, ":method", "POST") }), []string{"1 RST_STREAM PROTOCOL_ERROR", stay}},
		{"CONTINUATION without HEADERS", raw(http2.FrameContinuation, 4, 1, "\x82"), ended(0, "PROTOCOL_ERROR", "CONTINUATION without HEADERS")},
		{
			"CONTINUATION on another stream", both(raw(http2.FrameHeaders, 0, 1, "\x82"), raw(http2.FrameContinuation, 4, 3, "\x82")),
			ended(0, "PROTOCOL_ERROR", "a header block is not continued"),
		},
		{
			"PRIORITY in a header block", both(raw(http2.FrameHeaders, 0, 1, "\x82"), raw(http2.FramePriority, 0, 1, "12345")),
			ended(0, "PROTOCOL_ERROR", "a header block is not continued"),
		},
		{"content-length that is too small", func(c *talk) { c.ask(1, "hello", "content-length", "9") }, []string{"1 RST_STREAM PROTOCOL_ERROR", stay}},
		{"content-length that is too large", func(c *talk) { c.ask(1, "hello", "content-length", "11") }, []string{"1 RST_STREAM PROTOCOL_ERROR", stay}},
		{"content-length that is right", func(c *talk) { c.ask(1, "hello", "content-length", "10") }, []string{answer1, answer2, answer3, stay}},
		{"te: gzip", func(c *talk) { c.ask(1, "hello", "te", "gzip") }, []string{"1 RST_STREAM PROTOCOL_ERROR", stay}},
		{"no :scheme", func(c *talk) { c.ask(1, "hello", ":scheme", "") }, []string{"1 RST_STREAM PROTOCOL_ERROR", stay}},
		{"no :path", func(c *talk) { c.ask(1, "hello", ":path", "") }, []string{"1 RST_STREAM PROTOCOL_ERROR", stay}},
		{":path twice", func(c *talk) { c.headers(1, true, append([]string{":path", "/"}, usual()...)...) }, []string{"1 RST_STREAM PROTOCOL_ERROR", stay}},
		{"reserved bit", both(open, func(c *talk) {
			c.must(c.framer.WriteRawFrame(http2.FrameData, 1, 1<<31|1, prefixed("hello")))
		}), []string{answer1, answer2, answer3, stay}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newTalk(t)
			row.does(c)
			_ = c.framer.WriteRawFrame(0xee, 0, 0, nil) // all frames before are complete
			c.ask(99, "stay")
			got, err := c.send()
			if err == nil {
				got = append(got[:len(got)-3], got[len(got)-2])
			}
			if d := cmp.Diff(row.want, got); d != "" {
				t.Error(d)
			}
			if on := row.want[len(row.want)-1] == stay; on != (err == nil) {
				t.Errorf("got error %v", err)
			}
			checkCounts(t, c.conn)
		})
	}
}

func TestAnotherProtocolIsRefusedAtItsFirstBytes(t *testing.T) {
	for _, text := range []string{"GET / HTTP/1.1\r\n", "\x16\x03\x01", "PRI * HTTP/2.0\r\n\r\nXX"} {
		conn := newLane(t).Open(start, echo{}, nil, 0)
		conn.Output()
		if err := conn.receiveAll([]byte(text), start); !errors.Is(err, ErrNotHTTP2) {
			t.Errorf("%q: got %v, want ErrNotHTTP2", text, err)
		}
		if out := conn.Output(); out != nil {
			t.Errorf("%q: got %q, want no answer", text, out)
		}
	}
}

func TestTheFirstFrameMustBeSettings(t *testing.T) {
	c := newClient(t)
	conn := newLane(t).Open(start, echo{}, nil, 0)
	conn.Output()
	c.sent.WriteString(http2.ClientPreface)
	c.ask(1, "hello")
	if err := conn.receiveAll(c.take(), start); err == nil {
		t.Error("got no error")
	}
	if d := cmp.Diff([]string{"GOAWAY 0 PROTOCOL_ERROR the first frame is not SETTINGS"}, c.read(conn.Output())); d != "" {
		t.Error(d)
	}
}
