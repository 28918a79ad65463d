// Package grpcmiddleware limits the calls of gRPC servers. Answers have the headers of package
// middleware as metadata.
package grpcmiddleware

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/internal/headers"
	"github.com/weirproxy/weir/pkg/limiter"
)

// Options is the options of New. Limiter and Describe must be set.
type Options struct {
	Limiter *limiter.Limiter

	// Describe sets the domain of a request to the limiter, and adds the descriptors of a call of a
	// method such as /shop.Orders/List. A call without descriptors passes. Safe for concurrent use.
	// Describe must not keep to.
	Describe func(ctx context.Context, method string, to *limiter.Request)

	// OnError returns the error of a call after the error of a check; nil lets the call pass. Without
	// OnError every call passes.
	OnError func(ctx context.Context, err error) error
}

// Interceptors are the interceptors of a server. Safe for concurrent use.
type Interceptors struct{ options Options }

// New returns interceptors. A call over the limit fails with RESOURCE_EXHAUSTED, with the wait as
// RetryInfo. The error says which option is missing.
func New(o Options) (*Interceptors, error) {
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
	return &Interceptors{o}, nil
}

// PerKey returns interceptors that limit each key alike. Calls with the same key, also the empty
// one, share a limit.
func PerKey(limits *limiter.Keyed, key func(ctx context.Context) string) *Interceptors {
	return &Interceptors{Options{Limiter: limits.Limiter(), Describe: func(ctx context.Context, _ string, to *limiter.Request) {
		to.Domain = limiter.KeyedDomain
		d := to.Add()
		d.Entries = append(d.Entries, limiter.Entry{Key: limiter.KeyedKey, Value: key(ctx)})
	}}}
}

// Metadata returns a function for PerKey: the first value of a name in the metadata of the call.
func Metadata(name string) func(ctx context.Context) string {
	return func(ctx context.Context) string {
		if values := metadata.ValueFromIncomingContext(ctx, name); len(values) > 0 {
			return values[0]
		}
		return ""
	}
}

// Unary is a [grpc.UnaryServerInterceptor].
func (i *Interceptors) Unary(ctx context.Context, in any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	set := func(md metadata.MD) { _ = grpc.SetHeader(ctx, md) } // fails where an earlier interceptor has sent them
	if err := i.check(ctx, info.FullMethod, set); err != nil {
		return nil, err
	}
	return next(ctx, in)
}

// Stream is a [grpc.StreamServerInterceptor]. A stream is one hit.
func (i *Interceptors) Stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	set := func(md metadata.MD) { _ = stream.SetHeader(md) } // as above
	if err := i.check(stream.Context(), info.FullMethod, set); err != nil {
		return err
	}
	return next(server, stream)
}

// check returns the error of a call that must not pass.
func (i *Interceptors) check(ctx context.Context, method string, set func(metadata.MD)) error {
	var (
		request limiter.Request
		verdict limiter.Verdict
	)
	i.options.Describe(ctx, method, &request)
	if len(request.Descriptors) == 0 {
		return nil
	}
	if err := i.options.Limiter.Check(ctx, &request, &verdict); err != nil {
		if i.options.OnError == nil {
			return nil
		}
		return i.options.OnError(ctx, err)
	}
	md := make(metadata.MD)
	headers.Each(nil, &verdict, func(name, value string) { md.Set(name, value) })
	set(md)
	if !verdict.OverLimit {
		return nil
	}
	denied := status.New(codes.ResourceExhausted, "too many requests")
	if wait, ok := headers.RetryAfter(&verdict); ok {
		detailed, err := denied.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
		if err == nil {
			denied = detailed
		}
	}
	return denied.Err()
}
