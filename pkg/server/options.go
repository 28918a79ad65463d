package server

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/net/http/httpguts"

	"github.com/weirproxy/weir/pkg/limiter"
)

// The bounds of Options where none are given.
const (
	// DefaultMaxRequestBytes is two hundred times a usual request of Envoy.
	DefaultMaxRequestBytes = 64 << 10
	// DefaultMaxConcurrentStreams is the default of Envoy's max_requests. Before Envoy knows the bound
	// of a new connection it may send as many requests at once, and it does not repeat refused ones.
	DefaultMaxConcurrentStreams = 1024
	// DefaultMaxBytesInFlight leaves room for a million keys in a container of 256 MiB. 1000 requests
	// of Envoy that wait for a store take 4 MB.
	DefaultMaxBytesInFlight = 32 << 20
)

// messagesInFlight is the smallest number of MaxBytesInFlight for each byte of MaxRequestBytes: two
// of the largest requests fit.
const messagesInFlight = 16

// Options is the options of New. Limiter, Logger and Registry must be set; every other field may be
// zero.
type Options struct {
	Limiter  *limiter.Limiter
	Logger   *slog.Logger
	Registry *prometheus.Registry // must not have Go or process metrics yet: New adds them
	Ready    func() error         // the reason why requests should not come now; a nil function: always ready. Safe for concurrent use

	MaxRequestBytes      int // largest message, gRPC or HTTP; 0 means DefaultMaxRequestBytes
	MaxConcurrentStreams int // open streams of one connection, at most 2^20; 0 means DefaultMaxConcurrentStreams
	MaxBytesInFlight     int // memory of open streams and requests of all gRPC connections together; 0 means DefaultMaxBytesInFlight

	Reflection bool // gRPC reflection
	JSON       JSON // clients of /json

	MaxConnectionAge      time.Duration // of Serve: age at which clients must connect again, plus or minus a tenth; 0: no bound
	MaxConnectionAgeGrace time.Duration // time for that until the server closes the connection; 0: no bound

	// GRPCGo: Serve answers ShouldRateLimit with gRPC's library too, which takes more CPU. Else the
	// library serves the other methods alone (decision 37).
	GRPCGo bool

	// Parts is the Redis in which RateLimitQuotaService divides limits among processes; nil: this
	// process has them whole.
	Parts Scripts

	TLS *tls.Config // of Serve, except on Unix sockets; nil: no TLS. HTTP has no TLS

	Tracer     trace.Tracer                  // makes a span of each request; nil: no spans
	Propagator propagation.TextMapPropagator // reads the parent span from a request; nil: no parents

	Headers Headers
	// Original: an answer says no more than one of envoyproxy/ratelimit. /json leaves out zeros.
	Original        bool
	DynamicMetadata bool // answers carry dynamic metadata: the request and the metadata of the rules that passed. Groups with room are always there
}

// Headers chooses the headers that Envoy adds to the response to the client, also to one that
// passes. The zero value adds no headers. Envoy itself makes X-RateLimit-*.
type Headers struct {
	RateLimit bool   // three headers about the limit nearest to its end, as in envoyproxy/ratelimit
	Limit     string // name of the header with the hits per period, or the burst if it is larger; "" means RateLimit-Limit
	Remaining string // name of the header with the remaining hits; "" means RateLimit-Remaining
	Reset     string // name of the header with the seconds until the reset; "" means RateLimit-Reset

	IETF       bool // RateLimit and RateLimit-Policy, of draft-ietf-httpapi-ratelimit-headers-11
	RetryAfter bool // retry-after, only over limit: seconds, at least 1; not for hits that never pass
}

// complete returns the options with defaults, or every mistake in them.
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
	if o.Ready == nil {
		o.Ready = func() error { return nil }
	}
	if o.MaxRequestBytes < 0 {
		errs = append(errs, fmt.Errorf("max request bytes: %d: must be at least 1", o.MaxRequestBytes))
	}
	if o.MaxConcurrentStreams < 0 || o.MaxConcurrentStreams > 1<<20 {
		errs = append(errs, fmt.Errorf("max concurrent streams: %d: must be from 1 to %d", o.MaxConcurrentStreams, 1<<20))
	}
	if o.MaxBytesInFlight < 0 {
		errs = append(errs, fmt.Errorf("max bytes in flight: %d: must be at least 1", o.MaxBytesInFlight))
	}
	if o.MaxConnectionAge < 0 || o.MaxConnectionAgeGrace < 0 {
		errs = append(errs, fmt.Errorf("max connection age %v, its grace %v: must not be negative", o.MaxConnectionAge, o.MaxConnectionAgeGrace))
	}
	o.MaxRequestBytes = cmp.Or(o.MaxRequestBytes, DefaultMaxRequestBytes)
	o.MaxConcurrentStreams = cmp.Or(o.MaxConcurrentStreams, DefaultMaxConcurrentStreams)
	o.MaxBytesInFlight = cmp.Or(o.MaxBytesInFlight, DefaultMaxBytesInFlight)
	if least := messagesInFlight * o.MaxRequestBytes; o.MaxRequestBytes > 0 && o.MaxBytesInFlight > 0 && o.MaxBytesInFlight < least {
		errs = append(errs, fmt.Errorf("max bytes in flight: %d: must be at least %d, %d times max request bytes",
			o.MaxBytesInFlight, least, messagesInFlight))
	}
	errs = append(errs, o.JSON.check())
	errs = append(errs, o.Headers.complete()...)
	return o, errors.Join(errs...)
}

func (h *Headers) complete() (errs []error) {
	for _, name := range []struct {
		value       *string
		of, initial string
	}{
		{&h.Limit, "limit header", "RateLimit-Limit"},
		{&h.Remaining, "remaining header", "RateLimit-Remaining"},
		{&h.Reset, "reset header", "RateLimit-Reset"},
	} {
		*name.value = cmp.Or(*name.value, name.initial)
		if !httpguts.ValidHeaderFieldName(*name.value) {
			errs = append(errs, fmt.Errorf("%s: %q: must be the name of an HTTP header: letters, digits and !#$%%&'*+-.^_`|~", name.of, *name.value))
		}
	}
	return errs
}

func (h *Headers) any() bool { return h.RateLimit || h.IETF || h.RetryAfter }

// streamWorkers is the number of goroutines that wait for gRPC calls. A call beyond them gets a new
// goroutine, which must grow its stack. Measured with 200 calls at once (bench/grpcbench), as a
// part of the CPU of a bare server: 0.70 without workers, 0.60 with 32, 0.53 with 128, 0.50 with
// 256. With one call at once, workers make no difference. Each keeps some 8 KiB of stack.
const streamWorkers = 256
