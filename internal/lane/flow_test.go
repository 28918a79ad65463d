package lane

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/internal/testing/must"
)

func TestAResponseWaitsForTheWindow(t *testing.T) {
	c := newTalk(t)
	c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 7}))
	c.ask(1, "hello")
	c.ask(3, "")
	c.expect("SETTINGS ack", "1"+okHeaders, `1 DATA "\x00\x00\x00\x00\x05he"`, "3"+okHeaders, `3 DATA "\x00\x00\x00\x00\x00"`, "3 HEADERS grpc-status=0 END")
	if c.conn.Streams() != 1 || c.conn.Answered() != 1 || c.conn.Held() < 3 {
		t.Errorf("got %d streams, %d answered, %d bytes held", c.conn.Streams(), c.conn.Answered(), c.conn.Held())
	}
	c.window(0, 100)
	c.window(1, 1)
	c.expect(`1 DATA "l"`)
	c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})) // 7 less: below 0
	c.window(1, 7)
	c.expect("SETTINGS ack")
	c.window(1, 1)
	c.expect(`1 DATA "l"`)
	c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}))
	c.expect("SETTINGS ack", `1 DATA "o"`, "1 HEADERS grpc-status=0 END")
	if c.conn.Streams() != 0 || c.conn.Answered() != 2 || c.conn.Held() != 0 {
		t.Errorf("got %d streams, %d answered, %d bytes held", c.conn.Streams(), c.conn.Answered(), c.conn.Held())
	}
}

func TestResponsesWaitForTheWindowOfTheConnection(t *testing.T) {
	c := newTalk(t)
	for id := uint32(1); id < 7; id += 2 {
		c.ask(id, "long") // 80005 bytes with the head, of 65535
	}
	got := must.Get(c.send())(t)
	var sum int
	for _, text := range got {
		var n int
		if _, err := fmt.Sscanf(text, "1 DATA %d bytes", &n); err == nil {
			sum += n
		}
	}
	if sum != 65535 {
		t.Errorf("stream 1 got %d bytes, want all of the window: %q", sum, got)
	}
	c.window(1, 1<<20)
	c.window(5, 1<<20)
	c.window(0, 1<<20)
	got = must.Get(c.send())(t)
	if want := "1 HEADERS grpc-status=0 END"; got[1] != want {
		t.Errorf("got %q, want %q second", got, want)
	}
	c.window(3, 1<<20)
	if _, err := c.send(); err != nil || c.conn.Streams() != 0 || c.conn.Answered() != 3 {
		t.Errorf("got %v, %d streams, %d answered", err, c.conn.Streams(), c.conn.Answered())
	}
}

