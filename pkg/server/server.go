// Package server puts a limiter on the wire: Envoy's RateLimitService v3 with health and reflection, the admin gRPC service,
// and the HTTP pages with metrics.
//
// It turns bytes into a [limiter.Request] and a [limiter.Verdict] into bytes, and errors into status codes; it decides
// nothing itself. Field numbers are those of envoy/service/ratelimit/v3/rls.proto as of Envoy 1.40, read and written with
// protowire instead of generated code; a fuzz test holds the two to the same meaning.
//
// It does not listen by itself, read settings or know the kind of store: the caller gives listeners to the servers that
// [Server.GRPC], [Server.Admin] and [Server.HTTP] return.
package server

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/weirproxy/weir/internal/durations"
)

// Server is the services around one limiter. All methods are safe for concurrent use.
type Server struct {
	options  Options
	service  *service
	healths  []*health.Server // one for each of the gRPC servers
	grpc     *grpc.Server
	admin    *grpc.Server
	http     http.Handler
	draining atomic.Bool

	finishing chan struct{} // closed when streams are to end
	finish    func()        // closes finishing, once
}

// New returns a server that is ready to serve. It registers its metrics with o.Registry. It fails when an option is missing
// or out of bounds, or when the registry has such metrics already.
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
	s.http = s.newHTTP()
	return s, nil
}

// GRPC returns the server of the rate limit service, health and reflection.
func (s *Server) GRPC() *grpc.Server { return s.grpc }

// Admin returns the server of the admin service, health and reflection. It asks nobody who they are: give it a listener that
// only operators reach.
func (s *Server) Admin() *grpc.Server { return s.admin }

// HTTP returns the pages: /healthcheck, /livez, /readyz, /metrics, /json, /rules and, when asked for, /debug/pprof/.
func (s *Server) HTTP() http.Handler { return s.http }

// Drain makes every health answer NOT_SERVING, /readyz and /healthcheck 503. Requests are answered as before. There is no
// way back.
func (s *Server) Drain() {
	s.draining.Store(true)
	for _, h := range s.healths {
		h.Shutdown()
	}
}

// LastRequest returns when the latest rate limit request arrived, to the millisecond; the start of the server when there was
// none.
func (s *Server) LastRequest() time.Time { return s.service.latest.time() }

// Spent returns how long rate limit requests took, from their arrival to the answer.
func (s *Server) Spent() durations.Snapshot { return s.service.spent.Snapshot() }

// Lost returns how many rate limit requests failed without the limiter knowing of them, as those whose bytes are no request.
func (s *Server) Lost() uint64 { return s.service.lost.Load() }

// GracefulStop stops both gRPC servers and returns when the calls in flight are answered. Streams (health's Watch, reflection)
// would never end by themselves: they end at once with UNAVAILABLE. Close cuts the waiting short.
func (s *Server) GracefulStop() {
	s.finish()
	var stopping sync.WaitGroup
	stopping.Go(s.grpc.GracefulStop)
	stopping.Go(s.admin.GracefulStop)
	stopping.Wait()
}

// Close stops both gRPC servers at once, breaking what is in flight. Whoever wants to finish that calls GracefulStop first.
// Closing twice is harmless.
func (s *Server) Close() {
	s.grpc.Stop()
	s.admin.Stop()
}
