package main

import (
	"context"
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

// timeout ends a request without an answer. The value is far above any real answer's time, so that a slow answer is measured and not
// cut off.
const timeout = 2 * time.Second

// ask sends requests at the given rate for the given time and returns their results.
func (b *bench) ask(ctx context.Context, address string, span time.Duration) ([]answer, error) {
	conns := make([]*drive.Conn, b.o.connections)
	for i := range conns {
		conn, err := drive.Dial(address)
		if err != nil {
			return nil, err
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.Ask(ctx, b.requests[i%len(b.requests)]); err != nil { // connects
			return nil, err
		}
		conns[i] = conn
	}
	ctx, cancel := context.WithTimeout(ctx, span+timeout)
	defer cancel()
	var all []answer
	var mu sync.Mutex // guards all
	var asking sync.WaitGroup
	for due := range drive.Arrivals(ctx, b.o.rate, span) {
		asking.Go(func() {
			a := answer{sent: time.Now()}
			a.late = a.sent.Sub(due)
			_, a.err = conns[rand.IntN(len(conns))].Ask(ctx, b.requests[rand.IntN(len(b.requests))])
			a.took = time.Since(a.sent)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, a)
		})
	}
	asking.Wait()
	if err := context.Cause(ctx); err != nil {
		return all, fmt.Errorf("asking at that rate takes longer than it should: %w", err)
	}
	return all, nil
}
