package server

import (
	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/weirproxy/weir/internal/wire"
)

// legacyHealthName is the service name of envoyproxy/ratelimit in health checks.
const legacyHealthName = "ratelimit"

// newGRPC returns the server of grpc-go: of all methods, or of the methods that the lane does not
// serve. The lane has the TLS and the age of a connection itself.
func (s *Server) newGRPC(secure *wire.Secure) *wire.GRPC {
	o := wire.GRPCOptions{
		Codec: newCodec(), MaxMessage: s.options.MaxRequestBytes, MaxStreams: s.options.MaxConcurrentStreams,
		Recovered: s.service.statuses.recovered,
	}
	if s.options.GRPCGo {
		o.Secure, o.Workers = secure, streamWorkers
		o.MaxAge, o.MaxAgeGrace = s.options.MaxConnectionAge, s.options.MaxConnectionAgeGrace
	}
	g := wire.NewGRPC(o)
	g.RegisterService(s.service.describe(), s.service)
	rlqsv3.RegisterRateLimitQuotaServiceServer(g, s.service.quotas)
	s.addHealth(g, legacyHealthName, ratelimitv3.RateLimitService_ServiceDesc.ServiceName)
	return g
}

// addHealth adds reflection, and a health service for these names and "". The names serve while
// Options.Ready returns nil; without a Ready they always serve.
func (s *Server) addHealth(g reflection.GRPCServer, names ...string) {
	s.health = health.NewServer()
	for _, name := range names {
		s.health.SetServingStatus(name, healthgrpc.HealthCheckResponse_SERVING)
	}
	healthgrpc.RegisterHealthServer(g, &readyHealth{Server: s.health, ready: s.options.Ready, services: names})
	if s.options.Reflection {
		reflection.Register(g) // v1 and v1alpha
	}
}
