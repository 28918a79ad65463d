package server

import (
	"context"
	"fmt"
	"net"
	"time"
	"unsafe"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/pkg/limiter"
)

type call struct {
	request limiter.Request
	verdict limiter.Verdict
	invalid error           // the mistake in a malformed message, else nil
	size    int             // of the message, in bytes
	further int64           // bytes of charges beyond one for each descriptor
	begun   time.Time       // when the message was complete
	ctx     context.Context //nolint:containedctx // of the call: with the span of the client, and from begin on with its own span
	client  client          // nil: see ctx
	span    trace.Span      // from begin to end; nil: tracing is off
	room    int64           // bytes that a heavy call has taken of the bound, until end
	answer  []byte          // the encoded response; memory for the next one
	exact   bool            // the client asks for durations that are not rounded to seconds

	later
}

// later is the part of a call of the lane that is not answered in place.
type later struct {
	stream   uint32
	timeout  time.Duration // from begun on; 0: no deadline
	due      due
	kept     int    // bytes that the connection counts for the call
	message  []byte // the texts of the request are parts of it
	decoded  bool
	prepared bool // by the limiter, which could not decide at once
}

type client interface{ RemoteAddr() net.Addr }

// due is a context with a deadline and without a timer: Done does not close.
type due struct {
	context.Context //nolint:containedctx // due is a context
	at              time.Time
}

func (d *due) Deadline() (deadline time.Time, has bool) { return d.at, true }

// Bounds of a call that is kept for reuse, with its memory. Both are bounded because empty
// descriptors and entries take up to fifty times as much memory as in a message.
const (
	maxKept            = 8 << 10 // bytes of the message, and of charges beyond one for each descriptor
	maxKeptDescriptors = 1024
)

func (c *call) modest() bool {
	return c.size <= maxKept && c.further <= maxKept && cap(c.request.Descriptors) <= maxKeptDescriptors
}

// Memory of a decoded descriptor with its charge, state and status, and of a decoded entry, in
// bytes.
const (
	descriptorBytes = 1 << 10
	entryBytes      = 64
)

// weigh returns the memory of a decoded call in bytes, beyond the bytes that its stream counts for;
// 0 for nearly all calls.
func (c *call) weigh(l *limiter.Limiter) int64 {
	c.further = l.FurtherBytes(&c.request, c.size)
	if c.further == 0 && len(c.request.Descriptors) <= lane.BackStreamBytes/descriptorBytes/2 && c.size <= 1<<10 {
		return 0
	}
	bytes := int64(len(c.request.Descriptors)) * descriptorBytes
	for i := range c.request.Descriptors {
		bytes += int64(len(c.request.Descriptors[i].Entries)) * entryBytes
	}
	bytes += c.further
	return max(bytes-lane.BackStreamBytes, 0)
}

// decode reads the bytes of a request that was complete at begun, and does not keep them.
func (c *call) decode(data []byte, begun time.Time) {
	c.begun = begun
	c.read(data, string(data))
}

// decodeInPlace reads the bytes of a request. The texts of the request are parts of these bytes,
// which must not change while the call is in use, see keep. A text that stays for longer must be
// copied.
func (c *call) decodeInPlace(data []byte) {
	c.read(data, unsafe.String(unsafe.SliceData(data), len(data)))
	c.decoded = true
}

func (c *call) read(data []byte, text string) {
	c.request.Reset()
	c.size = len(data)
	c.invalid = decode(data, text, &c.request)
}

// keep copies the message that the call was decoded from in place, and moves the texts of the
// request to the copy. Nothing else refers to the message: the limiter makes keys of its own.
func (c *call) keep(message []byte) {
	c.message = append(c.message[:0], message...)
	copied := unsafe.String(unsafe.SliceData(c.message), len(c.message))
	from := uintptr(unsafe.Pointer(unsafe.SliceData(message)))
	move := func(text *string) {
		if *text != "" { // an empty text may lie anywhere
			at := uintptr(unsafe.Pointer(unsafe.StringData(*text))) - from
			*text = copied[at:][:len(*text)]
		}
	}
	move(&c.request.Domain)
	for i := range c.request.Descriptors {
		entries := c.request.Descriptors[i].Entries
		for n := range entries {
			move(&entries[n].Key)
			move(&entries[n].Value)
		}
	}
}

func (c *call) question() limiter.Question {
	q := limiter.Question{Ctx: c.ctx, Request: &c.request, Verdict: &c.verdict, Prepared: c.prepared}
	if c.timeout > 0 {
		c.due = due{c.ctx, c.begun.Add(c.timeout)}
		q.Ctx = &c.due
	}
	return q
}

type malformedError struct{ reason error }

func (e *malformedError) Error() string { return fmt.Sprintf("not a RateLimitRequest: %v", e.reason) }
func (e *malformedError) Unwrap() error { return e.reason }
