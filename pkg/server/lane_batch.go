package server

import (
	"bytes"
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/wire/laneserver"
	"github.com/weirproxy/weir/pkg/limiter"
)

// batch is the calls of one read of a connection that wait for the store, together. The
// connection's goroutine fills a batch, then a worker decides it. Batches are reused.
type batch struct {
	handler   *laneHandler
	calls     []batched
	messages  []byte // of the calls
	questions limiter.Questions
	asked     []int // indexes in calls of the questions
	answers   []laneserver.Finished
	decided   []*batched // the calls of answers
}

// batched is a call of a batch.
type batched struct {
	stream   uint32
	kept     int // bytes
	timeout  time.Duration
	begun    time.Time
	from, to int             // of the message
	parent   context.Context //nolint:containedctx // with the span of the client
	due      due
	span     trace.Span // nil: tracing is off
	call     *call
	answered bool
}

// due is a context with a deadline and without a timer: Done does not close.
type due struct {
	context.Context //nolint:containedctx // due is a context
	at              time.Time
}

// Deadline implements [context.Context].
func (d *due) Deadline() (deadline time.Time, has bool) { return d.at, true }

// maxKeptBatch bounds the messages of a batch that is kept for reuse, in bytes.
const maxKeptBatch = 64 << 10

// add adds a call.
func (b *batch) add(s *service, in *lane.Call, begun time.Time, message []byte, kept int) {
	from := len(b.messages)
	b.messages = append(b.messages, message...)
	b.calls = append(b.calls, batched{
		stream: in.Stream, kept: kept, timeout: in.Timeout, begun: begun, from: from, to: len(b.messages), parent: s.contextOf(in),
	})
}

// decide decides the calls and answers them: each time that the store has decided some, in one
// write.
func (b *batch) decide() {
	s := b.handler.service
	if err := b.check(s); err != nil { // a panic
		lost := uint64(0)
		for i := range b.calls {
			if one := &b.calls[i]; !one.answered {
				if one.span != nil {
					one.span.End()
				}
				b.answers = append(b.answers, laneserver.Finished{Stream: one.stream, Reply: laneReply(err), Kept: one.kept})
				lost++
			}
		}
		s.lost.Add(max(lost, 1) - 1) // survive has counted one
		b.flush()
		return // b may be half written: nobody uses it again
	}
	clear(b.calls)
	clear(b.questions.All)
	b.handler, b.calls, b.messages, b.asked = nil, b.calls[:0], b.messages[:0], b.asked[:0]
	b.questions.All = b.questions.All[:0]
	if cap(b.messages) <= maxKeptBatch {
		s.batches.Put(b)
	}
}

// check is decide until a panic, which it returns as a gRPC status.
func (b *batch) check(s *service) (err error) {
	defer s.survive(&err)
	for i := range b.calls {
		b.begin(s, i)
	}
	b.flush()
	s.options.Limiter.CheckAll(&b.questions, func(indexes []int) {
		now := time.Now()
		for _, n := range indexes {
			b.end(s, &b.calls[b.asked[n]], b.questions.All[n].Err, now)
		}
		b.flush()
	})
	return nil
}

// begin decodes a call, and adds its question.
func (b *batch) begin(s *service, number int) {
	one := &b.calls[number]
	message := b.messages[one.from:one.to]
	c, _ := s.calls.Get().(*call)
	c.decodeInPlace(message, one.begun)
	c.client = b.handler.conn
	if c.weight() > 0 {
		s.release(c)
		one.answered = true // by another worker
		b.handler.startIn(laterCall{
			handler: b.handler, ctx: one.parent, stream: one.stream, begun: one.begun, message: bytes.Clone(message), kept: one.kept,
		}, one.timeout)
		return
	}
	one.call = c
	ctx := one.parent
	if s.options.Tracer != nil {
		ctx, one.span = s.beginSpan(ctx, c)
	}
	if err := s.accept(c); err != nil {
		b.end(s, one, err, time.Now())
		return
	}
	if one.timeout > 0 {
		one.due = due{ctx, one.begun.Add(one.timeout)}
		ctx = &one.due
	}
	b.questions.All = append(b.questions.All, limiter.Question{Ctx: ctx, Request: &c.request, Verdict: &c.verdict})
	b.asked = append(b.asked, number)
}

// end encodes the answer to a call that was decided, or has failed.
func (b *batch) end(s *service, one *batched, err error, now time.Time) {
	if err == nil {
		err = s.encode(one.call)
	}
	s.decided(one.call, err, now.Sub(one.begun))
	if one.span != nil {
		endSpan(one.span, one.call, err)
		one.span.End()
	}
	answer := laneserver.Finished{Stream: one.stream, Response: one.call.answer, Kept: one.kept}
	if err != nil {
		answer.Response, answer.Reply = nil, laneReply(s.statuses.status(err))
	}
	b.answers, b.decided = append(b.answers, answer), append(b.decided, one)
	one.answered = true
}

// flush sends the answers, and releases their calls.
func (b *batch) flush() {
	if len(b.answers) == 0 {
		return
	}
	s := b.handler.service
	b.handler.conn.Finish(b.answers...)
	clear(b.answers)
	b.answers = b.answers[:0]
	for _, one := range b.decided {
		s.release(one.call)
		one.call = nil
	}
	clear(b.decided)
	b.decided = b.decided[:0]
}
