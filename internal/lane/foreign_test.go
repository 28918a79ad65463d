package lane

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/internal/testing/must"
)

// recorder is a Foreign that writes down its calls.
type recorder struct {
	calls []string
	begin func(id uint32) // called by Begin, if set
}

func (r *recorder) note(format string, args ...any) {
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
}

func (r *recorder) Begin(id uint32, fields []hpack.HeaderField, end bool) {
	r.note("begin %d %s%s", id, fields[2].Value, ended(end))
	if r.begin != nil {
		r.begin(id)
	}
}

func (r *recorder) Data(id uint32, data []byte, end bool) {
	r.note("data %d %q%s", id, data, ended(end))
}
func (r *recorder) Reset(id uint32, code Code) { r.note("reset %d %x", id, uint32(code)) }
func (r *recorder) Credit(id uint32, n int)    { r.note("credit %d %d", id, n) }
func (r *recorder) Arrived(mark uint64, bytes int64) {
	r.note("arrived %d %d", mark, bytes)
}

// newForeign returns a connection with a recorder, and with stream 1 open for another method.
func newForeign(t *testing.T, change ...func(*Options)) (*talk, *recorder) {
	t.Helper()
	c, r := newTalk(t, change...), new(recorder)
	c.conn = newLane(t, change...).Open(start, c.handler, r, 0)
	c.greet()
	c.other(1, false)
	must.Get(c.send())(t)
	r.expect(t, "begin 1 /other/Method")
	return c, r
}

// other begins a stream of another method.
func (c *talk) other(id uint32, end bool) { c.headers(id, end, usual(":path", "/other/Method")...) }

// expect compares the calls since the last time.
func (r *recorder) expect(t *testing.T, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, r.calls); d != "" {
		t.Error(d)
	}
	r.calls = nil
}

func pairs(all ...string) []hpack.HeaderField {
	var fields []hpack.HeaderField
	for i := 0; i < len(all); i += 2 {
		fields = append(fields, hpack.HeaderField{Name: all[i], Value: all[i+1]})
	}
	return fields
}

func TestAForeignStreamPassesThrough(t *testing.T) {
	c, r := newForeign(t)
	c.must(c.framer.WriteDataPadded(1, false, []byte("one"), make([]byte, 4)))
	c.must(c.framer.WriteData(1, true, nil))
	c.expect()
	r.expect(t, `data 1 "one"`, `data 1 "" END`)
	c.conn.ForeignHeaders(1, pairs(":status", "200", "x-a", "b"), false)
	c.conn.ForeignData(1, []byte("answer"), false)
	c.conn.ForeignHeaders(1, pairs("grpc-status", "0"), true)
	c.expect("1 HEADERS :status=200 x-a=b", `1 DATA "answer"`, "1 HEADERS grpc-status=0 END")
	r.expect(t, "credit 1 6")
	c.conn.ForeignData(1, []byte("behind the end"), false)
	c.conn.ForeignHeaders(1, pairs("behind", "the end"), true)
	c.conn.ForeignReset(1, Cancel)
	c.expect()
	r.expect(t, "credit 1 14")
	if c.conn.Streams() != 0 {
		t.Errorf("%d streams are open", c.conn.Streams())
	}
}

// Trailers of the client become the end of DATA: grpc-go's server knows no trailers of clients.
func TestTrailersOfTheClientEndAForeignStream(t *testing.T) {
	c, r := newForeign(t)
	c.headers(1, true, "x-trailer", "yes")
	c.expect()
	r.expect(t, `data 1 "" END`)
}

func TestAForeignResponseMayEndWithData(t *testing.T) {
	for _, row := range []struct{ data, want string }{{"last", `1 DATA "last" END`}, {"", `1 DATA "" END`}} {
		c, _ := newForeign(t)
		c.must(c.framer.WriteData(1, true, nil))
		c.expect()
		c.conn.ForeignHeaders(1, pairs(":status", "200"), false)
		c.conn.ForeignData(1, []byte(row.data), true)
		c.expect("1 HEADERS :status=200", row.want)
		if c.conn.Streams() != 0 {
			t.Errorf("%q: the stream is open", row.data)
		}
	}
}

