package server

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	reflectiongrpc "google.golang.org/grpc/reflection/grpc_reflection_v1"
	alphagrpc "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/weirproxy/weir/internal/testing/must"
)

// switched is a readiness that a test switches.
type switched struct{ away atomic.Bool }

func (s *switched) ready() error {
	if s.away.Load() {
		return errors.New("the store is away")
	}
	return nil
}

func TestServicesServeWhileReadyAndTheServerAlways(t *testing.T) {
	onceForStores(t)
	synctest.Test(t, func(t *testing.T) {
		var s switched
		f := start(t, everything, func(o *Options) { o.Ready = s.ready })
		client := healthgrpc.NewHealthClient(f.conn)
		const serving, not = healthgrpc.HealthCheckResponse_SERVING, healthgrpc.HealthCheckResponse_NOT_SERVING
		type answers map[string]healthgrpc.HealthCheckResponse_ServingStatus
		check := func(when string, want answers) {
			t.Helper()
			got := make(answers)
			for _, name := range []string{"", "ratelimit", fullName} {
				answer := must.Get(client.Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: name}))(t)
				got[name] = answer.GetStatus()
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: Check (-want +got):\n%s", when, diff)
			}
			list := must.Get(client.List(t.Context(), new(healthgrpc.HealthListRequest)))(t)
			clear(got)
			for name, answer := range list.GetStatuses() {
				got[name] = answer.GetStatus()
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: List (-want +got):\n%s", when, diff)
			}
		}
		check("ready", answers{"": serving, "ratelimit": serving, fullName: serving})
		s.away.Store(true)
		check("not ready", answers{"": serving, "ratelimit": not, fullName: not})
		f.ask(t, descriptor("minute", "a")) // is answered as before
		for _, name := range []string{"other", "weir.admin.v1.AdminService"} {
			if _, err := client.Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: name}); status.Code(err) != codes.NotFound {
				t.Errorf("health of %s, which is not there: got %v; want NotFound", name, err)
			}
		}
		s.away.Store(false)
		check("ready again", answers{"": serving, "ratelimit": serving, fullName: serving})
		f.server.Drain()
		check("drained", answers{"": not, "ratelimit": not, fullName: not})
		f.ask(t, descriptor("minute", "a"))
	})
}

func TestWhoWatchesIsToldWithinASecond(t *testing.T) {
	onceForStores(t)
	synctest.Test(t, func(t *testing.T) {
		var s switched
		f := start(t, everything, func(o *Options) { o.Ready = s.ready })
		watch := must.Get(healthgrpc.NewHealthClient(f.conn).Watch(t.Context(), &healthgrpc.HealthCheckRequest{Service: "ratelimit"}))(t)
		await := func(want healthgrpc.HealthCheckResponse_ServingStatus) {
			t.Helper()
			began := time.Now()
			got, err := watch.Recv()
			if waited := time.Since(began); err != nil || got.GetStatus() != want || waited > time.Second {
				t.Errorf("got %v, %v after %v; want %v within a second", got.GetStatus(), err, waited, want)
			}
		}
		await(healthgrpc.HealthCheckResponse_SERVING)
		s.away.Store(true)
		await(healthgrpc.HealthCheckResponse_NOT_SERVING)
		s.away.Store(false)
		await(healthgrpc.HealthCheckResponse_SERVING)
		f.server.GracefulStop() // ends the streams, which the bubble waits for
	})
}

const fullName = "envoy.service.ratelimit.v3.RateLimitService"

// A client that watches the health of a server never ends the stream; the server must not wait for
// it.
func TestStreamsEndWhenTheServerStops(t *testing.T) {
	onceForStores(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		watch := must.Get(healthgrpc.NewHealthClient(f.conn).Watch(t.Context(), new(healthgrpc.HealthCheckRequest)))(t)
		reflection := must.Get(reflectiongrpc.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context()))(t)
		if err := reflection.Send(&reflectiongrpc.ServerReflectionRequest{
			MessageRequest: &reflectiongrpc.ServerReflectionRequest_ListServices{},
		}); err != nil {
			t.Fatal(err)
		}
		next := []func() error{
			func() error { _, err := watch.Recv(); return err },
			func() error { _, err := reflection.Recv(); return err },
		}
		for _, receive := range next {
			must.Do(t, receive())
		}
		began := time.Now()
		cut := time.AfterFunc(time.Minute, f.server.Close)
		defer cut.Stop()
		f.server.GracefulStop()
		if got := time.Since(began); got != 0 {
			t.Errorf("GracefulStop: got after %v; want at once", got)
		}
		for i, receive := range next {
			if err := receive(); status.Code(err) != codes.Unavailable || status.Convert(err).Message() != "shutting down" {
				t.Errorf("stream %d: got %v; want UNAVAILABLE: shutting down", i, err)
			}
		}
	})
}

