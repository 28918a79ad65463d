package lane

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/internal/testing/must"
)

func TestADrainLosesNoRequest(t *testing.T) {
	c := newTalk(t)
	c.ask(1, "later")
	c.expect()
	c.conn.Shutdown("graceful_stop", c.now)
	c.conn.Shutdown("again", c.now)
	c.expect("GOAWAY 2147483647 NO_ERROR graceful_stop", "PING 0106010800030309")
	c.ask(3, "later") // was on the way
	c.must(c.framer.WritePing(true, [8]byte([]byte(drainPing))))
	c.expect("GOAWAY 3 NO_ERROR graceful_stop")
	c.headers(5, false, usual("x-new", "5")...) // is too late, and fills the table
	c.must(c.framer.WriteData(5, false, []byte("ignored")))
	c.window(5, 1)
	c.expect()
	for _, id := range []uint32{1, 3} {
		if c.conn.Finished() {
			t.Errorf("the drain is over before stream %d", id)
		}
		c.must(c.conn.Finish(id, nil, Reply{}, c.now))
	}
	if !c.conn.Finished() {
		t.Error("the drain is not over")
	}
	if len(c.handler.seen) != 2 {
		t.Errorf("%d calls were decided", len(c.handler.seen))
	}
}

func TestADrainDoesNotWaitForAPingForever(t *testing.T) {
	c := newTalk(t)
	c.conn.Shutdown("graceful_stop", c.now)
	c.expect("GOAWAY 2147483647 NO_ERROR graceful_stop", "PING 0106010800030309")
	c.tick(5*time.Second-1, "")
	c.tick(1, "", "GOAWAY 0 NO_ERROR graceful_stop")
	if !c.conn.Finished() {
		t.Error("the drain is not over")
	}
}

func TestAConnectionDrainsAtItsAge(t *testing.T) {
	c := newTalk(t)
	c.conn = newLane(t, func(o *Options) { o.AgeGrace = time.Minute }).Open(c.now, c.handler, nil, time.Hour)
	c.greet()
	c.ask(1, "later")
	must.Get(c.send())(t)
	for c.now += int64(59 * time.Minute); c.now < start+int64(time.Hour); c.now += int64(time.Second) {
		c.must(c.framer.WritePing(true, [8]byte{}))
		c.expect()
		c.tick(0, "")
	}
	c.tick(0, "", "GOAWAY 2147483647 NO_ERROR max_age", "PING 0106010800030309")
	c.must(c.framer.WritePing(true, [8]byte([]byte(drainPing))))
	c.expect("GOAWAY 1 NO_ERROR max_age")
	c.tick(59*time.Second, "")
	c.must(c.framer.WritePing(true, [8]byte{}))
	c.expect()
	c.tick(time.Second, "the connection is too old", "GOAWAY 1 NO_ERROR the connection is too old")
}

func TestASilentClientIsAskedAndLeft(t *testing.T) {
	c := newTalk(t)
	c.tick(time.Minute-1, "")
	c.tick(1, "", "PING 0000000000000000")
	c.tick(20*time.Second-1, "")
	c.must(c.framer.WritePing(true, [8]byte{}))
	c.expect()
	c.tick(time.Minute-1, "")
	c.tick(1, "", "PING 0000000000000000")
	c.tick(20*time.Second, "the client does not answer a PING", "GOAWAY 0 NO_ERROR the client does not answer a PING")
}

func TestWhatIsIncompleteForTooLongEndsTheConnection(t *testing.T) {
	for _, row := range []struct {
		name, reason string
		does         func(c *talk)
	}{
		{"a frame", "a frame is not complete in time", func(c *talk) {
			c.ask(1, "hello", "grpc-timeout", "1H")
			c.sent.Truncate(c.sent.Len() - 1)
		}},
		{"a header block", "a frame is not complete in time", func(c *talk) {
			c.must(c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}}))
		}},
		{"a message", "a request is not complete in time", func(c *talk) {
			c.headers(1, false, usual("grpc-timeout", "1H")...)
			c.must(c.framer.WriteData(1, false, []byte{0, 0, 0, 0, 1}))
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newTalk(t)
			row.does(c)
			must.Get(c.send())(t)
			c.tick(10*time.Second-1, "")
			c.now++
			if err := c.conn.Tick(c.now); err == nil || err.Error() != "HTTP/2 connection ends with code 0xb: "+row.reason {
				t.Errorf("got %v, want %s", err, row.reason)
			}
		})
	}
	t.Run("the greeting", func(t *testing.T) {
		conn := newLane(t).Open(start, echo{}, nil, 0)
		if err := conn.Tick(start + int64(10*time.Second) - 1); err != nil {
			t.Error(err)
		}
		if err := conn.Tick(start + int64(10*time.Second)); err == nil {
			t.Error("got no error")
		}
	})
}

func TestTheTimeoutOfAnIncompleteRequestResetsItsStream(t *testing.T) {
	c := newTalk(t)
	c.headers(1, false, usual("grpc-timeout", "20m")...)
	c.expect()
	c.tick(20*time.Millisecond-1, "")
	c.tick(1, "", "1 RST_STREAM CANCEL")
	c.headers(3, false, usual("grpc-timeout", "99999999H")...)
	c.expect()
	c.tick(time.Second, "")
	c.must(c.framer.WriteData(3, true, prefixed("hello")))
	if got, err := c.send(); err != nil || len(got) != 3 {
		t.Errorf("got %q, %v", got, err)
	}
	if left := c.handler.seen[0].Timeout; left != math.MaxInt64-time.Second {
		t.Errorf("%v of the timeout are left", left)
	}
}