func TestAForeignResponseWaitsForTheWindow(t *testing.T) {
	c, r := newForeign(t)
	c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3}))
	c.expect("SETTINGS ack")
	c.conn.ForeignHeaders(1, pairs(":status", "200"), false)
	c.conn.ForeignData(1, []byte("answer"), false)
	c.conn.ForeignHeaders(1, pairs("grpc-status", "0"), true)
	c.conn.ForeignReset(1, NoError) // as grpc-go, when the client has more to send
	c.expect("1 HEADERS :status=200", `1 DATA "ans"`)
	r.expect(t, "credit 1 3")
	c.window(1, 9)
	c.expect(`1 DATA "wer"`, "1 HEADERS grpc-status=0 END", "1 RST_STREAM NO_ERROR")
	r.expect(t, "credit 1 3")
	c.must(c.framer.WriteData(1, true, []byte("on the way")))
	c.expect()
	if c.conn.Streams() != 0 || c.conn.Held() != 0 {
		t.Errorf("%d streams are open, %d bytes held", c.conn.Streams(), c.conn.Held())
	}
}

func TestAForeignStreamThatWaitsTooLongIsReset(t *testing.T) {
	c, r := newForeign(t)
	c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	c.must(c.framer.WriteData(1, false, make([]byte, messageHead))) // a message
	c.expect("SETTINGS ack")
	c.conn.ForeignData(1, []byte("answer"), false)
	c.tick(10*time.Second, "", "1 RST_STREAM CANCEL")
	r.expect(t, `data 1 "\x00\x00\x00\x00\x00"`, "reset 1 8", "credit 1 6")
}

func TestAForeignStreamThatGoesOnIsNotReset(t *testing.T) {
	c, _ := newForeign(t)
	c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	c.must(c.framer.WriteData(1, false, make([]byte, messageHead))) // a message
	c.expect("SETTINGS ack")
	c.conn.ForeignData(1, []byte("answer"), false)
	for _, letter := range "answe" {
		c.tick(9*time.Second, "")
		c.window(1, 1)
		c.expect(fmt.Sprintf(`1 DATA %q`, string(letter)))
	}
}

func TestAForeignStreamWithoutItsFirstMessageEndsTheConnection(t *testing.T) {
	for name, row := range map[string]struct {
		parts []string
		end   bool
		want  string
	}{
		"nothing":             {nil, false, "a request is not complete in time"},
		"half a head":         {[]string{"\x00\x00"}, false, "a request is not complete in time"},
		"half a message":      {[]string{"\x00\x00\x00\x00", "\x02a"}, false, "a request is not complete in time"},
		"a message":           {[]string{"\x00\x00\x00\x00", "\x02a", "b"}, false, ""},
		"a message and a bit": {[]string{"\x00\x00\x00\x00\x01a\x00"}, false, ""},
		"an end":              {[]string{"\x00"}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := newForeign(t)
			for i, part := range row.parts {
				c.must(c.framer.WriteData(1, row.end && i == len(row.parts)-1, []byte(part)))
			}
			c.expect()
			c.tick(9*time.Second, "")
			if row.want == "" {
				c.tick(time.Second, "")
			} else {
				c.tick(time.Second, row.want, "GOAWAY 1 ENHANCE_YOUR_CALM "+row.want)
			}
		})
	}
}

func TestTheForeignGetsTheEndOfAStream(t *testing.T) {
	c, r := newForeign(t)
	c.must(c.framer.WriteRSTStream(1, http2.ErrCodeRefusedStream))
	c.other(3, false)
	c.other(5, false)
	c.must(c.framer.WriteData(5, false, nil))
	c.headers(5, false, "no", "end")
	c.expect("5 RST_STREAM PROTOCOL_ERROR")
	r.expect(t, "reset 1 7", "begin 3 /other/Method", "begin 5 /other/Method", "reset 5 1")
	c.conn.Close()
	r.expect(t, "reset 3 8")
	c.conn.ForeignHeaders(3, pairs(":status", "200"), true)
	c.conn.ForeignData(3, []byte("late"), true)
	c.conn.ForeignCredit(3, 9)
	if out := c.conn.Output(); out != nil {
		t.Errorf("a closed connection sends %x", out)
	}
}

