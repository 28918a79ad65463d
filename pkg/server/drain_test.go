package server

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/test/bufconn"
)

// A stranger who begins a handshake and stops must not make a drain use its whole timeout. An
// honest client needs less than a second.
func TestAnUnfinishedHandshakeDelaysNoDrain(t *testing.T) {
	secure := newRotated(t)
	for name, test := range map[string]struct {
		tls  bool
		sent string
	}{
		"requests: nothing":                {false, ""},
		"requests: half a preface":         {false, "PRI "},
		"requests: a preface alone":        {false, http2.ClientPreface},
		"requests with TLS: nothing":       {true, ""},
		"requests with TLS: half a record": {true, "\x16\x03\x01"},
		"requests: half a first frame":     {false, http2.ClientPreface + "\x00\x00\x06\x04\x00\x00\x00\x00\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, spanRules, func(o *Options) {
					if test.tls {
						o.TLS = secure.keeper.Server(nil)
					}
				})
				_ = f.conn.Close()
				l := bufconn.Listen(1 << 10)
				ended := make(chan error, 1)
				go func() { ended <- f.server.Serve(l) }()
				conn, err := l.DialContext(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				go func() { _, _ = io.Copy(io.Discard, conn) }()
				write(conn, test.sent)
				synctest.Wait()
				begun := time.Now()
				f.server.GracefulStop()
				if took := time.Since(begun); took > 2*time.Second {
					t.Errorf("the stop took %v, want at most 2s", took)
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func write(conn net.Conn, text string) { _, _ = io.WriteString(conn, text) }
