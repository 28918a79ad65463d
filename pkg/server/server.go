// Package server puts a limiter on the wire: Envoy's RateLimitService v3 with health and
// reflection, and the same service in JSON.
//
// The package turns bytes into a [limiter.Request], a [limiter.Verdict] into bytes, and errors into
// status codes; it decides nothing. The field numbers come from
// envoy/service/ratelimit/v3/rls.proto as of Envoy 1.40. Messages are read and written with
// protowire instead of generated code; a fuzz test compares the two.
//
// The package does not listen, read settings or depend on the kind of store. The caller gives
// listeners to [Server.Serve], and serves [Server.JSON].
package server

import (
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc/health"

	"github.com/weirproxy/weir/internal/wire"
	"github.com/weirproxy/weir/internal/wire/laneserver"
	"github.com/weirproxy/weir/pkg/store"
)

// Server is the services around one limiter. All methods are safe for concurrent use.
type Server struct {
	options Options
	service *service
	health  *health.Server
	grpc    *wire.GRPC
	lane    *laneserver.Server // nil: grpc alone
	others  func()             // serves the other methods of lane, once
	end     func()             // ends workers and quotas, once
}

// New returns a server that is ready to serve. New registers metrics with o.Registry. A missing
// option, an option out of bounds, and a registry with the same metrics are errors.
func New(o Options) (*Server, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	s := &Server{options: o, service: newService(o)}
	s.end = sync.OnceFunc(func() { s.service.workers.close(); s.service.quotas.stop() })
	if err := s.registerMetrics(); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	var secure *wire.Secure
	if o.TLS != nil {
		secure = wire.NewSecure(o.TLS, o.Logger)
	}
	s.grpc = s.newGRPC(secure)
	if !o.GRPCGo {
		if s.lane, err = s.newLane(secure); err != nil {
			return nil, fmt.Errorf("lane: %w", err)
		}
		s.others = sync.OnceFunc(func() { go func() { _ = s.grpc.Serve(s.lane.Others()) }() }) // the listener has no errors
	}
	return s, nil
}

// Serve serves the rate limit service, health and reflection on l, and closes l in the end. The
// result is nil after GracefulStop and Close, also when these came before.
func (s *Server) Serve(l net.Listener) error {
	if s.lane != nil {
		s.others()
		return s.lane.Serve(l)
	}
	return s.grpc.Serve(l)
}

// Drain makes every health answer NOT_SERVING, for good. Requests are answered as before.
func (s *Server) Drain() { s.health.Shutdown() }

// Status returns an error of Limiter as a gRPC status, and logs the failures of this server, at
// most one a second.
func (s *Server) Status(err error) error { return s.service.statuses.status(err) }

// Panicked returns the gRPC status of a recovered panic, and logs the panic, at most one a second.
// A deferred function calls it, so that the log has the stack of the panic.
func (s *Server) Panicked(value any) error {
	return s.service.statuses.status(&panicError{value, debug.Stack()})
}

// LastRequest returns the time of the latest rate limit request, to the millisecond; before the
// first, the start of the server.
func (s *Server) LastRequest() time.Time { return s.service.latest.time() }

// Spent returns the times of rate limit requests, from the arrival to the answer.
func (s *Server) Spent() store.Durations { return s.service.spent.Snapshot() }

// Lost returns the number of rate limit requests that failed before the limiter, such as malformed
// ones.
func (s *Server) Lost() uint64 { return s.service.lost.Load() }

// GracefulStop stops the server and returns when the calls in flight are answered. Streams
// (health's Watch, reflection) end at once with UNAVAILABLE. Close ends the wait.
func (s *Server) GracefulStop() {
	s.grpc.EndStreams()
	if s.lane != nil {
		s.lane.GracefulStop() // before the server behind it, which has calls of the same connections
	}
	s.grpc.GracefulStop()
}

// Close stops the server at once and cancels the calls in flight; GracefulStop finishes
// them. A second Close does nothing.
func (s *Server) Close() {
	if s.lane != nil {
		s.lane.Stop()
	}
	s.grpc.Stop()
	s.end()
}
