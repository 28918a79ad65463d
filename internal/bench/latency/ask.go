package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weirproxy/weir/internal/bench/drive"
)

// answer is what became of a request.
type answer struct {
	sent time.Time
	late time.Duration // between when it should have been sent and when it was
	took time.Duration
	err  error
}

// patience ends requests that are never answered. It is far beyond what any should take, so that how long is seen.
const patience = 2 * time.Second

// ask sends requests at the rate for that long and returns what became of them.
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
	ctx, cancel := context.WithTimeout(ctx, span+patience)
	defer cancel()
	var all []answer
	var mu sync.Mutex // guards all
	var asking sync.WaitGroup
	start := time.Now()
	for due := time.Duration(0); due < span; due += time.Duration(rand.ExpFloat64() / float64(b.o.rate) * float64(time.Second)) {
		if wait := due - time.Since(start); wait > 0 {
			time.Sleep(wait)
		}
		if ctx.Err() != nil {
			break
		}
		asking.Go(func() {
			a := answer{sent: time.Now()}
			a.late = a.sent.Sub(start.Add(due))
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
