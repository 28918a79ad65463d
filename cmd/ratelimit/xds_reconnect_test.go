package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
)

// resetter stands in the place of a control plane, speaks HTTP/2, and breaks each stream at its
// opening.
type resetter struct {
	address string
	code    http2.ErrCode

	mu    sync.Mutex // guards opens
	opens []opening
}

type opening struct {
	at      time.Time
	streams int
}

func startResetter(t *testing.T, code http2.ErrCode) *resetter {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	x := &resetter{address: l.Addr().String(), code: code}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { defer conn.Close(); x.serve(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return x
}

// serve resets the streams of one connection until it ends.
func (x *resetter) serve(conn net.Conn) {
	x.mu.Lock()
	n := len(x.opens)
	x.opens = append(x.opens, opening{at: time.Now()})
	x.mu.Unlock()
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	framer := http2.NewFramer(conn, conn)
	err := framer.WriteSettings()
	for err == nil {
		var frame http2.Frame
		if frame, err = framer.ReadFrame(); err != nil {
			return
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.HeadersFrame:
			x.mu.Lock()
			x.opens[n].streams++
			x.mu.Unlock()
			err = framer.WriteRSTStream(f.StreamID, x.code)
		}
	}
}

func (x *resetter) all() []opening {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.opens)
}

// The original opens streams as fast as it can here (its pull request 503).
func TestStreamsThatAreResetAreNoHotLoop(t *testing.T) {
	for _, code := range []http2.ErrCode{http2.ErrCodeInternal, http2.ErrCodeNo, http2.ErrCodeRefusedStream, http2.ErrCodeEnhanceYourCalm, http2.ErrCodeCancel} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			x, begun := startResetter(t, code), time.Now()
			r := start(t, "", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+x.address,
				"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=20ms", "XDS_CLIENT_BACKOFF_MAX_INTERVAL=200ms", "XDS_CLIENT_BACKOFF_JITTER=false")
			// As many attempts as there are waits, which are told; and each comes when the waits before it
			// are over.
			waits := []time.Duration{20, 40, 80, 160, 200, 200}
			from := 0
			for i := range waits {
				waits[i] *= time.Millisecond
				_, from = r.log.Await(t, from, logtest.Has(fmt.Sprintf(`"next_attempt_in":"%v"`, waits[i])))
			}
			all := x.all() // more than were awaited, if this machine is busy
			if len(all) < len(waits) {
				t.Fatalf("connections: got %d, want %d", len(all), len(waits))
			}
			var due time.Duration
			for i, o := range all {
				// What a server says that it has not looked at gRPC sends once more at once.
				if i < len(waits) && (o.streams < 1 || o.streams > 2 || o.streams == 2 && code != http2.ErrCodeRefusedStream) {
					t.Errorf("connection %d had %d streams", i, o.streams)
				}
				if after := o.at.Sub(begun); after < due {
					t.Errorf("attempt %d came after %v, want %v or more", i, after, due)
				}
				due += waits[min(i, len(waits)-1)]
			}
			r.awaitPage(t, "http", "/healthcheck", http.StatusServiceUnavailable, "no configuration from xds server "+x.address+" yet: rpc error: code = ")
		})
	}
}
