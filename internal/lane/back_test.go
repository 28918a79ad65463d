package lane

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/internal/testing/must"
)

// behind is a Back with a client in front of it, and a gRPC server that tests write by hand.
type behind struct {
	*talk
	back   *Back
	server *client // writes the frames of the server, and reads the frames of the Back
}

func newBehind(t *testing.T) *behind {
	t.Helper()
	b := &behind{talk: newTalk(t), back: NewBack(nil), server: newClient(t)}
	b.conn = newLane(t).Open(start, b.handler, b.back, 0)
	b.back.Attach(b.conn)
	b.greet()
	must.Get(b.send())(t)
	if b.back.Output() != nil || !b.back.Idle() {
		t.Error("the Back speaks without a stream")
	}
	b.other(1, false)
	b.expect()
	got := b.back.Output()
	if !bytes.HasPrefix(got, []byte(preface)) {
		t.Errorf("got %q first", got)
	}
	want := []string{
		"SETTINGS [ENABLE_PUSH = 0]", "0 WINDOW_UPDATE 458753",
		"1 HEADERS :method=POST :scheme=http :path=/other/Method :authority=limits te=trailers grpc-timeout=20m " +
			"content-type=application/grpc x-envoy-internal=true",
	}
	if d := cmp.Diff(want, b.server.read(got[len(preface):])); d != "" {
		t.Error(d)
	}
	b.server.must(b.server.framer.WriteSettings())
	b.answer()
	b.behindGot("SETTINGS ack")
	return b
}

// answer gives the server's frames to the Back, and compares the frames for the client.
func (b *behind) answer(want ...string) {
	b.t.Helper()
	sent := b.server.take()
	for _, piece := range [][]byte{sent[:len(sent)/2], sent[len(sent)/2:]} {
		b.must(b.back.Receive(piece, b.now))
	}
	if d := cmp.Diff(want, b.read(b.conn.Output())); d != "" {
		b.t.Error(d)
	}
}

// behindGot compares the frames for the server.
func (b *behind) behindGot(want ...string) {
	b.t.Helper()
	if d := cmp.Diff(want, b.server.read(b.back.Output())); d != "" {
		b.t.Error(d)
	}
}

func TestTheServerBehindMayResetAStream(t *testing.T) {
	b := newBehind(t)
	b.server.must(b.server.framer.WriteRSTStream(1, http2.ErrCodeRefusedStream))
	b.server.must(b.server.framer.WriteRSTStream(1, http2.ErrCodeCancel))
	b.answer("1 RST_STREAM REFUSED_STREAM")
	b.behindGot()
	if !b.back.Idle() || b.conn.Streams() != 0 {
		t.Error("the stream is open")
	}
}

func TestDataWaitsForTheWindowOfTheServerBehind(t *testing.T) {
	b := newBehind(t)
	b.server.must(b.server.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3}))
	b.answer()
	b.must(b.framer.WriteData(1, true, []byte("hello")))
	b.expect()
	b.behindGot("SETTINGS ack", `1 DATA "hel"`)
	b.server.must(b.server.framer.WriteWindowUpdate(1, 1))
	b.server.must(b.server.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 4}))
	b.answer()
	b.behindGot(`1 DATA "l"`, "SETTINGS ack", `1 DATA "o" END`)
	if got := b.conn.flow.window + b.conn.flow.consumed; got != 1<<20 {
		t.Errorf("the client has a window of %d bytes, want 1 MiB", got)
	}
}

func TestDataThatTheServerBehindDoesNotTakeIsCredited(t *testing.T) {
	for name, ends := range map[string]func(b *behind){
		"the client resets": func(b *behind) { b.must(b.framer.WriteRSTStream(1, http2.ErrCodeCancel)); b.expect() },
		"the server resets": func(b *behind) {
			b.server.must(b.server.framer.WriteRSTStream(1, http2.ErrCodeCancel))
			b.answer("1 RST_STREAM CANCEL")
		},
		"the server is lost": func(b *behind) { b.back.Lost(); b.expect("1 RST_STREAM REFUSED_STREAM") },
	} {
		b := newBehind(t)
		b.server.must(b.server.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
		b.answer()
		b.must(b.framer.WriteData(1, false, make([]byte, 1000)))
		b.expect()
		if got := b.conn.flow.window + b.conn.flow.consumed; got != 1<<20-1000 {
			t.Errorf("%s: before: the client has a window of %d bytes", name, got)
		}
		ends(b)
		if got := b.conn.flow.window + b.conn.flow.consumed; got != 1<<20 || !b.back.Idle() {
			t.Errorf("%s: the client has a window of %d bytes, want 1 MiB", name, got)
		}
	}
}

func TestAGoAwayOfTheServerBehindRefusesLaterStreams(t *testing.T) {
	b := newBehind(t)
	b.other(3, false)
	b.expect()
	b.server.must(b.server.framer.WriteGoAway(1, 0, []byte("max_age")))
	b.answer("GOAWAY 2147483647 NO_ERROR max_age", "PING 0106010800030309", "3 RST_STREAM REFUSED_STREAM")
	b.other(5, true)
	b.expect("5 RST_STREAM REFUSED_STREAM")
	b.headers(7, false, usual()...)
	b.must(b.framer.WriteData(7, true, prefixed("hello")))
	if got, err := b.send(); err != nil || len(got) != 3 {
		t.Errorf("a call of the lane: got %q, %v", got, err)
	}
}

func TestFramesOfTheServerBehindAreEncodedAgain(t *testing.T) {
	b := newBehind(t)
	block := b.server.block(":status", "200", "x-large", strings.Repeat("l", 300))
	b.server.must(b.server.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:9], PadLength: 7}))
	b.server.must(b.server.framer.WriteContinuation(1, true, block[9:]))
	b.server.must(b.server.framer.WriteDataPadded(1, false, []byte("answer"), make([]byte, 5)))
	b.server.must(b.server.framer.WritePing(false, [8]byte{7}))
	b.server.must(b.server.framer.WriteRawFrame(99, 0, 0, nil))
	b.server.headers(1, true, "grpc-status", "0")
	b.server.must(b.server.framer.WriteRSTStream(1, http2.ErrCodeNo))
	b.answer("1 HEADERS :status=200 x-large="+strings.Repeat("l", 300), `1 DATA "answer"`, "1 HEADERS grpc-status=0 END", "1 RST_STREAM NO_ERROR")
	b.behindGot("PING ack 0700000000000000")
	b.server.headers(1, true, "behind", "the end")
	b.server.must(b.server.framer.WriteData(1, false, []byte("behind the end")))
	b.answer()
	if got := b.back.consumed; got != len("answer")+6+len("behind the end") {
		t.Errorf("%d bytes are credited", got)
	}
}

