package server

import (
	"context"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/durations"
	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/wire"
	"github.com/weirproxy/weir/pkg/limiter"
)

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
	bytes    *wire.Bytes
	workers  *workers
	quotas   *quotas

	observers observers[limiter.Observer]
	unknown   unknownDomains
}

func newService(o Options) *service {
	s := &service{
		options: o, statuses: statusMapper{logger: o.Logger}, workers: &workers{batches: make(chan *batch), done: make(chan struct{})},
		unknown: unknownDomains{logger: o.Logger},
	}
	s.quotas = newQuotas(&o)
	s.bytes = wire.NewBytes(int64(o.MaxBytesInFlight), o.Logger)
	s.calls.New = func() any { return new(call) }
	s.batches.New = func() any { return new(batch) }
	s.latest.started = time.Now()
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
	c := s.newCall()
	defer s.survive(c, &err)
	if err := dec(c); err != nil {
		s.release(c)
		return nil, err // from gRPC: the message is too large or cut off, or the client is gone
	}
	c.ctx, c.exact = ctx, slices.Contains(metadata.ValueFromIncomingContext(ctx, lane.ExactHeader), "1")
	if s.options.Tracer != nil {
		c.ctx = s.withParent(ctx, incoming{ctx})
	}
	if err = s.takeRoom(c); err == nil {
		err = s.answer(c)
	}
	if err == nil {
		r = newReply(c.answer)
	}
	s.release(c)
	return r, err
}

func (s *service) newCall() *call {
	c, _ := s.calls.Get().(*call)
	return c
}

// release keeps a call for reuse, unless it is large.
func (s *service) release(c *call) {
	if c.modest() {
		c.ctx, c.client, c.invalid = nil, nil, nil
		c.later = later{message: c.message}
		s.calls.Put(c)
	}
}

// The way of a request: takeRoom for a heavy one, begin, the limiter, end. A request of gRPC's
// library or of /json waits for the limiter where it is, see answer. A request of the lane is
// decided in place, see laneHandler.inPlace, or waits in a batch.

// answer decides a decoded call and encodes the response into c.answer. The error is a gRPC status.
func (s *service) answer(c *call) error {
	err := s.begin(c)
	if err == nil {
		err = s.options.Limiter.Check(c.ctx, &c.request, &c.verdict)
	}
	c.answer, err = s.end(c, c.answer[:0], err)
	return err
}

// takeRoom waits for room for a heavy call. The error is a gRPC status.
func (s *service) takeRoom(c *call) error {
	heavy := c.weigh(s.options.Limiter)
	if heavy == 0 {
		return nil
	}
	taken, ok := s.bytes.Take(c.ctx, heavy)
	if !ok {
		s.lost.Add(1)
		return status.Error(codes.ResourceExhausted, wire.TextCrowded)
	}
	c.room = taken
	return nil
}

// begin notes a decoded call for the limiter, and begins its span. The error is a mistake in the
// message. After begin comes end, also after an error.
func (s *service) begin(c *call) error {
	s.latest.set(c.begun)
	c.verdict.TellSource = s.observers.all.Load() != nil
	if s.options.Tracer != nil {
		s.beginSpan(c)
	}
	if c.invalid != nil {
		s.lost.Add(1)
		return &malformedError{c.invalid}
	}
	return nil
}

// end appends the response to a decided call to dst, counts the time of the call, and shows the
// call to observers. err is why the call was not decided; the error of end is a gRPC status, and
// dst then stays as it is.
func (s *service) end(c *call, dst []byte, err error) ([]byte, error) {
	response := dst
	if err == nil {
		response = s.encode(c, dst)
	}
	took := time.Since(c.begun)
	s.spent.Observe(took)
	if err == nil && c.verdict.Domain() == nil {
		s.unknown.note(c, s.options.Limiter.Rules())
	}
	s.answered(c, err, took)
	if c.span != nil {
		endSpan(c.span, c, err)
	}
	s.leave(c)
	if err != nil {
		return dst, s.statuses.status(err)
	}
	return response, nil
}

// leave ends the span of a call, and gives its room back.
func (s *service) leave(c *call) {
	if c.span != nil {
		c.span.End()
		c.span = nil
	}
	if c.room > 0 {
		s.bytes.Give(c.room)
		c.room = 0
	}
}

// survive turns a panic into a gRPC status. The call c may be half written, and must not be used
// again. Functions must defer survive directly.
func (s *service) survive(c *call, err *error) {
	if v := recover(); v != nil {
		s.leave(c)
		s.lost.Add(1)
		*err = s.statuses.status(&panicError{v, debug.Stack()})
	}
}

func (s *service) encode(c *call, dst []byte) []byte {
	f := form{exact: c.exact, original: s.options.Original, metadata: s.options.DynamicMetadata}
	dst = f.appendResponse(dst, &c.verdict)
	if s.options.Headers.any() {
		dst = s.options.Headers.append(dst, &c.verdict)
	}
	if c.verdict.SoftBreach {
		dst = appendHeader(dst, softBreach, "1")
	}
	if f.metadata || len(c.verdict.Groups) > 0 {
		dst = f.appendMetadata(dst, &c.request, &c.verdict)
	}
	return dst
}

// latest is the time of the latest request, to the millisecond. Safe for concurrent use after
// start.
type latest struct {
	started time.Time
	after   atomic.Int64 // nanoseconds since started
}

// set records a request. A write at most once per millisecond keeps cores from waiting for each
// other.
func (l *latest) set(at time.Time) {
	if after := int64(at.Sub(l.started)); after-l.after.Load() >= int64(time.Millisecond) {
		l.after.Store(after)
	}
}

func (l *latest) time() time.Time { return l.started.Add(time.Duration(l.after.Load())) }