func TestACallThatWaitsDelaysNoOther(t *testing.T) {
	c := newTalk(t)
	c.ask(1, "later")
	c.ask(3, "hello")
	c.expect("3"+okHeaders, `3 DATA "\x00\x00\x00\x00\x05hello"`, "3 HEADERS grpc-status=0 END")
	if c.conn.Streams() != 1 {
		t.Errorf("got %d streams, want 1", c.conn.Streams())
	}
	c.must(c.conn.Finish(1, []byte("done"), Reply{}, c.now))
	c.expect("1"+okHeaders, `1 DATA "\x00\x00\x00\x00\x04done"`, "1 HEADERS grpc-status=0 END")
	c.must(c.conn.Finish(1, []byte("again"), Reply{}, c.now))
	c.expect()
	if c.conn.Streams() != 0 || c.conn.Held() != 0 {
		t.Errorf("got %d streams, %d bytes held", c.conn.Streams(), c.conn.Held())
	}
}

func TestALargeMessageBelongsToTheHandler(t *testing.T) {
	c := newTalk(t)
	c.ask(1, strings.Repeat("m", 4<<10))
	c.ask(3, strings.Repeat("m", 4<<10+1))
	must.Get(c.send())(t)
	if d := cmp.Diff([]uint32{3}, c.handler.calls); d != "" {
		t.Error(d)
	}
	if c.handler.seen[0].Large || !c.handler.seen[1].Large {
		t.Error("only the second call is large")
	}
}

func TestTheHandlerHearsOfAResetAndMustStillFinish(t *testing.T) {
	c := newTalk(t)
	c.ask(1, "later")
	c.must(c.framer.WriteRSTStream(1, http2.ErrCodeCancel))
	c.expect()
	if d := cmp.Diff([]uint32{1}, c.handler.canceled); d != "" {
		t.Error(d)
	}
	if c.conn.Streams() != 0 || c.conn.Held() != streamBytes {
		t.Errorf("got %d streams, %d bytes held", c.conn.Streams(), c.conn.Held())
	}
	c.must(c.conn.Finish(1, []byte("nobody hears"), Reply{}, c.now))
	c.expect()
	if c.conn.Held() != 0 {
		t.Errorf("%d bytes are held", c.conn.Held())
	}
}

func TestTheHandlerHearsOfTheEndOfAConnection(t *testing.T) {
	c := newTalk(t)
	c.ask(1, "later")
	c.ask(3, "later")
	c.must(c.framer.WriteRSTStream(3, http2.ErrCodeCancel))
	c.expect()
	c.conn.Close()
	if d := cmp.Diff([]uint32{3, 1}, c.handler.canceled); d != "" {
		t.Error(d)
	}
	if err := c.conn.Finish(1, nil, Reply{}, c.now); err == nil {
		t.Error("Finish after Close: got no error")
	}
	if c.conn.Output() != nil || c.conn.Held() != 0 {
		t.Error("a closed connection sends, or holds memory")
	}
}

func TestACallHasTheMetadataOfItsRequest(t *testing.T) {
	for _, whole := range []bool{true, false} {
		c := newTalk(t, func(o *Options) { o.Metadata = whole })
		for _, id := range []uint32{1, 3, 5} { // decoded twice, then from the cache
			c.ask(id, "hello", "grpc-timeout", "1500u", "traceparent", "00-1", "x-bin", "AAE", "user-agent", "a test", "twice", "one")
		}
		must.Get(c.send())(t)
		for i := range c.handler.seen {
			call := &c.handler.seen[i]
			if call.Timeout.String() != "1.5ms" || call.Arrived != start || call.Stream != uint32(2*i+1) {
				t.Errorf("got %+v", call)
			}
			want := map[string]string{"traceparent": "00-1", "x-bin": "\x00\x01", ":authority": "limits", "content-type": "application/grpc"}
			if !whole {
				want = map[string]string{":authority": "", "traceparent": ""}
			}
			for key, value := range want {
				if got := call.Get(key); got != value {
					t.Errorf("%s: got %q, want %q", key, got, value)
				}
			}
			if got := len(call.Keys()); whole != (got > 3) {
				t.Errorf("got %d keys", got)
			}
		}
	}
}

func TestTheHostIsTheAuthorityWithoutOne(t *testing.T) {
	c := newTalk(t, func(o *Options) { o.Metadata = true })
	c.ask(1, "hello", ":authority", "", "host", "limits")
	must.Get(c.send())(t)
	if got := c.handler.seen[0].Get(":authority"); got != "limits" {
		t.Errorf("got authority %q, want the host", got)
	}
}

// A Tick comes each second, and a message may come before it.
func TestAMessageBehindItsTimeoutIsNotDecided(t *testing.T) {
	c := newTalk(t)
	c.headers(1, false, usual("grpc-timeout", "1m")...)
	c.expect()
	c.now += int64(time.Millisecond)
	c.headers(3, false, usual("grpc-timeout", "1m")...)
	c.must(c.framer.WriteData(1, true, prefixed("hello")))
	c.expect("1 RST_STREAM CANCEL")
	c.now += int64(time.Millisecond) - 1
	c.must(c.framer.WriteData(3, true, prefixed("hello")))
	c.expect("3"+okHeaders, `3 DATA "\x00\x00\x00\x00\x05hello"`, "3 HEADERS grpc-status=0 END")
	if got := c.handler.seen; len(got) != 1 || got[0].Timeout != 1 {
		t.Errorf("got %d calls, want one with 1 ns left: %+v", len(got), got)
	}
}