func TestASettingOfTheServerBehindBoundsTheTable(t *testing.T) {
	b := newBehind(t)
	b.server.must(b.server.framer.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
	b.answer()
	b.behindGot("SETTINGS ack")
	b.server.dec.SetAllowedMaxDynamicTableSize(0)
	b.other(3, true)
	b.expect()
	if got := b.server.read(b.back.Output()); len(got) != 1 || !strings.HasPrefix(got[0], "3 HEADERS :method=POST") {
		t.Errorf("got %q", got)
	}
}

func TestAServerBehindThatBreaksTheProtocolIsAnError(t *testing.T) {
	for name, frame := range map[string][]byte{
		"large frame":        appendFrame(nil, 16385, frameData, 0, 1),
		"wrong header block": append(appendFrame(nil, 1, frameHeaders, flagEndHeaders, 1), 0xff),
		"too much padding":   append(appendFrame(nil, 1, frameData, flagPadded, 1), 9),
	} {
		b := newBehind(t)
		if err := b.back.Receive(frame, b.now); err == nil || !strings.HasPrefix(fmt.Sprint(err), "the gRPC server sent a ") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// The memory of a stream counts until both ends have ended it. A stream that the client resets
// counts until the server has seen the reset.
func TestTheMemoryOfStreamsBehindCounts(t *testing.T) {
	l := newLane(t)
	b := NewBack(func(path string) int { return len(path) << 10 })
	c := l.Open(start, nil, b, 0)
	b.Attach(c)
	held := func() int { // without the output
		b.Output()
		return b.Held()
	}
	if got := held(); got != 0 {
		t.Errorf("without streams: %d bytes", got)
	}
	begin := func(id uint32) { b.Begin(id, pairs(":path", "/a"), false) }
	const one = 2<<10 + backFieldBytes + backTextFactor*7
	begin(1)
	begin(3)
	b.Data(3, make([]byte, 10), false)
	if got, want := held(), 2*one+10*backDataFactor; got != want {
		t.Errorf("two streams: got %d bytes, want %d", got, want)
	}
	b.Reset(3, Cancel)
	if got, want := held(), 2*one+10*backDataFactor; got != want || b.ResetBytes() != one+10*backDataFactor {
		t.Errorf("after a reset: got %d bytes, %d of them reset; want %d", got, b.ResetBytes(), want)
	}
	b.Forget(b.ResetBytes())
	if got := held(); got != one {
		t.Errorf("when the server has seen it: got %d bytes, want %d", got, one)
	}
	for id := uint32(5); id < 5+2*2*backFree; id += 2 {
		begin(id)
		b.Reset(id, Cancel)
	}
	b.Forget(b.ResetBytes())
	if got := held(); got != one {
		t.Errorf("after many streams, one at a time: got %d bytes, want %d", got, one)
	}
	for id := uint32(1001); id < 1001+2*2*backFree; id += 2 {
		begin(id)
	}
	for id := uint32(1001); id < 1001+2*2*backFree; id += 2 {
		b.Reset(id, Cancel)
	}
	b.Forget(b.ResetBytes())
	if got, want := held(), one+(backFree+1)*backKept; got != want {
		t.Errorf("after many streams at once: got %d bytes, want the room that they leave: %d", got, want)
	}
	b.Lost()
	if got := held(); got != 0 {
		t.Errorf("after the end of the connection: %d bytes", got)
	}
}

func TestALongStreamHoldsTheBytesThatTheServerBehindHasNotRead(t *testing.T) {
	for _, long := range []bool{true, false} {
		b := newBehind(t)
		if long {
			b.back.Long(1)
			b.back.Long(3) // no such stream
		}
		empty := b.back.held
		for range 30 {
			b.must(b.framer.WriteData(1, false, make([]byte, 1000)))
			b.expect()
			b.back.Output()
			b.server.must(b.server.framer.WriteWindowUpdate(1, 600))
			b.answer()
		}
		want := empty + 30*1000*backDataFactor
		if long {
			want -= 30 * 600 * backDataFactor
		}
		if got := b.back.held; got != want {
			t.Errorf("long %t: %d bytes are held, want %d", long, got, want)
		}
		b.server.must(b.server.framer.WriteWindowUpdate(1, 1<<20)) // more than there is
		b.answer()
		if got := b.back.held; long && got != BackStreamBytes {
			t.Errorf("after all is read %d bytes are held, want %d", got, BackStreamBytes)
		}
		b.must(b.framer.WriteRSTStream(1, http2.ErrCodeCancel))
		b.expect()
		if got := b.back.held; got != 0 {
			t.Errorf("long %t: %d bytes are held without a stream", long, got)
		}
	}
}
