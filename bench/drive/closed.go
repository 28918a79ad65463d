package drive

import (
	"context"
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

// Closed sends the requests that next returns in a closed loop, and returns the number of requests
// that failed. Next must be safe for concurrent use.
func Closed(ctx context.Context, address string, l Load, next func() []byte) (failed int, err error) {
	var left, wrong atomic.Int64
	left.Store(int64(l.Requests))
	asking, ctx := errgroup.WithContext(ctx)
	for range l.Connections {
		asking.Go(func() error {
			w, err := DialWire(ctx, address, l.Timeout)
			if err != nil {
				return err
			}
			defer func() { _ = w.Close() }()
			var batch [][]byte
			for free, open := l.Streams, 0; ; open -= free {
				batch = batch[:0]
				for ; free > 0; free-- {
					if left.Add(-1) >= 0 {
						batch = append(batch, next())
					}
				}
				if open += len(batch); open == 0 {
					return nil
				}
				if len(batch) > 0 {
					if err := w.Send(nil, batch...); err != nil {
						return err
					}
				}
				err := w.Receive(func(_ uint32, err error) {
					if free++; err != nil {
						wrong.Add(1)
					}
				})
				if err != nil {
					return err
				}
			}
		})
	}
	err = asking.Wait()
	return int(wrong.Load()), err
}
