package laneserver

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
)

// hello is the first bytes of a client, with a request.
func hello(t *testing.T) []byte {
	t.Helper()
	var out, block bytes.Buffer
	code := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", method},
		{":authority", "weir"},
		{"te", "trailers"},
		{"content-type", "application/grpc"},
		{"user-agent", "envoy"},
	} {
		must.Do(t, code.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
	}
	out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&out, nil)
	err := errors.Join(framer.WriteSettings(), framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}),
		framer.WriteData(1, true, []byte{0, 0, 0, 0, 3, 10, 1, 'a'}))
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// memory returns the bytes of the heap and of stacks.
func memory() int64 {
	for range 3 { // stacks shrink, and pools are emptied
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// The bytes include the client's end, some 500.
func TestAnIdleConnectionHoldsTenKiBAtMost(t *testing.T) {
	if race.Enabled {
		t.Skip("stacks are larger with the race detector")
	}
	const connections, most = 300, 10 << 10
	f := serve(t, listenTCP(t), nil)
	first := hello(t)
	clients := make([]net.Conn, 0, connections)
	open := func() {
		c := must.Get(net.Dial("tcp", f.address))(t)
		clients = append(clients, c)
		t.Cleanup(func() { _ = c.Close() })
		must.Get(c.Write(first))(t)
		framer := http2.NewFramer(io.Discard, c)
		for ended := false; !ended; {
			frame := must.Get(framer.ReadFrame())(t)
			h, ok := frame.(*http2.HeadersFrame)
			ended = ok && h.StreamEnded()
		}
	}
	for range 10 {
		open()
	}
	before := memory()
	for range connections {
		open()
	}
	each := func() int64 { return (memory() - before) / connections }
	got := each()
	for end := time.Now().Add(time.Minute); got > most && time.Now().Before(end); got = each() {
		time.Sleep(time.Millisecond) // a busy machine runs the goroutines of some connections later, and these are not idle yet
	}
	if got > most {
		t.Errorf("a connection: got %d bytes, want at most %d", got, most)
	} else {
		t.Logf("a connection: %d bytes", got)
	}
	runtime.KeepAlive(clients)
}