func TestAForeignMayRefuseAStreamAtOnce(t *testing.T) {
	c, r := newForeign(t)
	r.begin = func(id uint32) { c.conn.ForeignReset(id, RefusedStream) }
	c.other(3, false)
	c.expect("3 RST_STREAM REFUSED_STREAM")
	if c.conn.Streams() != 1 {
		t.Errorf("%d streams are open, want 1", c.conn.Streams())
	}
}

func TestForeignHeadersKeepToTheBoundOfTheClient(t *testing.T) {
	c, r := newForeign(t)
	c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 200}))
	c.ask(3, "fail")
	c.expect("SETTINGS ack", "3 RST_STREAM INTERNAL_ERROR")
	c.conn.ForeignHeaders(1, pairs(":status", "200", "x-large", strings.Repeat("x", 200)), false)
	c.expect("1 RST_STREAM INTERNAL_ERROR")
	r.expect(t, "reset 1 2")
}

// A header block above the frame size of a client needs CONTINUATION.
func TestALargeHeaderBlockIsContinued(t *testing.T) {
	c, _ := newForeign(t)
	large := strings.Repeat("l", 40000)
	c.conn.ForeignHeaders(1, pairs(":status", "200", "x-large", large), true)
	out := c.conn.Output()
	for _, want := range []struct {
		kind, flags byte
		length      int
	}{{frameHeaders, flagEndStream, 16384}, {frameContinuation, 0, 16384}, {frameContinuation, flagEndHeaders, 7246}} {
		f := parseFrame(out)
		if f.kind != want.kind || f.flags != want.flags || f.length != want.length {
			t.Errorf("got %+v, want %+v", f, want)
		}
		out = out[frameHead+f.length:]
	}
}

func TestWithoutAForeignOtherMethodsAreUnknown(t *testing.T) {
	c := newTalk(t)
	for i, path := range []string{"/other.Service/Method", "nothing", "/nothing"} {
		c.headers(uint32(2*i+1), true, usual(":path", path)...)
	}
	const head = " HEADERS :status=200 content-type=application/grpc grpc-status=12 grpc-message="
	c.expect("1"+head+"unknown service other.Service END", "3"+head+`malformed method name: "nothing" END`,
		"5"+head+`malformed method name: "/nothing" END`)
}

func TestAPingSaysThatMarkedDataHasArrived(t *testing.T) {
	c, r := newForeign(t)
	ping := fmt.Sprintf("PING %x", markPing)
	ack := func(want ...string) {
		c.must(c.framer.WritePing(true, [8]byte([]byte(markPing))))
		c.expect(want...)
	}
	c.conn.ForeignMark(1, 7)
	c.conn.ForeignData(1, []byte("first"), false)
	c.conn.ForeignData(1, []byte("second"), false) // while the first PING is on its way
	c.expect(`1 DATA "first"`, ping, `1 DATA "second"`)
	r.expect(t, "credit 1 5", "credit 1 6")
	ack(ping)
	r.expect(t, "arrived 7 5")
	ack()
	r.expect(t, "arrived 7 11")
	ack() // nobody has asked
	r.expect(t)
}

func TestMarkedDataThatDoesNotGoOutInTimeIsDropped(t *testing.T) {
	c, r := newForeign(t)
	c.conn.ForeignMark(1, 7)
	c.conn.ForeignData(1, make([]byte, defaultWindow), false)
	c.conn.ForeignData(1, []byte("late"), false)
	must.Get(c.send())(t)
	r.calls = nil
	c.window(0, 1)
	c.window(1, 1) // one byte more is no progress that counts
	must.Get(c.send())(t)
	c.tick(MarkTimeout, "", "1 RST_STREAM CANCEL")
	r.expect(t, "credit 1 1", "reset 1 8", "credit 1 3")
}
