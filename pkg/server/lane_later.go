package server

import (
	"context"
	"time"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/wire/laneserver"
)

// laterCall is a call that a worker decides alone, as the call is large or takes much memory.
type laterCall struct {
	handler *laneHandler
	ctx     context.Context //nolint:containedctx // of the call, on its way to the worker
	stream  uint32
	begun   time.Time
	message []byte // does not change
	kept    int    // bytes
	call    *call
}

// start lets a worker decide a call.
func (h *laneHandler) start(in *lane.Call, l laterCall) {
	l.ctx = h.service.contextOf(in)
	h.startIn(l, in.Timeout)
}

// startIn is start in the context of l. A timeout of 0 is no deadline.
func (h *laneHandler) startIn(l laterCall, timeout time.Duration) {
	var cancel context.CancelFunc
	if timeout > 0 {
		l.ctx, cancel = context.WithDeadline(l.ctx, l.begun.Add(timeout))
	} else {
		l.ctx, cancel = context.WithCancel(l.ctx)
	}
	h.mu.Lock()
	if h.later == nil {
		h.later = make(map[uint32]context.CancelFunc)
	}
	h.later[l.stream] = cancel
	h.mu.Unlock()
	h.service.workers.do(&l)
}

// decide decides the call and answers it.
func (l *laterCall) decide() {
	h, s := l.handler, l.handler.service
	err := l.check(s)
	h.mu.Lock()
	cancel := h.later[l.stream]
	if delete(h.later, l.stream); len(h.later) == 0 {
		h.later = nil // a map keeps the memory of its largest size
	}
	h.mu.Unlock()
	cancel()
	if err != nil {
		h.conn.Finish(laneserver.Finished{Stream: l.stream, Reply: laneReply(err), Kept: l.kept}) // after a panic the call is dropped
		return
	}
	h.conn.Finish(laneserver.Finished{Stream: l.stream, Response: l.call.answer, Kept: l.kept})
	s.release(l.call)
}

// check decides the call. The error is a gRPC status.
func (l *laterCall) check(s *service) (err error) {
	defer s.survive(&err)
	l.call, _ = s.calls.Get().(*call)
	l.call.decodeInPlace(l.message, l.begun)
	l.call.client = l.handler.conn
	return s.handle(l.ctx, l.call)
}

// Cancel implements [lane.Handler].
func (h *laneHandler) Cancel(stream uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cancel := h.later[stream]; cancel != nil {
		cancel()
	}
}
