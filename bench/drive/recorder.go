package drive

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"
)

// Result is the end of a request as its client saw it.
type Result uint8

// The ends of a request.
const (
	Open      Result = iota // no answer yet
	Allowed                 // OK
	Denied                  // OVER_LIMIT
	Failed                  // a gRPC error, or the connection ended before the answer
	Unreached               // there was no connection, so nothing was sent
)

// A Record is a request and its end, in Unix nanoseconds by the clock of the client. Tag is the
// caller's.
type Record struct {
	Sent, Received int64
	Tag            int32
	Result         Result
}

// A Recorder asks on one connection and records each request. Make one with NewRecorder.
type Recorder struct {
	address string
	timeout time.Duration
	call    Call
	begun   time.Time

	sending sync.Mutex // held from a record to its write, so that streams have the order of records

	mu    sync.Mutex // guards the rest
	wire  *Wire      // nil: there is no connection
	first int        // of all: the record of the first stream of the connection
	all   []Record
	open  int
	err   error // the first answer that is no verdict
}

// NewRecorder returns a Recorder of a service at host:port. Each request says that its caller waits
// for at most that timeout; 0: nothing.
func NewRecorder(address string, timeout time.Duration, call Call) *Recorder {
	return &Recorder{address: address, timeout: timeout, call: call, begun: time.Now()}
}

// now returns Unix nanoseconds that never jump.
func (r *Recorder) now() int64 { return r.begun.Add(time.Since(r.begun)).UnixNano() }

// redial is the time between two attempts to connect.
const redial = 20 * time.Millisecond

// Stay connects again and again, and reads answers, until ctx ends. Then open requests have failed.
// Send needs a Stay in another goroutine.
func (r *Recorder) Stay(ctx context.Context) {
	for ctx.Err() == nil {
		if wire, err := r.dial(ctx); err == nil {
			for err == nil {
				err = wire.Receive(r.ended)
			}
			_ = wire.Close()
			r.disconnect()
		}
		select {
		case <-time.After(redial):
		case <-ctx.Done():
		}
	}
}

func (r *Recorder) dial(ctx context.Context) (*Wire, error) {
	wire, err := r.call.Dial(ctx, r.address, r.timeout)
	if err != nil {
		return nil, err
	}
	r.sending.Lock()
	defer r.sending.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wire, r.first = wire, len(r.all)
	return wire, nil
}

// disconnect ends all requests that are open.
func (r *Recorder) disconnect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wire, r.open = nil, 0
	now := r.now()
	for i := r.first; i < len(r.all); i++ {
		if o := &r.all[i]; o.Result == Open {
			o.Received, o.Result = now, Failed
		}
	}
}

// Send sends requests, at most 32 KiB together, in one write. Each has the tag with its number.
func (r *Recorder) Send(tags []int32, requests [][]byte) {
	r.sending.Lock()
	defer r.sending.Unlock()
	r.mu.Lock()
	now, wire := r.now(), r.wire
	o := Record{Sent: now}
	if wire == nil {
		o.Received, o.Result = now, Unreached
	} else {
		r.open += len(tags)
	}
	for _, o.Tag = range tags {
		r.all = append(r.all, o)
	}
	r.mu.Unlock()
	if wire != nil {
		_ = wire.Send(nil, requests...) // an error ends the connection, and Receive sees that
	}
}

// ended records an answer.
func (r *Recorder) ended(stream uint32, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.first + int(stream-1)/2 // streams are 1, 3, 5 and so on
	if i >= len(r.all) || r.all[i].Result != Open {
		if !errors.Is(err, errReset) { // grpc-go may reset a stream after its answer
			r.err = errors.Join(r.err, errors.New("an answer to a request that is not open"))
		}
		return
	}
	o := &r.all[i]
	r.open--
	o.Received, o.Result = r.now(), Allowed
	switch {
	case errors.Is(err, ErrDenied):
		o.Result = Denied
	case err != nil:
		if o.Result = Failed; r.err == nil {
			r.err = err
		}
	}
}

// AwaitConnection waits until there is a connection, or ctx ends.
func (r *Recorder) AwaitConnection(ctx context.Context) {
	for {
		r.mu.Lock()
		connected := r.wire != nil
		r.mu.Unlock()
		if connected {
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// Waiting returns the number of requests that are open.
func (r *Recorder) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open
}

// Records returns the records in the order of their sending, and the first error of an answer. No
// request may be sent meanwhile.
func (r *Recorder) Records() ([]Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all, r.err
}

// Closed connects and has that many requests open until next has no more, and then waits for all
// answers. An answer makes room for the next request. Requests that are open together have at most
// 32 KiB.
func (r *Recorder) Closed(ctx context.Context, streams int, next func() (tag int32, request []byte, ok bool)) error {
	wire, err := r.dial(ctx)
	if err != nil {
		return err
	}
	defer r.disconnect()
	defer func() { _ = wire.Close() }()
	var tags []int32
	var requests [][]byte
	for more := true; ; {
		tags, requests = tags[:0], requests[:0]
		for n := r.Waiting(); more && n+len(tags) < streams; {
			tag, request, ok := next()
			if more = ok && len(r.all) < math.MaxInt32; more {
				tags, requests = append(tags, tag), append(requests, request)
			}
		}
		if len(tags) > 0 {
			r.Send(tags, requests)
		}
		if r.Waiting() == 0 && !more {
			return nil
		}
		if err := wire.Receive(r.ended); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
}
