package lane

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/internal/testing/must"
)

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
