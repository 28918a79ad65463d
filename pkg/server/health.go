package server

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
)

// readyPoll is how often those who watch the health of a service are told whether it is ready.
const readyPoll = time.Second

// readyHealth is gRPC's health service, but some services serve only while the server is ready. "", the server as a whole, is
// none of them: who asks for that may be about to restart it. Safe for concurrent use.
type readyHealth struct {
	*health.Server

	ready    func() error
	services []string
	mu       sync.Mutex // held from the question to the note, so that no answer overwrites a later one
}

// note asks whether the server is ready, and keeps the answer for all services.
func (h *readyHealth) note() {
	h.mu.Lock()
	defer h.mu.Unlock()
	answer := healthgrpc.HealthCheckResponse_SERVING
	if h.ready() != nil {
		answer = healthgrpc.HealthCheckResponse_NOT_SERVING
	}
	for _, name := range h.services {
		h.SetServingStatus(name, answer) // has no effect once drained
	}
}

// Check implements the health service.
func (h *readyHealth) Check(ctx context.Context, in *healthgrpc.HealthCheckRequest) (*healthgrpc.HealthCheckResponse, error) {
	h.note()
	return h.Server.Check(ctx, in)
}

// List implements the health service.
func (h *readyHealth) List(ctx context.Context, in *healthgrpc.HealthListRequest) (*healthgrpc.HealthListResponse, error) {
	h.note()
	return h.Server.List(ctx, in)
}

// Watch implements the health service. Somebody must ask for those who only wait: the stream does, until it ends.
func (h *readyHealth) Watch(in *healthgrpc.HealthCheckRequest, stream healthgrpc.Health_WatchServer) error {
	h.note()
	ended := make(chan struct{})
	var asking sync.WaitGroup
	defer asking.Wait()
	defer close(ended)
	asking.Go(func() {
		tick := time.NewTicker(readyPoll)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				h.note()
			}
		}
	})
	return h.Server.Watch(in, stream)
}
