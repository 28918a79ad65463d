package admin

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
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
