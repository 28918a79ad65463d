package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/bench/drive"
)

// answer is the result of one request.
type answer struct {
	due  time.Time     // when it should have been sent
	late time.Duration // from due until it was
	took time.Duration // from due to the answer
	err  error
}

// timeout ends a request without an answer. The value is far above any real answer's time, so that
// a slow answer is measured and not cut off.
const timeout = 2 * time.Second

// asker asks on one connection. A goroutine of its own reads the answers.
type asker struct {
	wire    *drive.Wire
	batch   [][]byte    // to send next
	due     []time.Time // of the batch
	streams uint32      // of the requests before the first of all

	mu    sync.Mutex // guards the rest
	all   []answer
	ended int   // of all
	err   error // the connection has ended
}

func (b *bench) newAsker(ctx context.Context, address string) (*asker, error) {
	wire, err := drive.DialWire(ctx, address, 0)
	if err != nil {
		return nil, err
	}
	a := &asker{wire: wire}
	err = wire.Send(nil, b.requests[0]) // the table of headers has all fields afterwards
	for err == nil && a.streams == 0 {
		err = wire.Receive(func(_ uint32, failed error) { a.streams, a.err = 1, failed })
	}
	return a, errors.Join(err, a.err)
}

// send sends the batch, 32 KiB at a time. A request on a connection that has ended fails.
func (a *asker) send() {
	now := time.Now()
	a.mu.Lock()
	for _, due := range a.due {
		a.all = append(a.all, answer{due: due, late: now.Sub(due), err: a.err})
	}
	if a.err != nil {
		a.ended += len(a.due)
		a.batch = a.batch[:0]
	}
	a.mu.Unlock()
	for part := range slices.Chunk(a.batch, 128) {
		if a.wire.Send(nil, part...) != nil {
			break // receive sees the end of the connection, and ends all that are open
		}
	}
	a.batch, a.due = a.batch[:0], a.due[:0]
}

// receive reads answers until the connection ends, which fails all requests that are open.
func (a *asker) receive() {
	var err error
	for err == nil {
		var now time.Time // of the answers of one read
		err = a.wire.Receive(func(stream uint32, failed error) {
			if now.IsZero() {
				now = time.Now()
				a.mu.Lock()
			}
			a.endLocked(int(stream/2-a.streams), now, failed)
		})
		if !now.IsZero() {
			a.mu.Unlock()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
	now := time.Now()
	for i := range a.all {
		a.endLocked(i, now, err)
	}
}

// endLocked ends a request that is open. Streams are 1, 3, 5 and so on.
func (a *asker) endLocked(i int, now time.Time, err error) {
	if i >= len(a.all) {
		return // no stream of ours
	}
	if one := &a.all[i]; one.took == 0 && one.err == nil {
		one.took, one.err = now.Sub(one.due), err
		a.ended++
	}
}

// answered waits until all requests have their answers. The server answers each within the timeout.
func (a *asker) answered(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		a.mu.Lock()
		open := len(a.all) - a.ended
		a.mu.Unlock()
		if open == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ask sends requests at the given rate for the given time and returns their results.
func (b *bench) ask(ctx context.Context, address string, span time.Duration) ([]answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*span+2*timeout) // a server that cannot follow has a backlog
	defer cancel()
	askers := make([]*asker, b.o.connections)
	for i := range askers {
		var err error
		if askers[i], err = b.newAsker(ctx, address); err != nil {
			return nil, err
		}
	}
	var receiving sync.WaitGroup
	for _, a := range askers {
		receiving.Go(a.receive)
	}
	for all := range drive.Arrivals(ctx, b.o.rate, span) {
		for _, due := range all {
			a := askers[rand.IntN(len(askers))]
			a.batch, a.due = append(a.batch, b.requests[rand.IntN(len(b.requests))]), append(a.due, due)
		}
		for _, a := range askers {
			if len(a.batch) > 0 {
				a.send()
			}
		}
	}
	var errs []error
	for _, a := range askers {
		errs = append(errs, a.answered(ctx), a.wire.Close())
	}
	receiving.Wait()
	var all []answer
	for _, a := range askers {
		all = append(all, a.all...)
	}
	if err := errors.Join(errs...); err != nil {
		return all, fmt.Errorf("asking at that rate takes longer than it should: %w", err)
	}
	return all, nil
}

// peak returns how many requests per second a server answers in memory, 200 at once.
func (b *bench) peak(ctx context.Context, address string) (int, error) {
	const requests = 100_000
	at := time.Now()
	outcome, err := drive.Closed(ctx, address, drive.Load{Connections: 4, Streams: 50, Requests: requests, Timeout: timeout},
		func() []byte { return b.requests[rand.IntN(len(b.requests))] })
	if err == nil && outcome.Failed > 0 {
		err = fmt.Errorf("%d of %d requests failed", outcome.Failed, requests)
	}
	return int(requests / time.Since(at).Seconds()), err
}
