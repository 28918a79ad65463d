package server

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/weirproxy/weir/internal/durations"
)

// service answers rate limit requests, whatever they came by. All methods are safe for concurrent use.
type service struct {
	options Options
	calls   sync.Pool // of *call
	spent   durations.Histogram
	latest  latest
	faults  faults
	lost    atomic.Uint64 // requests that failed where the limiter does not count them
}

func newService(o Options) *service {
	s := &service{options: o, faults: faults{logger: o.Logger}}
	s.calls.New = func() any { return new(call) }
	s.latest.start()
	return s
}

// describe returns the rate limit service as gRPC wants to know it. It is that of the generated code, but for the handler,
// which decodes into a call; importing the generated code registers the descriptors that reflection shows.
func (s *service) describe() *grpc.ServiceDesc {
	generated := ratelimitv3.RateLimitService_ServiceDesc
	return &grpc.ServiceDesc{
		ServiceName: generated.ServiceName,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: generated.Methods[0].MethodName,
			Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				return s.shouldRateLimit(ctx, dec)
			},
		}},
		Metadata: generated.Metadata,
	}
}

// shouldRateLimit handles one call of ShouldRateLimit, which dec receives. It returns a *reply.
func (s *service) shouldRateLimit(ctx context.Context, dec func(any) error) (r any, err error) {
	c, _ := s.calls.Get().(*call)
	defer func() {
		if v := recover(); v != nil { // c is in an unknown state: let it go
			s.lost.Add(1)
			r, err = nil, s.faults.status(&panicError{v, debug.Stack()})
		}
	}()
	if err := dec(c); err != nil {
		s.release(c)
		return nil, err // of gRPC: too large, cut off, gone
	}
	if s.options.Tracer != nil {
		ctx = s.withParent(ctx, incoming{ctx})
	}
	if err := s.answer(ctx, c); err != nil {
		s.release(c)
		return nil, s.faults.status(err)
	}
	answer := newReply(c.answer)
	s.release(c)
	return answer, nil
}

// answer decides a decoded call and encodes the response into it, in a span when there are any.
func (s *service) answer(ctx context.Context, c *call) error {
	if s.options.Tracer != nil {
		return s.answerInSpan(ctx, c)
	}
	return s.decide(ctx, c)
}

// decide decides a decoded call and encodes the response into it.
func (s *service) decide(ctx context.Context, c *call) error {
	s.latest.set(c.begun)
	defer func() { s.spent.Observe(time.Since(c.begun)) }()
	if c.invalid != nil {
		s.lost.Add(1)
		return &malformedError{c.invalid}
	}
	if err := s.options.Limiter.Check(ctx, &c.request, &c.verdict); err != nil {
		return err
	}
	c.answer = appendResponse(c.answer, &c.verdict)
	if s.options.Headers.any() {
		c.answer = s.options.Headers.append(c.answer, &c.verdict)
	}
	if s.options.DynamicMetadata {
		var err error
		if c.answer, err = appendMetadata(c.answer, &c.request, &c.verdict); err != nil {
			return fmt.Errorf("encode dynamic metadata: %w", err)
		}
	}
	return nil
}

// release gives a call back for reuse.
func (s *service) release(c *call) {
	if c.modest() {
		s.calls.Put(c)
	}
}
