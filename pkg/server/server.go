// Package server puts a limiter on the wire: Envoy's RateLimitService v3 with health and reflection, the admin gRPC service,
// and the HTTP pages with metrics.
//
// The package turns bytes into a [limiter.Request], a [limiter.Verdict] into bytes, and errors into status codes; it decides
// nothing. The field numbers come from envoy/service/ratelimit/v3/rls.proto as of Envoy 1.40. Messages are read and written with
// protowire instead of generated code; a fuzz test compares the two.
//
// The package does not listen, read settings or know the kind of store: the caller gives listeners to the servers of
// [Server.GRPC], [Server.Admin] and [Server.HTTP].
package server

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/weirproxy/weir/pkg/store"
)

// Server is the services around one limiter. All methods are safe for concurrent use.
type Server struct {
	options  Options
	service  *service
	healths  []*health.Server // of both gRPC servers
	grpc     *grpc.Server
	admin    *grpc.Server
	http     http.Handler
	draining atomic.Bool

	finishing chan struct{} // closed when streams must end
	finish    func()        // closes finishing, once
}

// New returns a server that is ready to serve. New registers metrics with o.Registry. A missing option, an
// option out of bounds, and a registry with the same metrics are errors.
func New(o Options) (*Server, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	s := &Server{options: o, service: newService(o), finishing: make(chan struct{})}
	s.finish = sync.OnceFunc(func() { close(s.finishing) })
	if err := s.registerMetrics(); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	s.grpc = s.newGRPC()
	s.admin = s.newAdmin()
	s.http = s.pages()
	return s, nil
}

// GRPC returns the server of the rate limit service, health and reflection.
func (s *Server) GRPC() *grpc.Server { return s.grpc }

// Admin returns the server of the admin service, health and reflection. Clients need no credentials: the listener must be
// one that only operators reach.
func (s *Server) Admin() *grpc.Server { return s.admin }

// HTTP returns the pages: /healthcheck, /livez, /readyz, /metrics, /json, /rules and, with Options.Pprof, /debug/pprof/. The page
// / lists them.
func (s *Server) HTTP() http.Handler { return s.http }

// Drain makes every health answer NOT_SERVING, /readyz and /healthcheck 503, for good. Requests are answered as before.
func (s *Server) Drain() {
	s.draining.Store(true)
	for _, h := range s.healths {
		h.Shutdown()
	}
}

// LastRequest returns the time of the latest rate limit request, to the millisecond; before the first, the start of the server.
func (s *Server) LastRequest() time.Time { return s.service.latest.time() }

// Spent returns the times of rate limit requests, from the arrival to the answer.
func (s *Server) Spent() store.Durations { return s.service.spent.Snapshot() }

// Lost returns the number of rate limit requests that failed before the limiter, such as malformed ones.
func (s *Server) Lost() uint64 { return s.service.lost.Load() }

// GracefulStop stops both gRPC servers and returns when the calls in flight are answered. Streams (health's Watch, reflection)
// end at once with UNAVAILABLE. Close ends the wait.
func (s *Server) GracefulStop() {
	s.finish()
	var stopping sync.WaitGroup
	stopping.Go(s.grpc.GracefulStop)
	stopping.Go(s.admin.GracefulStop)
	stopping.Wait()
}

// Close stops both gRPC servers at once and cancels the calls in flight; GracefulStop finishes them. A second Close does nothing.
func (s *Server) Close() {
	s.grpc.Stop()
	s.admin.Stop()
}
