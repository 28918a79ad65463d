package server

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
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
