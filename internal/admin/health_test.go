package admin

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// switched is a readiness that a test switches.
type switched struct{ away atomic.Bool }

func (s *switched) ready() error {
	if s.away.Load() {
		return errors.New("the store is away")
	}
	return nil
}

func TestPagesOfReadinessAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s switched
		f := start(t, adminRules, func(o *Options) { o.Ready = s.ready })
		type page struct {
			Code int
			Body string
		}
		check := func(when string, want map[string]page) {
			t.Helper()
			got := make(map[string]page)
			for path := range want {
				answer := f.fetch(t, "GET", path, "")
				got[path] = page{answer.Code, answer.Body.String()}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		ok, line := page{200, "OK"}, page{200, "OK\n"}
		check("ready", map[string]page{"/readyz": line, "/livez": line, "/healthcheck": ok})
		s.away.Store(true)
		check("not ready", map[string]page{"/readyz": {503, "the store is away\n"}, "/livez": line, "/healthcheck": ok})
		f.admin.Drain()
		check("drained", map[string]page{"/readyz": {503, "draining\n"}, "/livez": line, "/healthcheck": {503, "draining"}})
	})
}

func TestTheAdminAddressTellsTheHealthOfItsOwnServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, adminRules, nil)
		client := healthgrpc.NewHealthClient(dial(t, f.admin.Serve))
		check := func(name string) (healthgrpc.HealthCheckResponse_ServingStatus, codes.Code) {
			got, err := client.Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: name})
			return got.GetStatus(), status.Code(err)
		}
		own := []string{"", "weir.admin.v1.AdminService"}
		for _, name := range own {
			if got, code := check(name); got != healthgrpc.HealthCheckResponse_SERVING {
				t.Errorf("%q: got %v, %v; want SERVING", name, got, code)
			}
		}
		if got, code := check("ratelimit"); code != codes.NotFound {
			t.Errorf("ratelimit: got %v, %v; want NotFound", got, code)
		}
		f.admin.Drain()
		for _, name := range own {
			if got, code := check(name); got != healthgrpc.HealthCheckResponse_NOT_SERVING {
				t.Errorf("%q when drained: got %v, %v; want NOT_SERVING", name, got, code)
			}
		}
	})
}

// A client that watches health never ends the stream; the server must not wait for it.
func TestStreamsEndWhenTheAdminServerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, adminRules, nil)
		watch, err := healthgrpc.NewHealthClient(dial(t, f.admin.Serve)).Watch(t.Context(), new(healthgrpc.HealthCheckRequest))
		if err == nil {
			_, err = watch.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		f.admin.GracefulStop()
		if took := time.Since(begun); took != 0 {
			t.Errorf("GracefulStop took %v; want no wait", took)
		}
		if _, err := watch.Recv(); status.Code(err) != codes.Unavailable || status.Convert(err).Message() != "shutting down" {
			t.Errorf("got %v; want UNAVAILABLE: shutting down", err)
		}
	})
}

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
