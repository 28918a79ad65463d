package admin

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
	secure := newSecured(t)
	for name, test := range map[string]struct {
		tls  bool
		sent string
	}{
		"nothing":                 {false, ""},
		"half a preface":          {false, "PRI "},
		"a preface alone":         {false, http2.ClientPreface},
		"half a frame":            {false, http2.ClientPreface + "\x00\x00"},
		"a frame without payload": {false, http2.ClientPreface + "\x00\x00\x06\x04\x00\x00\x00\x00\x00"},
		"half a method":           {false, "G"},
		"half a head":             {false, "GET / HTTP/1.1\r\nHost: x\r\n"},
		"TLS: nothing":            {true, ""},
		"TLS: half a record":      {true, "\x16\x03\x01"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, watchedRules, func(o *Options) {
					if test.tls {
						o.Access.TLS = secure.server
					}
				})
				l := bufconn.Listen(1 << 10)
				ended := make(chan error, 1)
				go func() { ended <- f.admin.Serve(l) }()
				conn, err := l.DialContext(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				go func() { _, _ = io.Copy(io.Discard, conn) }()
				write(conn, test.sent)
				synctest.Wait()
				begun := time.Now()
				f.admin.GracefulStop()
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
