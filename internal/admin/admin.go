// Package admin shows a running Weir to people, and lets them steer it. The admin service and its
// page have an address of their own. The pages of HTTP stand beside them.
//
// The admin address stands behind one door, [Server.Serve], with one guard: the same token, and the
// same bound of guesses, for gRPC and for browsers. The package decides no request. The rooms
// behind the door are page (the admin page), watch (answered requests), grants, and render (texts
// for people).
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/health"

	"github.com/weirproxy/weir/internal/admin/page"
	"github.com/weirproxy/weir/internal/admin/watch"
	"github.com/weirproxy/weir/internal/wire"
	"github.com/weirproxy/weir/internal/zones"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/quota"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Service is the rate limit service that people see. All methods must be safe for concurrent use.
type Service interface {
	Observe(o limiter.Observer) (remove func()) // begins to observe all answered requests
	Spent() store.Durations                     // the times of requests
	Lost() uint64                               // requests that failed before the limiter
	Quotas() quota.Picture                      // the limits that are divided among Envoys

	// ObserveQuotas begins to observe reports and assignments of these limits.
	ObserveQuotas(see func(*quota.Event)) (remove func())
	JSON() http.HandlerFunc   // the page /json; nil: no such page
	Status(err error) error   // an error of Limiter as a gRPC status
	Panicked(value any) error // logs a recovered panic, as a gRPC status
}

// Options is the options of New. Limiter, Logger, Registry and Service must be set; every other
// field may be zero. All functions must be safe for concurrent use.
type Options struct {
	Limiter  *limiter.Limiter
	Logger   *slog.Logger
	Registry *prometheus.Registry // with the metrics of the page /metrics. New adds its own
	Service  Service

	Ready   func() error                    // the reason why requests should not come now; nil: always ready
	Sources []string                        // the origins of rules as the operator named them, for /rules and ListRules
	Loads   func() *adminv1.RulesPage       // the outcome of loading rules, a new message each time; nil: the rules of Limiter count as loaded
	Reload  func(ctx context.Context) error // loads the rules again; nil: the admin service answers UNIMPLEMENTED
	Grants  Grants                          // keeps the grants of Limiter; nil: the admin service answers UNIMPLEMENTED
	Memory  func() memstore.Stats           // of the store in memory: the only store, or the substitute of a remote one; nil: not shown
	Store   func() *adminv1.StoreStatus     // of a remote store, a new message each time; nil: the store is in memory

	LogLevel   *slog.LevelVar // of Logger, for SetLogLevel; nil: the level does not change
	LogDenials float64        // requests per second that were answered OVER_LIMIT and are logged, at most MaxLogDenials; 0 logs none

	Version  string // of the program; "" means unknown
	Revision string // of its source; "" means unknown

	Reflection bool   // gRPC reflection on the admin address
	Pprof      bool   // /debug/pprof/ on the HTTP pages, and on the debug pages for all clients
	Access     Access // the clients of Serve
}

func (o *Options) loads() *adminv1.RulesPage {
	now := new(adminv1.RulesPage)
	if o.Loads != nil {
		now = o.Loads()
	}
	now.Sources, now.Zones = o.Sources, zones.Version
	return now
}

// Server is the admin service and all pages. All methods are safe for concurrent use.
type Server struct {
	options  Options
	guard    *guard
	grpc     *wire.GRPC
	health   *health.Server
	http     *wire.HTTP // of the page, on the listeners of Serve
	people   *page.Page
	hub      *watch.Hub // of the watchers
	denials  denials
	pages    http.Handler
	at       atomic.Pointer[net.TCPAddr] // of Serve; nil before
	draining atomic.Bool
}

// New returns a Server that is ready to serve. A missing option, an option out of bounds, and a
// registry with the same metrics are errors. The caller closes the Server.
func New(o Options) (*Server, error) {
	if o.Limiter == nil || o.Logger == nil || o.Registry == nil || o.Service == nil {
		return nil, errors.New("limiter, logger, registry, service: must not be nil")
	}
	if !validRate(o.LogDenials) {
		return nil, fmt.Errorf("log denials: %v: must be from 0 to %d per second", o.LogDenials, MaxLogDenials)
	}
	s := &Server{options: o}
	if err := o.Registry.Register(s.newCollector()); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	var err error
	if s.hub, err = watch.New(watch.Options{
		Rules: o.Limiter.Rules, Observe: o.Service.Observe, ObserveQuotas: o.Service.ObserveQuotas,
	}); err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	s.denials.hub, s.denials.logger = s.hub, o.Logger
	if err := s.newDoor(); err != nil {
		return nil, fmt.Errorf("admin page: %w", err)
	}
	s.pages = s.newPages()
	if err := s.denials.set(o.LogDenials); err != nil {
		return nil, fmt.Errorf("log denials: %w", err)
	}
	return s, nil
}

// HTTP returns the pages: /healthcheck, /livez, /readyz, /metrics, /json, /rules and, with
// Options.Pprof, /debug/pprof/. The page / lists them.
func (s *Server) HTTP() http.Handler { return s.pages }

// Drain makes health answer NOT_SERVING, /readyz and /healthcheck 503, for good. Requests are
// answered as before.
func (s *Server) Drain() {
	s.draining.Store(true)
	s.health.Shutdown()
}

// GracefulStop stops the servers of Serve and returns when the calls in flight are answered.
// Streams end at once with UNAVAILABLE. Close ends the wait.
func (s *Server) GracefulStop() {
	s.grpc.EndStreams()
	s.people.Close()
	var stopping sync.WaitGroup
	stopping.Go(s.grpc.GracefulStop)
	stopping.Go(func() { _ = s.http.Shutdown(context.Background()) }) // Close ends the wait
	stopping.Wait()
	s.denials.close()
}

// Close stops the servers of Serve at once and cancels the calls in flight; GracefulStop finishes
// them. A second Close does nothing.
func (s *Server) Close() {
	s.grpc.Stop()
	s.people.Close()
	_ = s.http.Close()
	s.denials.close()
}