func TestReflectionDescribesTheServices(t *testing.T) {
	onceForStores(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		stream := must.Get(reflectiongrpc.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context()))(t)
		ask := func(request *reflectiongrpc.ServerReflectionRequest) *reflectiongrpc.ServerReflectionResponse {
			t.Helper()
			must.Do(t, stream.Send(request))
			response := must.Get(stream.Recv())(t)
			return response
		}
		var names []string
		for _, s := range ask(&reflectiongrpc.ServerReflectionRequest{
			MessageRequest: &reflectiongrpc.ServerReflectionRequest_ListServices{},
		}).GetListServicesResponse().GetService() {
			names = append(names, s.GetName())
		}
		for _, want := range []string{fullName, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"} {
			if !slices.Contains(names, want) {
				t.Errorf("services: got %v; want %s among them", names, want)
			}
		}
		files := ask(&reflectiongrpc.ServerReflectionRequest{
			MessageRequest: &reflectiongrpc.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: fullName},
		}).GetFileDescriptorResponse().GetFileDescriptorProto()
		if len(files) == 0 || !describes(files[0], fullName) {
			t.Errorf("the file of %s: got %d files; want one that describes it", fullName, len(files))
		}
		alpha := must.Get(alphagrpc.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context()))(t)
		request := new(alphagrpc.ServerReflectionRequest) //nolint:staticcheck // deprecated, for older clients
		request.MessageRequest = &alphagrpc.ServerReflectionRequest_ListServices{}
		must.Do(t, alpha.Send(request))
		if _, err := alpha.Recv(); err != nil {
			t.Errorf("v1alpha: got %v; want an answer", err)
		}
	})
}

// describes reports whether a FileDescriptorProto holds a service.
func describes(file []byte, service string) bool {
	d := new(descriptorpb.FileDescriptorProto)
	return proto.Unmarshal(file, d) == nil && slices.ContainsFunc(d.GetService(), func(s *descriptorpb.ServiceDescriptorProto) bool {
		return d.GetPackage()+"."+s.GetName() == service
	})
}

func TestReflectionIsAnOption(t *testing.T) {
	onceForStores(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, func(o *Options) { o.Reflection = false })
		stream := must.Get(reflectiongrpc.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context()))(t)
		if _, err := stream.Recv(); status.Code(err) != codes.Unimplemented {
			t.Errorf("reflection: got %v; want Unimplemented", err)
		}
	})
}

// Envoy pings every connection_keepalive.interval, also connections without requests. gRPC by
// default hangs up after a few.
func TestPingsEachSecondOnAnIdleConnectionAreAnswered(t *testing.T) {
	onceForStores(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		listener := bufconn.Listen(1 << 20)
		go func() { _ = f.server.Serve(listener) }()
		conn := must.Get(listener.DialContext(t.Context()))(t)
		defer conn.Close()
		if err := pingEachSecond(conn, 100); err != nil {
			t.Error(err)
		}
	})
}

// pingEachSecond pings n times and waits for the answer of each.
func pingEachSecond(conn net.Conn, n byte) error {
	framer := http2.NewFramer(conn, conn)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return err
	}
	if err := framer.WriteSettings(); err != nil {
		return err
	}
	for i := range n {
		if err := framer.WritePing(false, [8]byte{i}); err != nil {
			return err
		}
		for answered := false; !answered; {
			frame, err := framer.ReadFrame()
			if err != nil {
				return err
			}
			switch frame := frame.(type) {
			case *http2.PingFrame:
				answered = frame.IsAck() && frame.Data == [8]byte{i}
			case *http2.GoAwayFrame:
				return errors.New("the server hangs up: " + string(frame.DebugData()))
			}
		}
		time.Sleep(time.Second)
	}
	return nil
}