func TestResponsesThatWaitAreBounded(t *testing.T) {
	c := newTalk(t)
	c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	for id := uint32(1); id < 40; id += 2 {
		c.ask(id, "long")
	}
	_, err := c.send()
	if want := "HTTP/2 connection ends with code 0xb: too many responses wait for the client's window"; fmt.Sprint(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if held := c.conn.Held(); held > maxQueued+100000 {
		t.Errorf("%d bytes are held", held)
	}
}

func TestAResponseThatWaitsTooLongIsReset(t *testing.T) {
	c := newTalk(t)
	c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	c.ask(1, "hello")
	must.Get(c.send())(t)
	c.tick(10*time.Second-1, "")
	c.tick(1, "", "1 RST_STREAM CANCEL")
	if c.conn.Streams() != 0 || c.conn.Held() != 0 {
		t.Errorf("got %d streams, %d bytes held", c.conn.Streams(), c.conn.Held())
	}
}

func TestTheWindowForMessagesOpensAgain(t *testing.T) {
	c := newTalk(t, func(o *Options) { o.MaxMessage = 1 << 20 })
	c.headers(1, false, usual()...)
	message := prefixed(strings.Repeat("m", 300000))
	window, stream, sent := 1<<20, 64<<10, 0
	for len(message) > 0 {
		n := min(len(message), 16000, stream, window)
		if n == 0 {
			t.Fatalf("no window is left after %d bytes", sent)
		}
		c.must(c.framer.WriteData(1, n == len(message), message[:n]))
		message, sent, window, stream = message[n:], sent+n, window-n, stream-n
		got := must.Get(c.send())(t)
		for _, text := range got {
			var id, more int
			if _, err := fmt.Sscanf(text, "%d WINDOW_UPDATE %d", &id, &more); err == nil && id == 0 {
				window += more
			} else if err == nil {
				stream += more
			}
		}
	}
	if len(c.handler.calls) != 1 {
		t.Error("the message did not arrive")
	}
}

// silent is a Foreign that consumes nothing.
type silent struct{ bytes int }

func (s *silent) Begin(uint32, []hpack.HeaderField, bool) {}
func (s *silent) Data(_ uint32, data []byte, _ bool)      { s.bytes += len(data) }
func (s *silent) Reset(uint32, Code)                      {}
func (s *silent) Credit(uint32, int)                      {}
func (s *silent) Arrived(uint64, int64)                   {}

func TestMoreThanTheWindowIsAnError(t *testing.T) {
	c := newTalk(t)
	behind := new(silent)
	c.conn = newLane(t).Open(start, c.handler, behind, 0)
	c.greet()
	must.Get(c.send())(t)
	data := make([]byte, 16384)
	for id := uint32(1); id < 33; id += 2 { // 16 streams have 1 MiB
		c.headers(id, false, usual(":path", "/another/method")...)
		for range 4 {
			c.must(c.framer.WriteData(id, false, data))
		}
		c.expect()
	}
	c.headers(33, false, usual(":path", "/another/method")...)
	c.must(c.framer.WriteData(33, false, data[:1]))
	_, err := c.send()
	if fmt.Sprint(err) != "HTTP/2 connection ends with code 0x3: more DATA than the window of the connection" {
		t.Errorf("got %v", err)
	}
	if behind.bytes != 1<<20 {
		t.Errorf("%d bytes have come through, want 1 MiB", behind.bytes)
	}
}

func TestMoreThanTheWindowOfAStreamResetsIt(t *testing.T) {
	c := newTalk(t)
	c.conn = newLane(t).Open(start, c.handler, new(silent), 0)
	c.greet()
	must.Get(c.send())(t)
	c.headers(1, false, usual(":path", "/another/method")...)
	for range 4 {
		c.must(c.framer.WriteData(1, false, make([]byte, 16384)))
	}
	c.must(c.framer.WriteData(1, false, make([]byte, 1)))
	c.expect("1 RST_STREAM FLOW_CONTROL_ERROR")
}

// The announcement must not get lost with headers that are not sent.
func TestAReductionOfTheTableIsAnnouncedWithAnyAnswer(t *testing.T) {
	for _, message := range []string{"later", "fail"} {
		c := newTalk(t)
		c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
		c.ask(1, message)
		must.Do(t, c.conn.receiveAll(c.take(), c.now))
		c.must(c.conn.Finish(1, nil, Reply{}, c.now))
		out := c.conn.Output()
		if first := out[2*frameHead]; first != 0x20 {
			t.Errorf("%s: the first header block begins with %x, want 20", message, first)
		}
	}
}

func TestAReductionOfTheTableIsAnnounced(t *testing.T) {
	c := newTalk(t)
	c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
	c.ask(1, "hello")
	c.ask(3, "hello")
	must.Do(t, c.conn.receiveAll(c.take(), c.now))
	out := c.conn.Output()
	if first := out[2*frameHead]; first != 0x20 {
		t.Errorf("the first header block begins with %x, want 20", first)
	}
	if n := bytes.Count(out, []byte("\x20\x88")); n != 1 {
		t.Errorf("got %d updates, want 1", n)
	}
	c.dec.SetAllowedMaxDynamicTableSize(0)
	if got := c.read(out); len(got) != 7 {
		t.Errorf("got %q", got)
	}
}

// Each setting of a frame that changes the windows would look at all streams: 20 frames of 1 KiB
// then take half a second.
func TestManySettingsOfOneFrameMoveTheWindowsOnce(t *testing.T) {
	c := newTalk(t)
	c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	c.ask(1, "hello")
	c.expect("SETTINGS ack", "1"+okHeaders)
	c.window(1, 3)
	c.expect(`1 DATA "\x00\x00\x00"`)
	set := func(values ...uint32) {
		var all []http2.Setting
		for _, v := range values {
			all = append(all, http2.Setting{ID: http2.SettingInitialWindowSize, Val: v})
		}
		c.must(c.framer.WriteSettings(all...))
	}
	set(100, 7, 0, 2)
	c.expect("SETTINGS ack", `1 DATA "\x00\x05"`)
	set(5, 0) // 2 below 0
	c.expect("SETTINGS ack")
	set(7)
	c.expect("SETTINGS ack", `1 DATA "hello"`, "1 HEADERS grpc-status=0 END")
	c.ask(3, "later")
	c.window(3, 10)
	set(maxWindow, 0) // the first one is too much
	if _, err := c.send(); fmt.Sprint(err) != "HTTP/2 connection ends with code 0x3: SETTINGS_INITIAL_WINDOW_SIZE makes a window larger than 2^31-1" {
		t.Errorf("got %v, want the end of the connection", err)
	}
}

func BenchmarkManySettingsWithOpenStreams(b *testing.B) {
	c := newTalk(b)
	for n := range uint32(1000) {
		c.ask(2*n+1, "later")
	}
	if _, err := c.send(); err != nil {
		b.Fatal(err)
	}
	all := make([]http2.Setting, 170)
	for i := range all {
		all[i] = http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i)}
	}
	c.must(c.framer.WriteSettings(all...))
	frame := c.take()
	for b.Loop() {
		c.now += int64(time.Second)
		if err := c.conn.receiveAll(frame, c.now); err != nil {
			b.Fatal(err)
		}
		c.conn.Output()
	}
}
