package server

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// legacyHealthName is the service name of envoyproxy/ratelimit in health checks.
const legacyHealthName = "ratelimit"

// Bounds of a connection that no setting changes.
const (
	maxHeaderBytes   = 16 << 10 // headers of a request, decoded. Envoy sends a few hundred bytes
	streamWindow     = 64 << 10 // bytes of a message that a client may send ahead
	connectionWindow = 1 << 20  // the same of all streams; gRPC gives it back before it reads the messages
	handshakeTimeout = 10 * time.Second
	keepaliveTime    = time.Minute // without a byte from the client; then it is asked with a ping
	keepaliveTimeout = 20 * time.Second
)

func (s *Server) newGRPC() *grpc.Server {
	secured := insecure.NewCredentials()
	if s.secure != nil {
		secured = s.secure
	}
	options := s.grpcOptions(secured, keepalive.ServerParameters{ // an age of 0 means without a bound
		MaxConnectionAge: s.options.MaxConnectionAge, MaxConnectionAgeGrace: s.options.MaxConnectionAgeGrace,
	})
	if s.options.GRPCGo { // else the workers are the lane's
		options = append(options, grpc.NumStreamWorkers(streamWorkers))
	}
	g := guarded{grpc.NewServer(options...), s.service}
	g.Server.RegisterService(s.service.describe(), s.service) // asks for itself
	s.addHealth(g, legacyHealthName, ratelimitv3.RateLimitService_ServiceDesc.ServiceName)
	return g.Server
}

// grpcOptions returns the options of the gRPC server. A stats handler is not among them: even an
// empty one costs 17 % of a call.
func (s *Server) grpcOptions(secured credentials.TransportCredentials, connections keepalive.ServerParameters) []grpc.ServerOption {
	connections.Time, connections.Timeout = keepaliveTime, keepaliveTimeout
	return []grpc.ServerOption{
		grpc.Creds(&followed{secured, s.service.bound}),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.KeepaliveParams(connections),
		// Envoy pings idle connections as often as its settings say; by default gRPC closes a connection
		// with a second ping in two hours.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(s.options.MaxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(uint32(s.options.MaxConcurrentStreams)),
		grpc.ConnectionTimeout(handshakeTimeout),
		// Windows of a fixed size. By default they grow with the bandwidth, which takes pings too.
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connectionWindow),
		grpc.UnaryInterceptor(s.service.recoverUnary),
		grpc.ChainStreamInterceptor(s.endStream, s.service.recoverStream, s.service.guardStream),
	}
}

// addHealth adds reflection, and a health service for these names and "". The names serve while
// Options.Ready returns nil; without a Ready they always serve.
func (s *Server) addHealth(g reflection.GRPCServer, names ...string) {
	s.health = health.NewServer()
	for _, name := range names {
		s.health.SetServingStatus(name, healthgrpc.HealthCheckResponse_SERVING)
	}
	if ready := s.options.Ready; ready != nil {
		healthgrpc.RegisterHealthServer(g, &readyHealth{Server: s.health, ready: ready, services: names})
	} else {
		healthgrpc.RegisterHealthServer(g, s.health)
	}
	if s.options.Reflection {
		reflection.Register(g) // v1 and v1alpha
	}
}

// endStream ends a stream when GracefulStop is called, even if the handler waits: gRPC then cancels
// the context of the stream, and the handler returns.
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
