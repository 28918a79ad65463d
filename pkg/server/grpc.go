package server

import (
	"context"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// legacyHealthName is what envoyproxy/ratelimit calls itself towards health checks.
const legacyHealthName = "ratelimit"

func (s *Server) newGRPC() *grpc.Server {
	options := append(s.grpcOptions(),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.KeepaliveParams(keepalive.ServerParameters{ // 0 is for ever in both
			MaxConnectionAge: s.options.MaxConnectionAge, MaxConnectionAgeGrace: s.options.MaxConnectionAgeGrace,
		}),
	)
	if s.options.TLS != nil {
		options = append(options, grpc.Creds(newSecured(s.options.TLS, s.options.Logger)))
	}
	g := grpc.NewServer(options...)
	g.RegisterService(s.service.describe(), s.service)
	s.addHealth(g, s.options.Ready, legacyHealthName, ratelimitv3.RateLimitService_ServiceDesc.ServiceName)
	return g
}

func (s *Server) newAdmin() *grpc.Server {
	g := grpc.NewServer(s.grpcOptions()...)
	adminv1.RegisterAdminServiceServer(g, &admin{options: s.options, faults: &s.service.faults})
	s.addHealth(g, nil, adminv1.AdminService_ServiceDesc.ServiceName)
	return g
}

// grpcOptions returns what both gRPC servers have in common. There is no stats handler: even an empty one costs 17 % of a
// call.
func (s *Server) grpcOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		// Envoy pings idle connections as often as it is told to; by default gRPC takes more than one in two hours for an attack.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(s.options.MaxRequestBytes),
		grpc.UnaryInterceptor(s.service.recoverUnary),
		grpc.ChainStreamInterceptor(s.endStream, s.service.recoverStream),
	}
}

// addHealth adds a health service, for these names and "", and reflection. The names serve while ready returns nil; nil is
// always.
func (s *Server) addHealth(g *grpc.Server, ready func() error, names ...string) {
	h := health.NewServer()
	for _, name := range names {
		h.SetServingStatus(name, healthgrpc.HealthCheckResponse_SERVING)
	}
	s.healths = append(s.healths, h)
	if ready != nil {
		healthgrpc.RegisterHealthServer(g, &readyHealth{Server: h, ready: ready, services: names})
	} else {
		healthgrpc.RegisterHealthServer(g, h)
	}
	if s.options.Reflection {
		reflection.Register(g) // v1 and v1alpha
	}
}

// endStream ends a stream when GracefulStop is called, whatever its handler waits for: gRPC then cancels the stream's context,
// which ends the handler.
func (s *Server) endStream(
	service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler,
) error {
	handled := make(chan error, 1)
	go func() { handled <- handle(service, stream) }()
	select {
	case err := <-handled:
		return err
	case <-s.finishing:
		return status.Error(codes.Unavailable, "shutting down")
	}
}

// recoverUnary keeps a panic in a handler from ending the process.
func (s *service) recoverUnary(
	ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (response any, err error) {
	defer func() {
		if v := recover(); v != nil {
			response, err = nil, s.faults.status(&panicError{v, debug.Stack()})
		}
	}()
	return handle(ctx, request)
}

// recoverStream keeps a panic in a handler from ending the process.
func (s *service) recoverStream(
	service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler,
) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = s.faults.status(&panicError{v, debug.Stack()})
		}
	}()
	return handle(service, stream)
}
