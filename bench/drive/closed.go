package drive

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Load is how a closed loop asks: each connection has that many requests at once until all are
// asked. An answer makes room for the next.
type Load struct {
	Connections, Streams int
	Requests             int           // in all
	Timeout              time.Duration // of a request
}

// Outcome is the outcome of a closed loop.
type Outcome struct {
	Denied, Failed int             // requests
	Took           []time.Duration // from the write of a request to the read of its answer, of all
}

// Closed sends the requests that next returns in a closed loop, to an address of [DialWire]. Next
// must be safe for concurrent use.
func Closed(ctx context.Context, address string, l Load, next func() []byte) (all Outcome, err error) {
	var left atomic.Int64
	left.Store(int64(l.Requests))
	each := make([]Outcome, l.Connections)
	asking, ctx := errgroup.WithContext(ctx)
	for i := range each {
		asking.Go(func() error { return each[i].ask(ctx, address, l, &left, next) })
	}
	err = asking.Wait()
	for _, one := range each {
		all.Denied, all.Failed, all.Took = all.Denied+one.Denied, all.Failed+one.Failed, append(all.Took, one.Took...)
	}
	return all, err
}

// ask asks on one connection, as long as requests are left.
func (o *Outcome) ask(ctx context.Context, address string, l Load, left *atomic.Int64, next func() []byte) error {
	w, err := DialWire(ctx, address, l.Timeout)
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	begun := time.Now()
	var now time.Duration // since begun
	read := false         // now is of this Receive
	var batch [][]byte
	open, free := 0, l.Streams
	var answered []bool
	receive := func(stream uint32, err error) {
		n := int(stream / 2) // streams are 1, 3, 5 and so on
		if n >= len(answered) || answered[n] {
			return // grpc-go sends trailers, and then RST_STREAM, when a request is too late
		}
		answered[n] = true
		if !read {
			now, read = time.Since(begun), true
		}
		o.Took[n] = now - o.Took[n] // so far the instant of the write
		open, free = open-1, free+1
		switch {
		case errors.Is(err, ErrDenied):
			o.Denied++
		case err != nil:
			o.Failed++
		}
	}
	for {
		batch = batch[:0]
		for ; free > 0 && left.Add(-1) >= 0; free-- {
			batch = append(batch, next())
		}
		if now = time.Since(begun); len(batch) > 0 {
			for range batch {
				o.Took, answered = append(o.Took, now), append(answered, false)
			}
			if err := w.Send(nil, batch...); err != nil {
				return err
			}
		}
		if open += len(batch); open == 0 {
			return nil
		}
		read = false
		if err := w.Receive(receive); err != nil {
			return err
		}
	}
}
