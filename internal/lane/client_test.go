package lane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/testing/must"
)

const (
	testPath = "/test.Limits/Check"
	start    = int64(1e9) // the first instant of a test
)

// handler is the handler of tests. A message is a word: "later" waits for finish, "fail" gets a
// status, "long" a long answer. Other messages come back.
type handler struct {
	calls    []uint32 // that wait
	canceled []uint32
	seen     []Call // metadata included
}

func (h *handler) Answer(call *Call, message, dst []byte) ([]byte, Reply) {
	seen, kept := *call, *call.head // the machine changes both
	seen.head = &kept
	h.seen = append(h.seen, seen)
	switch word := string(message); {
	case call.Large || strings.HasPrefix(word, "later"):
		h.calls = append(h.calls, call.Stream)
		return append(dst, "dropped"...), Reply{Later: true}
	case word == "fail":
		details, _ := proto.Marshal(failure().Proto())
		return append(dst, "dropped"...), Reply{Code: uint32(failure().Code()), Message: failure().Message(), Details: details}
	case word == "long":
		return append(dst, bytes.Repeat([]byte("long"), 20000)...), Reply{}
	}
	return append(dst, message...), Reply{}
}

// failure is the status of the word "fail".
func failure() *status.Status {
	s, _ := status.New(codes.FailedPrecondition, "100% wrong\n£ \x7f").WithDetails(&errdetails.ErrorInfo{Reason: "because"})
	return s
}

func (h *handler) Cancel(id uint32) { h.canceled = append(h.canceled, id) }

// echo answers with the message, without allocating.
type echo struct{}

func (echo) Answer(_ *Call, message, dst []byte) ([]byte, Reply) {
	return append(dst, message...), Reply{}
}
func (echo) Cancel(uint32) {}

// client makes the bytes of a client with another implementation, and reads the bytes of the
// server.
type client struct {
	t      testing.TB
	sent   bytes.Buffer
	framer *http2.Framer
	text   bytes.Buffer
	coder  *hpack.Encoder
	dec    *hpack.Decoder
}

func newClient(tb testing.TB) *client {
	tb.Helper()
	c := &client{t: tb, dec: hpack.NewDecoder(4096, nil)}
	c.framer = http2.NewFramer(&c.sent, nil)
	c.framer.AllowIllegalWrites = true
	c.coder = hpack.NewEncoder(&c.text)
	return c
}

// greet writes the preface with these settings.
func (c *client) greet(settings ...http2.Setting) {
	c.sent.WriteString(http2.ClientPreface)
	c.must(c.framer.WriteSettings(settings...))
}

func (c *client) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// take returns the bytes since the last take.
func (c *client) take() []byte {
	b := bytes.Clone(c.sent.Bytes())
	c.sent.Reset()
	return b
}

// block encodes header fields: pairs of name and value.
func (c *client) block(pairs ...string) []byte {
	c.text.Reset()
	for i := 0; i < len(pairs); i += 2 {
		c.must(c.coder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}))
	}
	return bytes.Clone(c.text.Bytes())
}

// usual returns the header fields of a call by Envoy. Fields in more replace, or follow; without a
// value they remove. A name that begins with a plus always follows.
func usual(more ...string) []string {
	fields := []string{
		":method", "POST", ":scheme", "http", ":path", testPath, ":authority", "limits", "te", "trailers",
		"grpc-timeout", "20m", "content-type", "application/grpc", "x-envoy-internal", "true",
	}
	for i := 0; i < len(more); i += 2 {
		at := slices.Index(fields, more[i])
		switch {
		case more[i][0] == '+': // once more
			fields = append(fields, more[i][1:], more[i+1])
		case at < 0 || at%2 == 1:
			fields = append(fields, more[i], more[i+1])
		case more[i+1] == "":
			fields = slices.Delete(fields, at, at+2)
		default:
			fields[at+1] = more[i+1]
		}
	}
	return fields
}

// prefixed returns a message with its head.
func prefixed(message string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// headers writes HEADERS.
func (c *client) headers(id uint32, end bool, pairs ...string) {
	c.must(c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.block(pairs...), EndStream: end, EndHeaders: true}))
}

// ask writes a whole request.
func (c *client) ask(id uint32, message string, more ...string) {
	c.headers(id, false, usual(more...)...)
	c.must(c.framer.WriteData(id, true, prefixed(message)))
}

