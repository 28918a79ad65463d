// Package middleware limits the requests of net/http servers. All answers have headers with the
// rest of the limit, and denials also the time to wait. Package grpcmiddleware is for gRPC.
package middleware

import (
	"errors"
	"net/http"
	"sync"

	"github.com/weirproxy/weir/internal/headers"
	"github.com/weirproxy/weir/pkg/limiter"
)

// Options is the options of New. Limiter and Describe must be set.
type Options struct {
	Limiter *limiter.Limiter

	// Describe sets the domain of a request to the limiter, and adds its descriptors. A request
	// without descriptors passes. Safe for concurrent use. Describe must not keep to.
	Describe func(r *http.Request, to *limiter.Request)

	// Denied answers a request over the limit. The headers are set already. Nil: status 429 and a line
	// of text.
	Denied http.Handler

	// OnError is called with the error of a check, and reports whether the request passes. If it does
	// not, OnError must have answered. Nil: every request passes after an error.
	OnError func(w http.ResponseWriter, r *http.Request, err error) (passes bool)

	NoHeaders bool // answers have no RateLimit, RateLimit-* and Retry-After
}

// New returns a middleware: a function that puts a handler behind limits. Answers get the headers
// RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers-11, the older
// RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset, and Retry-After on a denial that ends.
// Names of headers have no case: net/http sends Ratelimit for RateLimit. The error says which
// option is missing.
func New(o Options) (func(http.Handler) http.Handler, error) {
	var errs []error
	if o.Limiter == nil {
		errs = append(errs, errors.New("limiter: must not be nil"))
	}
	if o.Describe == nil {
		errs = append(errs, errors.New("describe: must not be nil"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if o.Denied == nil {
		o.Denied = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
		})
	}
	calls := &sync.Pool{New: func() any { return new(call) }}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, _ := calls.Get().(*call)
			passes, err := c.check(&o, w.Header(), r)
			calls.Put(c)
			switch {
			case err != nil && o.OnError != nil && !o.OnError(w, r, err):
			case err == nil && !passes:
				o.Denied.ServeHTTP(w, r)
			default:
				next.ServeHTTP(w, r)
			}
		})
	}, nil
}

// PerKey returns a middleware that limits each key alike. Requests with the same key, also the
// empty one, share a limit.
func PerKey(limits *limiter.Keyed, key func(r *http.Request) string) func(http.Handler) http.Handler {
	limited, err := New(Options{Limiter: limits.Limiter(), Describe: func(r *http.Request, to *limiter.Request) {
		to.Domain = limiter.KeyedDomain
		d := to.Add()
		d.Entries = append(d.Entries, limiter.Entry{Key: limiter.KeyedKey, Value: key(r)})
	}})
	if err != nil { // both options are there
		return func(next http.Handler) http.Handler { return next }
	}
	return limited
}

// Header returns a function for PerKey: the value of a header of the request.
func Header(name string) func(r *http.Request) string {
	return func(r *http.Request) string { return r.Header.Get(name) }
}

// call is the memory of a check, for reuse.
type call struct {
	request limiter.Request
	verdict limiter.Verdict
	text    []byte
}

func (c *call) check(o *Options, to http.Header, r *http.Request) (passes bool, err error) {
	c.request.Reset()
	o.Describe(r, &c.request)
	if len(c.request.Descriptors) == 0 {
		return true, nil
	}
	if err := o.Limiter.Check(r.Context(), &c.request, &c.verdict); err != nil {
		return false, err
	}
	if !o.NoHeaders {
		c.text = headers.Each(c.text, &c.verdict, to.Set)
	}
	return !c.verdict.OverLimit, nil
}
