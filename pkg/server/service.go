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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/durations"
	"github.com/weirproxy/weir/internal/wire/inflight"
)

// messageTimeout is the longest time from the headers of a call to the end of its message. Envoy
// sends both at once.
const messageTimeout = 10 * time.Second

// service answers rate limit requests, from gRPC and from /json. All methods are safe for
// concurrent use.
type service struct {
	options  Options
	calls    sync.Pool // of *call
	batches  sync.Pool // of *batch
	spent    durations.Histogram
	latest   latest
	statuses statusMapper
	lost     atomic.Uint64 // requests that failed before the limiter
	bound    *inflight.Bound
	workers  *workers // of the lane

	observers observers
	unknown   unknownDomains
}

func newService(o Options) *service {
	s := &service{options: o, statuses: statusMapper{logger: o.Logger}, workers: newWorkers(), unknown: unknownDomains{logger: o.Logger}}
	s.bound = inflight.New(inflight.Options{
		MaxBytes: int64(o.MaxBytesInFlight), MessageTimeout: messageTimeout, Logger: o.Logger,
		// Before a client knows the bound of streams it may send as many as Envoy does, and gets
		// REFUSED_STREAM.
		MaxStreams: 2 * max(o.MaxConcurrentStreams, DefaultMaxConcurrentStreams),
	})
	s.calls.New = func() any { return new(call) }
	s.batches.New = func() any { return new(batch) }
	s.latest.start()
	return s
}

// describe returns the description of the rate limit service for gRPC: as in the generated code,
// but with a handler that decodes into a call. The import of the generated code registers the
// descriptors that reflection shows.
func (s *service) describe() *grpc.ServiceDesc {
	d := ratelimitv3.RateLimitService_ServiceDesc
	d.HandlerType = (*any)(nil)
	d.Methods = []grpc.MethodDesc{{
		MethodName: d.Methods[0].MethodName,
		Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return s.shouldRateLimit(ctx, dec)
		},
	}}
	return &d
}

// shouldRateLimit handles one call of ShouldRateLimit that came through gRPC. dec receives the
// request; the result is a *reply.
func (s *service) shouldRateLimit(ctx context.Context, dec func(any) error) (r any, err error) {
	if err := s.guard(ctx); err != nil {
		return nil, err
	}
	c, _ := s.calls.Get().(*call)
	defer s.survive(&err) // a panic drops c, which may be half written
	if err := dec(c); err != nil {
		s.release(c)
		return nil, err // from gRPC: the message is too large or cut off, or the client is gone
	}
	c.ctx = ctx
	if s.options.Tracer != nil {
		ctx = s.withParent(ctx, incoming{ctx})
	}
	if err := s.handle(ctx, c); err != nil {
		s.release(c)
		return nil, err
	}
	answer := newReply(c.answer)
	s.release(c)
	return answer, nil
}

// handle decides a decoded call of any weight and encodes the response into c.answer. The error is
// a gRPC status. A heavy call waits for room.
func (s *service) handle(ctx context.Context, c *call) error {
	if heavy := c.weight(); heavy > 0 {
		taken, ok := s.bound.Take(ctx, heavy)
		if !ok {
			s.lost.Add(1)
			return status.Error(codes.ResourceExhausted, textCrowded)
		}
		defer s.bound.Give(taken)
	}
	if err := s.answer(ctx, c); err != nil {
		return s.statuses.status(err)
	}
	return nil
}

// survive turns a panic into a gRPC status. Functions must defer it directly.
func (s *service) survive(err *error) {
	if v := recover(); v != nil {
		s.lost.Add(1)
		*err = s.statuses.status(&panicError{v, debug.Stack()})
	}
}

// answer decides a decoded call and encodes the response into c.answer, in a span if tracing is on.
func (s *service) answer(ctx context.Context, c *call) error {
	if s.options.Tracer != nil {
		return s.answerInSpan(ctx, c)
	}
	return s.decide(ctx, c)
}

// decide decides a decoded call and encodes the response into c.answer.
func (s *service) decide(ctx context.Context, c *call) (err error) {
	defer func() { s.decided(c, err, time.Since(c.begun)) }()
	if err := s.accept(c); err != nil {
		return err
	}
	if err := s.options.Limiter.Check(ctx, &c.request, &c.verdict); err != nil {
		return err
	}
	return s.encode(c)
}

// decideNow is decide for a call that the limiter decides without waiting. Another one must be
// asked again: nothing is counted then.
func (s *service) decideNow(c *call) (decided bool, err error) {
	if err = s.accept(c); err == nil {
		if decided, err = s.options.Limiter.CheckNow(&c.request, &c.verdict); !decided {
			return false, nil
		}
	}
	if err == nil {
		err = s.encode(c)
	}
	s.decided(c, err, time.Since(c.begun))
	return true, err
}

// decided counts the time of a call, and shows the call to observers.
func (s *service) decided(c *call, err error, took time.Duration) {
	s.spent.Observe(took)
	if err == nil && c.verdict.Domain() == nil {
		s.unknown.note(c, s.options.Limiter.Rules())
	}
	s.observers.answered(c, err, took)
}

// accept notes a decoded call. The error is a mistake in the message.
func (s *service) accept(c *call) error {
	s.latest.set(c.begun)
	c.verdict.TellSource = s.observers.all.Load() != nil
	if c.invalid != nil {
		s.lost.Add(1)
		return &malformedError{c.invalid}
	}
	return nil
}

// encode encodes the response into c.answer.
func (s *service) encode(c *call) error {
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

// release keeps a call for reuse, unless it is large.
func (s *service) release(c *call) {
	c.client, c.ctx = nil, nil
	if c.modest() {
		s.calls.Put(c)
	}
}

// latest is the time of the latest request, to the millisecond. Safe for concurrent use after
// start.
type latest struct {
	started time.Time
	after   atomic.Int64 // nanoseconds since started
}

func (l *latest) start() { l.started = time.Now() }

// set records a request. A write at most once per millisecond keeps cores from waiting for each
// other.
func (l *latest) set(at time.Time) {
	if after := int64(at.Sub(l.started)); after-l.after.Load() >= int64(time.Millisecond) {
		l.after.Store(after)
	}
}

func (l *latest) time() time.Time { return l.started.Add(time.Duration(l.after.Load())) }
