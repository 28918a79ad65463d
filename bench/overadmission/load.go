package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/bench/drive"
)

// asked is a request that was answered. The decision fell somewhere from sent to received, by the clock of this machine, which
// is Redis's, too.
type asked struct {
	sent, received int64 // Unix nanoseconds
	choice         uint16
	admitted       bool
}

// failures are requests that ended in an error.
type failures struct {
	count int
	first error
}

// load lets all clients ask until there were as many decisions as wanted, and returns those.
func load(ctx context.Context, o options, f *fleet, p *plan) ([]asked, failures, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conns := make([]*drive.Conn, o.clients)
	for i := range conns {
		conn, err := drive.Dial(f.sidecars[i%len(f.sidecars)].GRPC)
		if err != nil {
			return nil, failures{}, err
		}
		defer func() { _ = conn.Close() }()
		conns[i] = conn
	}
	var left atomic.Int64
	left.Store(int64(o.decisions))
	wall, mono := time.Now().Round(0), time.Now()
	of := make([][]asked, o.clients)
	failed := make([]failures, o.clients)
	var clients sync.WaitGroup
	for i, conn := range conns {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 4711))
			for left.Add(-1) >= 0 && ctx.Err() == nil {
				n := random.IntN(len(p.choices))
				sent := time.Now()
				admitted, err := conn.Ask(ctx, p.choices[n].encoded)
				received := time.Now()
				if err != nil {
					failed[i].count++
					failed[i].first = err
					continue
				}
				of[i] = append(of[i], asked{sent.UnixNano(), received.UnixNano(), uint16(n), admitted})
			}
		})
	}
	clients.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, failures{}, err
	}
	if drift := time.Now().Round(0).Sub(wall) - time.Since(mono); drift.Abs() > maxDrift {
		return nil, failures{}, fmt.Errorf("the clock of this machine was set, by %v: nothing can be said", drift)
	}
	var history []asked
	var all failures
	for i := range of {
		history = append(history, of[i]...)
		all.count += failed[i].count
		all.first = errors.Join(all.first, failed[i].first)
	}
	return history, all, nil
}

// maxDrift is how far the wall clock may be corrected during a run.
const maxDrift = 50 * time.Millisecond
