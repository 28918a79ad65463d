package server

import (
	"context"
	"sync/atomic"

	"github.com/weirproxy/weir/internal/wire/laneserver"
	"github.com/weirproxy/weir/pkg/limiter"
)

// batch is the calls of one read of a connection that wait for the store, together. A call that is
// large or heavy waits in a batch of its own. The connection's goroutine fills a batch, then a
// worker decides it. Batches are reused.
type batch struct {
	handler   *laneHandler
	calls     []*call // nil once answered
	questions limiter.Questions
	answers   []laneserver.Finished
	ended     []*call // of the answers
	forget    func()  // of a call that waits alone, when it is answered; else nil
}

// Bytes of memory of a call that waits: of a decoded call with a context, and for each byte of a
// message.
const (
	decodedBytes  = 1 << 10
	decodedFactor = 8
)

func (h *laneHandler) wait(c *call, message []byte) {
	c.kept = decodedBytes + decodedFactor*len(message)
	h.conn.Keep(c.kept)
	if c.decoded {
		c.keep(message)
	}
	if !c.prepared {
		b := h.newBatch(c)
		b.forget = h.cancelable(c)
		h.service.workers.do(b)
		return
	}
	if h.batch == nil {
		h.batch = h.newBatch()
	}
	h.batch.calls = append(h.batch.calls, c)
}

func (h *laneHandler) newBatch(calls ...*call) *batch {
	b, _ := h.service.batches.Get().(*batch)
	b.handler, b.calls = h, append(b.calls, calls...)
	return b
}

func (h *laneHandler) Received() {
	if h.batch != nil {
		h.service.workers.do(h.batch)
		h.batch = nil
	}
}

// cancelable gives a call that waits alone a context that ends at its deadline, and when the client
// cancels the call. forget must be called once the call is answered.
func (h *laneHandler) cancelable(c *call) (forget func()) {
	var cancel context.CancelFunc
	if c.timeout > 0 {
		c.ctx, cancel = context.WithDeadline(c.ctx, c.begun.Add(c.timeout))
		c.timeout = 0
	} else {
		c.ctx, cancel = context.WithCancel(c.ctx)
	}
	stream := c.stream
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.alone == nil {
		h.alone = make(map[uint32]context.CancelFunc)
	}
	h.alone[stream] = cancel
	return func() {
		cancel()
		h.mu.Lock()
		defer h.mu.Unlock()
		if delete(h.alone, stream); len(h.alone) == 0 {
			h.alone = nil // a map keeps the memory of its largest size
		}
	}
}

func (h *laneHandler) Cancel(stream uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cancel := h.alone[stream]; cancel != nil {
		cancel()
	}
}

// decide decides the calls and answers them: each time that the store has decided some, in one
// write.
func (b *batch) decide() {
	s := b.handler.service
	if b.forget != nil {
		defer b.forget()
	}
	if err := b.ask(s); err != nil { // a panic
		for _, c := range b.calls {
			if c != nil {
				s.lost.Add(1)
				s.leave(c)
				b.answers = append(b.answers, laneserver.Finished{Stream: c.stream, Reply: laneReply(err), Kept: c.kept})
			}
		}
		b.flush()
		return // b may be half written: nobody uses it again
	}
	clear(b.questions.All)
	b.questions.All = b.questions.All[:0]
	b.handler, b.forget, b.calls = nil, nil, b.calls[:0]
	s.batches.Put(b)
}

func (b *batch) ask(s *service) (err error) {
	defer s.statuses.recovered(&err)
	for i, c := range b.calls {
		if !c.prepared {
			if err := b.begin(s, c); err != nil { // the call is alone
				b.add(i, err)
				b.flush()
				return nil
			}
		}
		b.questions.All = append(b.questions.All, c.question())
	}
	s.options.Limiter.CheckAll(&b.questions, func(indexes []int) {
		for _, i := range indexes {
			c := b.calls[i]
			var err error
			c.answer, err = s.end(c, c.answer[:0], b.questions.All[i].Err)
			b.add(i, err)
		}
		b.flush()
	})
	return nil
}

// begin begins a call that was not decoded in place, or was too heavy. The error is a gRPC status.
func (b *batch) begin(s *service, c *call) error {
	if !c.decoded {
		c.decodeInPlace(c.message)
	}
	if err := s.takeRoom(c); err != nil {
		return err
	}
	if err := s.begin(c); err != nil {
		_, err = s.end(c, nil, err)
		return err
	}
	return nil
}

// add adds the answer of a call: c.answer, or an error that is a gRPC status.
func (b *batch) add(i int, err error) {
	c := b.calls[i]
	answer := laneserver.Finished{Stream: c.stream, Response: c.answer, Kept: c.kept}
	if err != nil {
		answer.Response, answer.Reply = nil, laneReply(err)
	}
	b.answers, b.ended, b.calls[i] = append(b.answers, answer), append(b.ended, c), nil
}

func (b *batch) flush() {
	if len(b.answers) == 0 {
		return
	}
	b.handler.conn.Finish(b.answers...)
	for _, c := range b.ended {
		b.handler.service.release(c)
	}
	clear(b.answers)
	clear(b.ended)
	b.answers, b.ended = b.answers[:0], b.ended[:0]
}

// maxIdleWorkers is the most workers that wait for a batch. Each keeps some 8 KiB of stack.
const maxIdleWorkers = streamWorkers

// workers are the goroutines that decide batches. A new goroutine must grow its stack, which costs
// a third of a call, so a worker stays for later batches.
type workers struct {
	batches chan *batch
	done    chan struct{}
	idle    atomic.Int64
}

// do decides a batch in a worker that is idle, or in a new one, without waiting.
func (w *workers) do(b *batch) {
	select {
	case w.batches <- b:
	default:
		go w.work(b)
	}
}

func (w *workers) work(b *batch) {
	for {
		b.decide()
		if w.idle.Add(1) > maxIdleWorkers {
			w.idle.Add(-1)
			return
		}
		select {
		case b = <-w.batches:
			w.idle.Add(-1)
		case <-w.done:
			return
		}
	}
}

// close ends the idle workers, and the others after their batches. A second close is not allowed.
func (w *workers) close() { close(w.done) }
