package lane

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
)

// Each flood ends its connection, soon enough, and not too soon.
func TestFloodsEndTheConnection(t *testing.T) {
	const calm = "HTTP/2 connection ends with code 0xb: "
	for _, row := range []struct {
		name        string
		begin       func(c *talk)
		does        func(c *talk, n uint32)
		least, most int // repetitions
		reason      string
		resets      bool // the cause, as also an honest client may reset
	}{
		{"rapid reset", nil, func(c *talk, n uint32) {
			c.headers(2*n+1, false, usual()...)
			c.must(c.framer.WriteRSTStream(2*n+1, http2.ErrCodeCancel))
		}, 400, 600, "too many frames without a request", true},
		{"requests under way that are reset", nil, func(c *talk, n uint32) {
			c.ask(2*n+1, "later")
			c.must(c.framer.WriteRSTStream(2*n+1, http2.ErrCodeCancel))
		}, 1024, 1025, "too many requests under way were reset", true},
		{"requests under way that the server resets", nil, func(c *talk, n uint32) {
			c.ask(2*n+1, "later")
			c.window(2*n+1, 0) // a mistake
		}, 1024, 1025, "too many requests under way were reset", false},
		{"malformed requests", nil, func(c *talk, n uint32) {
			c.headers(2*n+1, true, usual("connection", "close")...)
		}, 900, 1100, "too many frames without a request", false},
		{"refused requests", nil, func(c *talk, n uint32) {
			c.headers(2*n+1, true, usual("content-type", "text/plain")...)
		}, 900, 1100, "too many frames without a request", false},
		{"requests above the bound of streams", func(c *talk) {
			for n := range uint32(1024) {
				c.headers(2*n+1, false, usual()...)
			}
		}, func(c *talk, n uint32) { c.headers(2*n+3001, false, usual()...) }, 2400, 2600, "too many frames without a request", false},
		{
			"SETTINGS", nil, func(c *talk, _ uint32) { c.must(c.framer.WriteSettings()) }, 400, 600, "too many frames without a request", false,
		},
		{"SETTINGS ack", nil, func(c *talk, _ uint32) { c.must(c.framer.WriteSettingsAck()) }, 9000, 11000, "too many frames without a request", false},
		{"PING", nil, func(c *talk, _ uint32) { c.must(c.framer.WritePing(false, [8]byte{})) }, 3, 5, "too_many_pings", false},
		{"PING between requests", nil, func(c *talk, n uint32) {
			c.must(c.framer.WritePing(false, [8]byte{}))
			c.must(c.framer.WritePing(true, [8]byte{}))
			c.headers(2*n+1, true, usual(":method", "GET")...)
		}, 700, 1000, "too many frames without a request", false},
		{"PRIORITY", nil, func(c *talk, _ uint32) {
			c.must(c.framer.WritePriority(1, http2.PriorityParam{}))
		}, 9000, 11000, "too many frames without a request", false},
		{"WINDOW_UPDATE", nil, func(c *talk, _ uint32) { c.window(0, 1) }, 9000, 11000, "too many frames without a request", false},
		{"WINDOW_UPDATE beside requests, while many responses wait", func(c *talk) {
			c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
			for n := range uint32(1000) {
				c.ask(2*n+1, "hello")
			}
		}, func(c *talk, n uint32) {
			c.ask(2*n+3001, "fail")
			for range 10 {
				c.window(0, 1)
			}
		}, 60, 80, "too many frames without a request", false},
		{"unknown frames", nil, func(c *talk, _ uint32) { c.must(c.framer.WriteRawFrame(99, 0, 0, nil)) }, 9000, 11000, "too many frames without a request", false},
		{
			"GOAWAY", nil, func(c *talk, _ uint32) { c.must(c.framer.WriteGoAway(0, 0, nil)) }, 900, 1100, "too many frames without a request", false,
		},
		{"empty DATA", func(c *talk) { c.headers(1, false, usual()...) }, func(c *talk, _ uint32) {
			c.must(c.framer.WriteData(1, false, nil))
		}, 900, 1100, "too many frames without a request", false},
		{"padded empty DATA", func(c *talk) { c.headers(1, false, usual()...) }, func(c *talk, _ uint32) {
			c.must(c.framer.WriteDataPadded(1, false, nil, make([]byte, 9)))
		}, 900, 1100, "too many frames without a request", false},
		{"DATA of a closed stream", func(c *talk) { c.ask(1, "hello") }, func(c *talk, _ uint32) {
			c.must(c.framer.WriteData(1, false, []byte{1}))
		}, 900, 10500, "too many frames without a request", false},
		{"CONTINUATION", func(c *talk) {
			c.must(c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}}))
		}, func(c *talk, _ uint32) { c.must(c.framer.WriteContinuation(1, false, nil)) }, 16, 17, "a header block is too large", false},
		{"large CONTINUATION", func(c *talk) {
			c.must(c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}}))
		}, func(c *talk, _ uint32) {
			c.must(c.framer.WriteContinuation(1, false, make([]byte, 16000)))
		}, 2, 3, "a header block is too large", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newTalk(t)
			if row.begin != nil {
				row.begin(c)
			}
			n := 0
			var err error
			for held := 0; err == nil && n < 20000; n++ {
				row.does(c, uint32(n))
				err = c.conn.receiveAll(c.take(), c.now)
				if held = c.conn.Held(); held > 2<<20 {
					t.Fatalf("%d bytes are held after %d repetitions", held, n)
				}
				c.conn.Output()
			}
			of, _ := errors.AsType[*ConnError](err)
			if want := map[bool]Cause{true: CauseResets, false: CauseFlood}[row.resets]; of != nil && of.Cause != want {
				t.Errorf("the cause is %d, want %d", of.Cause, want)
			}
			if fmt.Sprint(err) != calm+row.reason || n < row.least || n > row.most {
				t.Errorf("after %d repetitions, want %d to %d: %v", n, row.least, row.most, err)
			}
		})
	}
}

