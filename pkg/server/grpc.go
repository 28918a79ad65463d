package server

import (
	"context"
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

// legacyHealthName is the service name of envoyproxy/ratelimit in health checks.
const legacyHealthName = "ratelimit"

func (s *Server) newGRPC() *grpc.Server {
	options := append(s.grpcOptions(),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.KeepaliveParams(keepalive.ServerParameters{ // 0 means without a bound in both
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
	adminv1.RegisterAdminServiceServer(g, &admin{options: s.options, statuses: &s.service.statuses})
	s.addHealth(g, nil, adminv1.AdminService_ServiceDesc.ServiceName)
	return g
}

// grpcOptions returns the options of both gRPC servers. A stats handler is not among them: even an empty one costs 17 % of a call.
func (s *Server) grpcOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		// Envoy pings idle connections as often as its settings say; by default gRPC closes a connection with a second ping in two hours.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(s.options.MaxRequestBytes),
		grpc.UnaryInterceptor(s.service.recoverUnary),
		grpc.ChainStreamInterceptor(s.endStream, s.service.recoverStream),
	}
}

// addHealth adds reflection, and a health service for these names and "". The names serve while ready returns nil; without a ready
// they always serve.
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

// endStream ends a stream when GracefulStop is called, even if the handler waits: gRPC then cancels the context of the stream,
// and the handler returns.
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

// recoverUnary turns a panic in a handler into an error.
func (s *service) recoverUnary(
	ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (response any, err error) {
	defer s.statuses.recovered(&err)
	return handle(ctx, request)
}

// recoverStream turns a panic in a handler into an error.
func (s *service) recoverStream(
	service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler,
) (err error) {
	defer s.statuses.recovered(&err)
	return handle(service, stream)
}
