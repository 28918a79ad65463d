package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirproxy/weir/pkg/limiter"
)

// DefaultMaxRequestBytes is the bound of Options.MaxRequestBytes where none is given.
const DefaultMaxRequestBytes = 4 << 20

// Options is what New needs. Limiter, Logger and Registry must be given; all else may be zero.
type Options struct {
	Limiter  *limiter.Limiter
	Logger   *slog.Logger
	Registry *prometheus.Registry            // must not have Go or process metrics yet: New adds them
	Stats    func() StoreStats               // the figures of memory, for metrics; nil: there are none. Safe for concurrent use
	Remote   func() RemoteStats              // those of a store elsewhere, for metrics; nil: there is none. Safe for concurrent use
	Ready    func() error                    // why requests should better not come now, nil when they should; nil: always. Safe for concurrent use
	Sources  []string                        // where rules come from, as named to the program, for /rules and ListRules
	Reload   func(ctx context.Context) error // loads the rules again; nil: the admin service says UNIMPLEMENTED

	MaxRequestBytes int  // largest message, gRPC or HTTP; 0 means DefaultMaxRequestBytes
	Reflection      bool // gRPC reflection, on both gRPC servers
	Pprof           bool // /debug/pprof/ on the HTTP pages

	MaxConnectionAge      time.Duration // of GRPC: when a client is asked to connect anew, give or take a tenth; 0: never
	MaxConnectionAgeGrace time.Duration // how long it has for that before the connection is broken; 0: for ever

	TLS *tls.Config // of the connections of GRPC that come by no Unix socket; nil: they are plain. HTTP and Admin are none of its business

	Tracer     trace.Tracer                  // makes a span of each request; nil: there are none, and they cost nothing
	Propagator propagation.TextMapPropagator // reads from a request which span it belongs to; nil: it belongs to none

	Headers         Headers
	DynamicMetadata bool // answers carry dynamic metadata: the request and the metadata of the rules that passed
}

// StoreStats is the figures at one moment of a store in this process: the one that is asked, or what stands in for one elsewhere. Its fields are those of memstore.Stats, so that one converts to the other.
type StoreStats struct {
	Keys        int    // remembered now
	MaxKeys     int    // the bound
	Evicted     uint64 // forgotten before their time to make room
	Swept       uint64 // freed as they were as if never used
	FullAllowed uint64 // new keys decided without being remembered, as the store was full
	FullDenied  uint64 // new keys denied as the store was full
}

// Headers chooses the headers that Envoy is asked to add to the response to the client, whether it passes or not. The zero
// value asks for none. X-RateLimit-* are none of ours: Envoy makes those itself.
type Headers struct {
	RateLimit bool   // three headers about the limit nearest to its end, as envoyproxy/ratelimit has them
	Limit     string // name of the one with the hits per period; "" means RateLimit-Limit
	Remaining string // name of the one with the hits that are left; "" means RateLimit-Remaining
	Reset     string // name of the one with the seconds until it resets; "" means RateLimit-Reset

	IETF       bool // RateLimit and RateLimit-Policy, of draft-ietf-httpapi-ratelimit-headers-11
	RetryAfter bool // retry-after, on what is over limit only: seconds, at least 1
}

// complete returns the options with defaults filled in, or everything that is wrong with them.
func (o Options) complete() (Options, error) {
	var errs []error
	if o.Limiter == nil {
		errs = append(errs, errors.New("limiter: must not be nil"))
	}
	if o.Logger == nil {
		errs = append(errs, errors.New("logger: must not be nil"))
	}
	if o.Registry == nil {
		errs = append(errs, errors.New("registry: must not be nil"))
	}
	if o.MaxRequestBytes < 0 {
		errs = append(errs, fmt.Errorf("max request bytes: %d: must be at least 1", o.MaxRequestBytes))
	}
	if o.MaxConnectionAge < 0 || o.MaxConnectionAgeGrace < 0 {
		errs = append(errs, fmt.Errorf("max connection age %v, its grace %v: must not be negative", o.MaxConnectionAge, o.MaxConnectionAgeGrace))
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = DefaultMaxRequestBytes
	}
	errs = append(errs, o.Headers.complete()...)
	return o, errors.Join(errs...)
}

func (h *Headers) complete() (errs []error) {
	for _, name := range []struct {
		is        *string
		of, usual string
	}{
		{&h.Limit, "limit header", "RateLimit-Limit"},
		{&h.Remaining, "remaining header", "RateLimit-Remaining"},
		{&h.Reset, "reset header", "RateLimit-Reset"},
	} {
		if *name.is == "" {
			*name.is = name.usual
		}
		if !isToken(*name.is) {
			errs = append(errs, fmt.Errorf("%s: %q: must be the name of an HTTP header: letters, digits and !#$%%&'*+-.^_`|~", name.of, *name.is))
		}
	}
	return errs
}

// any reports whether answers carry headers.
func (h *Headers) any() bool { return h.RateLimit || h.IETF || h.RetryAfter }

// isToken reports whether s is a token of RFC 9110, section 5.6.2, as the name of a header is.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// streamWorkers is how many goroutines wait for gRPC calls; a call that finds all of them at work gets one of its own, which
// costs it the growth of a stack. Measured with 200 calls at once (internal/bench/grpcbench) against a bare server: 0.70 of
// its CPU with none, 0.60 with 32, 0.53 with 128, 0.50 with 256; with one call at once they make no difference. Each keeps
// some 8 KiB of stack.
const streamWorkers = 256
