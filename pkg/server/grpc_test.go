package server

import (
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	reflectiongrpc "google.golang.org/grpc/reflection/grpc_reflection_v1"
	alphagrpc "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

const fullName = "envoy.service.ratelimit.v3.RateLimitService"

func TestHealthOfEveryNameUntilDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		client := healthgrpc.NewHealthClient(f.conn)
		check := func(name string, want healthgrpc.HealthCheckResponse_ServingStatus) {
			t.Helper()
			got, err := client.Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: name})
			if err != nil || got.GetStatus() != want {
				t.Errorf("health of %q: got %v, %v; want %v", name, got.GetStatus(), err, want)
			}
		}
		names := []string{"", "ratelimit", fullName}
		for _, name := range names {
			check(name, healthgrpc.HealthCheckResponse_SERVING)
		}
		if _, err := client.Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
			t.Errorf("health of a service that is not there: got %v; want NotFound", err)
		}
		f.server.Drain()
		for _, name := range names {
			check(name, healthgrpc.HealthCheckResponse_NOT_SERVING)
		}
		f.ask(t, descriptor("minute", "a")) // is answered as before
	})
}

func TestHealthDoesNotKnowTheServicesOfTheAdminAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		got, err := healthgrpc.NewHealthClient(f.conn).Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: "weir.admin.v1.AdminService"})
		if status.Code(err) != codes.NotFound {
			t.Errorf("got %v, %v; want NotFound", got.GetStatus(), err)
		}
	})
}

// A client that watches the health of a server never ends the stream; the server must not wait for
// it.
func TestStreamsEndWhenTheServerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		var next []func() error // of each stream
		for _, conn := range []*grpc.ClientConn{f.conn} {
			watch, err := healthgrpc.NewHealthClient(conn).Watch(t.Context(), new(healthgrpc.HealthCheckRequest))
			if err != nil {
				t.Fatal(err)
			}
			reflection, err := reflectiongrpc.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := reflection.Send(&reflectiongrpc.ServerReflectionRequest{
				MessageRequest: &reflectiongrpc.ServerReflectionRequest_ListServices{},
			}); err != nil {
				t.Fatal(err)
			}
			next = append(next,
				func() error { _, err := watch.Recv(); return err },
				func() error { _, err := reflection.Recv(); return err })
		}
		for _, receive := range next {
			if err := receive(); err != nil {
				t.Fatal(err)
			}
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
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		for service, conn := range map[string]*grpc.ClientConn{fullName: f.conn} {
			stream, err := reflectiongrpc.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ask := func(request *reflectiongrpc.ServerReflectionRequest) *reflectiongrpc.ServerReflectionResponse {
				t.Helper()
				if err := stream.Send(request); err != nil {
					t.Fatal(err)
				}
				response, err := stream.Recv()
				if err != nil {
					t.Fatal(err)
				}
				return response
			}
			var names []string
			for _, s := range ask(&reflectiongrpc.ServerReflectionRequest{
				MessageRequest: &reflectiongrpc.ServerReflectionRequest_ListServices{},
			}).GetListServicesResponse().GetService() {
				names = append(names, s.GetName())
			}
			for _, want := range []string{service, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"} {
				if !slices.Contains(names, want) {
					t.Errorf("services: got %v; want %s among them", names, want)
				}
			}
			files := ask(&reflectiongrpc.ServerReflectionRequest{
				MessageRequest: &reflectiongrpc.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service},
			}).GetFileDescriptorResponse().GetFileDescriptorProto()
			if len(files) == 0 || !describes(files[0], service) {
				t.Errorf("the file of %s: got %d files; want one that describes it", service, len(files))
			}
		}
		stream, err := alphagrpc.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		request := new(alphagrpc.ServerReflectionRequest) //nolint:staticcheck // deprecated, for older clients
		request.MessageRequest = &alphagrpc.ServerReflectionRequest_ListServices{}
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
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
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, func(o *Options) { o.Reflection = false })
		stream, err := reflectiongrpc.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.Unimplemented {
			t.Errorf("reflection: got %v; want Unimplemented", err)
		}
	})
}

// Envoy pings every connection_keepalive.interval, also connections without requests. gRPC by
// default hangs up after a few.
func TestPingsEachSecondOnAnIdleConnectionAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		listener := bufconn.Listen(1 << 20)
		go func() { _ = f.server.Serve(listener) }()
		conn, err := listener.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
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
