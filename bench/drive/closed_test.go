package drive

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

func TestAClosedLoopCountsEachVerdictOnce(t *testing.T) {
	for code, denied := range map[ratelimitv3.RateLimitResponse_Code]int{ratelimitv3.RateLimitResponse_OK: 0, ratelimitv3.RateLimitResponse_OVER_LIMIT: 1000} {
		request, err := Request("d", []Entry{{"a", "1"}})
		if err != nil {
			t.Fatal(err)
		}
		load := Load{Connections: 2, Streams: 20, Requests: 1000, Timeout: time.Minute}
		got, err := Closed(t.Context(), serve(t, &service{code: code}), load, func() []byte { return request })
		if err != nil || got.Denied != denied || got.Failed != 0 || len(got.Took) != load.Requests {
			t.Errorf("%v: got %d denied, %d failed, %d times, %v; want %d denied, %d times", code, got.Denied, got.Failed, len(got.Took), err, denied, load.Requests)
		}
	}
}

// A server that gives up a request may send RST_STREAM more than once for it.
func TestAStreamThatEndsTwiceMakesRoomForOneRequest(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	most := make(chan int, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.CopyN(io.Discard, conn, int64(len(http2.ClientPreface)))
		framer := http2.NewFramer(conn, conn)
		open, highest := 0, 0
		defer func() { most <- highest }()
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			if f, ok := frame.(*http2.DataFrame); ok {
				if open++; open < 4 {
					highest = max(highest, open)
					continue
				}
				highest = max(highest, open)
				for id := f.StreamID - 6; id <= f.StreamID; id += 2 { // the last four
					reset := appendFrame(nil, http2.FrameRSTStream, 0, id, binary.BigEndian.AppendUint32(nil, uint32(http2.ErrCodeCancel)))
					if _, err := conn.Write(append(reset, reset...)); err != nil {
						return
					}
				}
				open = 0
			}
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	load := Load{Connections: 1, Streams: 4, Requests: 40, Timeout: time.Minute}
	got, err := Closed(t.Context(), listener.Addr().String(), load, func() []byte { return []byte{} })
	if err != nil || got.Failed != load.Requests || len(got.Took) != load.Requests {
		t.Errorf("got %d failed, %d times, %v; want %d of each", got.Failed, len(got.Took), err, load.Requests)
	}
	if n := <-most; n > load.Streams {
		t.Errorf("%d requests were open at once; want %d", n, load.Streams)
	}
}