// read returns the frames in the bytes of a server, one text each.
func (c *client) read(b []byte) []string {
	c.t.Helper()
	framer := http2.NewFramer(nil, bytes.NewReader(b))
	framer.ReadMetaHeaders = c.dec
	var all []string
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			if err.Error() != "EOF" {
				c.t.Fatalf("the server's bytes are no frames: %v", err)
			}
			return all
		}
		id := f.Header().StreamID
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			var fields []string
			for _, h := range f.Fields {
				fields = append(fields, h.Name+"="+h.Value)
			}
			all = append(all, fmt.Sprintf("%d HEADERS %s%s", id, strings.Join(fields, " "), ended(f.StreamEnded())))
		case *http2.DataFrame:
			data := fmt.Sprintf("%q", f.Data())
			if len(f.Data()) > 100 {
				data = fmt.Sprintf("%d bytes", len(f.Data()))
			}
			all = append(all, fmt.Sprintf("%d DATA %s%s", id, data, ended(f.StreamEnded())))
		case *http2.RSTStreamFrame:
			all = append(all, fmt.Sprintf("%d RST_STREAM %v", id, f.ErrCode))
		case *http2.SettingsFrame:
			if f.IsAck() {
				all = append(all, "SETTINGS ack")
				continue
			}
			text := "SETTINGS"
			_ = f.ForeachSetting(func(s http2.Setting) error { text += " " + s.String(); return nil })
			all = append(all, text)
		case *http2.PingFrame:
			text := "PING"
			if f.IsAck() {
				text += " ack"
			}
			all = append(all, fmt.Sprintf("%s %x", text, f.Data))
		case *http2.WindowUpdateFrame:
			all = append(all, fmt.Sprintf("%d WINDOW_UPDATE %d", id, f.Increment))
		case *http2.GoAwayFrame:
			all = append(all, fmt.Sprintf("GOAWAY %d %v %s", f.LastStreamID, f.ErrCode, f.DebugData()))
		default:
			all = append(all, fmt.Sprint(f.Header()))
		}
	}
}

func ended(end bool) string {
	if end {
		return " END"
	}
	return ""
}

// newLane returns a lane for tests.
func newLane(tb testing.TB, change ...func(*Options)) *Lane {
	tb.Helper()
	o := Options{Path: testPath, MaxMessage: 64 << 10}
	for _, f := range change {
		f(&o)
	}
	l := must.Get(New(o))(tb)
	return l
}

// talk is a connection after the greeting, with a client.
type talk struct {
	*client
	conn    *Conn
	handler *handler
	now     int64
}

func newTalk(tb testing.TB, change ...func(*Options)) *talk {
	tb.Helper()
	h := new(handler)
	c := &talk{client: newClient(tb), conn: newLane(tb, change...).Open(start, h, nil, 0), handler: h, now: start}
	c.greet()
	must.Do(tb, c.conn.receiveAll(c.take(), c.now))
	c.conn.Output()
	return c
}

// send gives the server the bytes of the client, and returns the server's frames and the end of the
// connection.
func (c *talk) send() ([]string, error) {
	c.t.Helper()
	err := c.conn.receiveAll(c.take(), c.now)
	return c.read(c.conn.Output()), err
}

// expect gives the server the bytes of the client, and compares the server's frames.
func (c *talk) expect(want ...string) {
	c.t.Helper()
	got := must.Get(c.send())(c.t)
	if d := cmp.Diff(want, got); d != "" {
		c.t.Error(d)
	}
}

func (c *talk) window(id, n uint32) { c.must(c.framer.WriteWindowUpdate(id, n)) }

const okHeaders = " HEADERS :status=200 content-type=application/grpc"

// tick moves the clock. failure is the end of the connection.
func (c *talk) tick(by time.Duration, failure string, want ...string) {
	c.t.Helper()
	c.now += int64(by)
	err := c.conn.Tick(c.now)
	if err == nil && failure != "" || err != nil && !strings.HasSuffix(err.Error(), ": "+failure) {
		c.t.Errorf("got error %v, want %q", err, failure)
	}
	if d := cmp.Diff(want, c.read(c.conn.Output())); d != "" {
		c.t.Error(d)
	}
	if err == nil && c.conn.alive.due <= c.now {
		c.t.Errorf("the next Tick is due now: %d at %d", c.conn.alive.due, c.now)
	}
}

// receiveAll is Receive of all bytes. The output is in the machine.
func (c *Conn) receiveAll(chunk []byte, now int64) error {
	rest, err := c.Receive(chunk, now)
	for err == nil && len(rest) > 0 {
		sent := c.out
		c.out = nil
		rest, err = c.Receive(rest, now)
		c.out = append(sent, c.out...)
	}
	return err
}

// seeds returns the number of random conversations of a test: so many, or WEIR_LANE_SEEDS for a
// long run.
func seeds(tb testing.TB, usual uint64) uint64 {
	tb.Helper()
	text := os.Getenv("WEIR_LANE_SEEDS")
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		tb.Fatalf("WEIR_LANE_SEEDS: %v", err)
	}
	return max(n, usual)
}
