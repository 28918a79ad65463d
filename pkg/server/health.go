package server

import (
	"context"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/weirproxy/weir/internal/wire"
)

// readyPoll is the time between two looks at the readiness for clients that watch.
const readyPoll = time.Second

// readyHealth is gRPC's health service, where the listed services serve only while the server is
// ready. The service "", the server as a whole, is not listed: a client that checks "" may restart
// the server. Safe for concurrent use.
type readyHealth struct {
	*health.Server

	ready    func() error
	services []string
	mu       sync.Mutex                                   // held by update, so that an older state does not replace a newer one; guards state
	state    healthgrpc.HealthCheckResponse_ServingStatus // of all listed services; UNKNOWN before the first update
}

func (h *readyHealth) update() {
	h.mu.Lock()
	defer h.mu.Unlock()
	state := healthgrpc.HealthCheckResponse_SERVING
	if h.ready() != nil {
		state = healthgrpc.HealthCheckResponse_NOT_SERVING
	}
	if state == h.state {
		return // each SetServingStatus tells all clients that watch
	}
	h.state = state
	for _, name := range h.services {
		h.SetServingStatus(name, state) // has no effect after Drain
	}
}

func (h *readyHealth) Check(ctx context.Context, in *healthgrpc.HealthCheckRequest) (*healthgrpc.HealthCheckResponse, error) {
	h.update()
	return h.Server.Check(ctx, in)
}

func (h *readyHealth) List(ctx context.Context, in *healthgrpc.HealthListRequest) (*healthgrpc.HealthListResponse, error) {
	h.update()
	return h.Server.List(ctx, in)
}

// Watch implements the health service. The stream itself looks at the readiness until it ends.
func (h *readyHealth) Watch(in *healthgrpc.HealthCheckRequest, stream healthgrpc.Health_WatchServer) error {
	h.update()
	ended := make(chan struct{})
	var polling sync.WaitGroup
	defer polling.Wait()
	defer close(ended)
	polling.Go(func() {
		tick := time.NewTicker(readyPoll)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				h.update()
			}
		}
	})
	return h.Server.Watch(in, stream)
}

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
