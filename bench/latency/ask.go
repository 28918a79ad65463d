package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weirproxy/weir/bench/drive"
)

// answer is the result of one request.
type answer struct {
	sent time.Time
	late time.Duration // between when it should have been sent and when it was
	took time.Duration
	err  error
}

// timeout ends a request without an answer. The value is far above any real answer's time, so that
// a slow answer is measured and not cut off.
const timeout = 2 * time.Second

// asker asks on one connection. A goroutine of its own reads the answers.
type asker struct {
	wire *drive.Wire

	mu   sync.Mutex        // guards the rest
	open map[uint32]answer // by stream
	all  []answer
	err  error // the connection has ended
}

func (b *bench) newAsker(ctx context.Context, address string) (*asker, error) {
	wire, err := drive.DialWire(ctx, address, 0)
	if err != nil {
		return nil, err
	}
	a := &asker{wire: wire, open: make(map[uint32]answer)}
	ended := false // the table of headers has all fields after the first request
	err = wire.Send(nil, b.requests[0])
	for err == nil && !ended {
		err = wire.Receive(func(_ uint32, failed error) { ended, a.err = true, failed })
	}
	return a, errors.Join(err, a.err)
}

// send sends a request. A request on a connection that has ended fails.
func (a *asker) send(request []byte, due time.Time) {
	now := time.Now()
	sent := answer{sent: now, late: now.Sub(due)}
	a.mu.Lock()
	sent.err = a.err
	a.mu.Unlock()
	noted := false // receive looks after the request
	if sent.err == nil {
		sent.err = a.wire.Send(func(stream uint32) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.open[stream], noted = sent, true
		}, request)
	}
	if sent.err != nil && !noted {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all = append(a.all, sent)
	}
}

// receive reads answers until the connection ends, which fails all requests that are open.
func (a *asker) receive() {
	var err error
	for err == nil {
		err = a.wire.Receive(func(stream uint32, failed error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if one, ok := a.open[stream]; ok {
				delete(a.open, stream)
				one.took, one.err = time.Since(one.sent), failed
				a.all = append(a.all, one)
			}
		})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
	for _, one := range a.open {
		one.took, one.err = time.Since(one.sent), err
		a.all = append(a.all, one)
	}
	a.open = nil
}

// answered waits until all requests have their answers. The server answers each within the timeout.
func (a *asker) answered(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		a.mu.Lock()
		n := len(a.open)
		a.mu.Unlock()
		if n == 0 {
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
	ctx, cancel := context.WithTimeout(ctx, span+2*timeout)
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
	for due := range drive.Arrivals(ctx, b.o.rate, span) {
		askers[rand.IntN(len(askers))].send(b.requests[rand.IntN(len(b.requests))], due)
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
	failed, err := drive.Closed(ctx, address, drive.Load{Connections: 4, Streams: 50, Requests: requests, Timeout: timeout},
		func() []byte { return b.requests[rand.IntN(len(b.requests))] })
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d of %d requests failed", failed, requests)
	}
	return int(requests / time.Since(at).Seconds()), err
}
