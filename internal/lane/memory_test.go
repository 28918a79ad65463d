package lane

import (
	"reflect"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/internal/testing/must"
)

// A slow reader keeps the queue from being empty, while the stream goes on for hours.
func TestAQueueThatIsNeverEmptyStaysSmall(t *testing.T) {
	c, r := newForeign(t)
	c.conn.ForeignHeaders(1, pairs(":status", "200"), false)
	c.conn.ForeignData(1, make([]byte, defaultWindow+1), false)
	for range 200 {
		const more = 10000
		c.conn.ForeignData(1, make([]byte, more), false)
		c.window(0, more)
		c.window(1, more)
		must.Get(c.send())(t)
		r.calls = nil
	}
	if got := cap(c.conn.opened.find(1).queue); got > 4*defaultWindow || c.conn.opened.queued != 1 {
		t.Errorf("the queue has %d bytes of memory, and %d wait; want at most %d, and 1", got, c.conn.opened.queued, 4*defaultWindow)
	}
}

func TestHeadersOfOpenStreamsCount(t *testing.T) {
	for _, metadata := range []bool{false, true} {
		c := newTalk(t, func(o *Options) { o.Metadata = metadata })
		fields := usual("content-type", "application/grpc+"+strings.Repeat("x", 3700))
		for n := range uint32(10) { // from the second one on a byte for each field, as the table has them
			c.headers(2*n+1, false, fields...)
		}
		c.expect()
		want := 10 * 3700
		if metadata {
			want *= 2
		}
		if got := c.conn.Held(); got < want {
			t.Errorf("metadata %t: got %d bytes held, want at least %d", metadata, got, want)
		}
		c.conn.Close()
		if got := c.conn.Held(); got != 0 {
			t.Errorf("metadata %t: got %d bytes held behind the end, want 0", metadata, got)
		}
	}
}

func TestAnIdleConnectionKeepsNoHeaders(t *testing.T) {
	large := strings.Repeat("x", 10000)
	for name, fields := range map[string][]string{
		"metadata":     usual("x-large", large),
		"content type": usual("content-type", "application/grpc+"+large),
		"refused":      usual("x-bin", large+"*"),
	} {
		for _, cut := range []bool{false, true} {
			c := newTalk(t, func(o *Options) { o.Metadata = true })
			block := c.block(fields...)
			n := len(block)
			if cut {
				n = 5
			}
			c.must(c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:n], EndHeaders: !cut, EndStream: true}))
			if cut {
				c.must(c.framer.WriteContinuation(1, true, block[n:]))
			}
			if got, err := c.send(); err != nil || len(got) == 0 {
				t.Fatalf("%s: got %q, %v; want an answer", name, got, err)
			}
			if !reflect.ValueOf(c.conn.head).IsZero() {
				t.Errorf("%s, cut %t: the connection keeps %d bytes of headers", name, cut, len(large))
			}
		}
	}
}

// A name that is a part of another entry would keep all bytes of that entry. A client could so keep
// 264 KB for each connection.
func TestAnEntryOfTheTableKeepsNoOtherEntry(t *testing.T) {
	d := &decoder{tables: newTables(), bound: maxTable}
	var to fields
	to.reset(1 << 16)
	large := appendString(appendString([]byte{0x40}, "x-name"), strings.Repeat("y", 3000))
	byName := []byte{0x40 | staticFields + 1, 0} // the name of the entry before, and an empty value
	must.Do(t, d.decode(append(append(large, byName...), byName...), &to))
	for i := 1; i < len(d.dynamic); i++ {
		if one, two := d.dynamic[i-1].name, d.dynamic[i].name; string(two) != "x-name" || &one[0] == &two[0] {
			t.Errorf("entry %d has the name %q in the memory of entry %d", i, two, i-1)
		}
	}
}

// In the dynamic table a request of 20 bytes has headers of 4 KB, and its refusal repeats them.
func TestTheOutputOfReceiveIsBounded(t *testing.T) {
	for name, fields := range map[string][]string{
		"refusals":      usual("x-bin", strings.Repeat("\xff", 3500)),
		"content types": usual("content-type", "application/grpc+"+strings.Repeat("x", 3500)),
	} {
		c := newTalk(t)
		for n := range uint32(500) {
			c.headers(2*n+1, true, fields...)
		}
		rest, answers := c.take(), 0
		const largest = 20 << 10 // answer
		for len(rest) > 0 {
			before := len(rest)
			var err error
			if rest, err = c.conn.Receive(rest, c.now); err != nil || len(rest) == before {
				t.Fatalf("%s: got %v with %d bytes left of %d", name, err, len(rest), before)
			}
			out := c.conn.Output()
			if len(out) > fullOutput+largest {
				t.Fatalf("%s: got %d bytes at once, want at most %d", name, len(out), fullOutput+largest)
			}
			answers += len(c.read(out))
		}
		if answers != 500 {
			t.Errorf("%s: got %d answers, want 500", name, answers)
		}
	}
}