// An honest client at its worst: each request times out at Envoy and is reset, with a WINDOW_UPDATE
// and now and then a PING.
func TestAnHonestClientIsNoFlood(t *testing.T) {
	c := newTalk(t)
	for n := range uint32(race.Scale(100_000)) {
		id := 2*n + 1
		c.ask(id, []string{"later", "hello"}[n%2])
		c.window(0, 100)
		c.window(id, 100)
		if n%2 == 0 {
			c.must(c.framer.WriteRSTStream(id, http2.ErrCodeCancel))
		}
		if n%100 == 0 {
			c.must(c.framer.WritePing(false, [8]byte{}))
		}
		if err := c.conn.receiveAll(c.take(), c.now); err != nil {
			t.Fatalf("request %d: %v", n, err)
		}
		if n%2 == 0 {
			c.must(c.conn.Finish(id, nil, Reply{}, c.now))
		}
		c.conn.Output()
	}
}

// Before a client knows the bound of streams it may send as many as it likes. Envoy sends up to
// 1024 at once.
func TestAClientThatDoesNotKnowTheBoundOfStreamsIsNoFlood(t *testing.T) {
	c := newTalk(t, func(o *Options) { o.MaxStreams = 10 })
	for n := range uint32(1024) {
		c.ask(2*n+1, "later")
	}
	if got, err := c.send(); err != nil || len(got) != 1014 {
		t.Errorf("got %d frames, %v; want 1014 refusals", len(got), err)
	}
}

func TestFloodsAreForgottenWithTime(t *testing.T) {
	c := newTalk(t)
	for range 100 {
		for range 400 {
			c.must(c.framer.WriteSettings())
		}
		must.Get(c.send())(t)
		c.now += int64(9 * time.Second)
	}
}

func TestMoreStreamsThanAnnouncedAreRefused(t *testing.T) {
	c := newTalk(t, func(o *Options) { o.MaxStreams = 2 })
	for id := uint32(1); id < 9; id += 2 {
		c.ask(id, "later")
	}
	c.expect("5 RST_STREAM REFUSED_STREAM", "7 RST_STREAM REFUSED_STREAM")
	c.must(c.conn.Finish(1, nil, Reply{Code: 1}, c.now))
	c.ask(9, "later")
	c.expect("1 HEADERS :status=200 content-type=application/grpc grpc-status=1 grpc-message= END")
	if c.conn.Streams() != 2 {
		t.Errorf("got %d streams", c.conn.Streams())
	}
}

// A small block may stand for a large header list: each byte repeats a large field of the table.
func TestAHeaderBombIsReset(t *testing.T) {
	c := newTalk(t)
	bomb := append(c.block("x-bomb", strings.Repeat("b", 3900)), []byte(strings.Repeat("\xbe", 12000))...)
	c.must(c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: bomb, EndHeaders: true}))
	c.expect("1 RST_STREAM FRAME_SIZE_ERROR")
	c.ask(3, "hello")
	if got, err := c.send(); err != nil || len(got) != 3 {
		t.Errorf("got %q, %v", got, err)
	}
}
