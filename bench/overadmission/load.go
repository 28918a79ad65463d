package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/test/promise"
)

// failures are requests that ended in an error.
type failures struct {
	count int
	first error
}

// results are the answers to a load.
type results struct {
	history []promise.Request // that got an answer
	failed  failures
	took    []time.Duration // of all requests, in order
	since   int64           // Unix nanoseconds: hits of earlier requests count only where they are over the limits
}

// within returns the milliseconds within which that share of the requests ended.
func (r *results) within(share float64) string {
	return fmt.Sprintf("%.1f", program.At(r.took, share).Seconds()*1e3)
}

// schedule says when which request is due.
type schedule struct {
	order    []int         // numbers of choices; nil: at random
	interval time.Duration // between two requests of all clients; 0: none
}

// load lets all clients ask until there were as many decisions as wanted, or for the wanted time. A
// fault may disturb the fleet meanwhile.
func load(ctx context.Context, o options, f *fleet, p *plan, s schedule) (*results, error) {
	// Requests have no deadline: a sidecar waits three quarters of one, in place of its
	// --redis-timeout.
	free, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	conns := make([]*drive.Conn, o.clients)
	for i := range conns {
		conn, err := drive.Dial(f.address[i%len(f.address)])
		if err != nil {
			return nil, err
		}
		defer func() { _ = conn.Close() }()
		conns[i] = conn
	}
	faulty, faultless := context.WithCancel(ctx)
	disturbed := make(chan error, 1)
	go func() { disturbed <- f.repeat(faulty, o.fault) }()
	asking := ctx
	if o.duration > 0 {
		var enough context.CancelFunc
		asking, enough = context.WithTimeout(ctx, o.duration)
		defer enough()
	}
	wall, begun := time.Now().Round(0), time.Now()
	of := make([]results, o.clients)
	var started atomic.Int64
	var clients sync.WaitGroup
	for i, conn := range conns {
		c := &client{o: o, p: p, s: s, conn: conn, sidecar: i % o.sidecars, begun: begun, random: rand.New(rand.NewPCG(uint64(i), 4711))}
		clients.Go(func() { c.ask(free, asking, &started, &of[i]) })
	}
	clients.Wait()
	faultless()
	if err := errors.Join(<-disturbed, context.Cause(ctx)); err != nil {
		return nil, err
	}
	if drift := time.Now().Round(0).Sub(wall) - time.Since(begun); drift.Abs() > maxDrift {
		return nil, fmt.Errorf("the clock of this machine was set, by %v: nothing can be said", drift)
	}
	all := join(of)
	all.since = begun.Add(o.warm).UnixNano()
	return all, nil
}

// maxDrift is how far the wall clock may be corrected during a run.
const maxDrift = 50 * time.Millisecond

// join puts the results of all clients together.
func join(of []results) *results {
	all := &results{}
	for i := range of {
		all.history = append(all.history, of[i].history...)
		all.took = append(all.took, of[i].took...)
		all.failed.count += of[i].failed.count
		if all.failed.first == nil {
			all.failed.first = of[i].failed.first
		}
	}
	slices.Sort(all.took)
	return all
}

// client asks one sidecar, with one request at a time.
type client struct {
	o       options
	p       *plan
	s       schedule
	conn    *drive.Conn
	sidecar int
	begun   time.Time
	random  *rand.Rand
}

// ask asks while asking goes on. A request that has begun gets the time that it needs.
func (c *client) ask(ctx, asking context.Context, started *atomic.Int64, r *results) {
	for c.turn(asking) {
		i := started.Add(1) - 1
		if i >= int64(c.o.decisions) || c.s.order != nil && i >= int64(len(c.s.order)) {
			return
		}
		if c.s.interval > 0 && !pause(asking, time.Until(c.begun.Add(time.Duration(i)*c.s.interval))) {
			return
		}
		n := c.random.IntN(len(c.p.choices))
		if c.s.order != nil {
			n = c.s.order[i]
		}
		sent := time.Now()
		admitted, err := c.conn.Ask(ctx, c.p.choices[n].encoded)
		received := time.Now()
		r.took = append(r.took, received.Sub(sent))
		if err != nil {
			r.failed.count++
			r.failed.first = err
			pause(asking, 10*time.Millisecond)
			continue
		}
		r.history = append(r.history, promise.Request{
			Sent: sent.UnixNano(), Received: received.UnixNano(), Keys: c.p.choices[n].keys, Admitted: admitted,
		})
	}
}

// turn waits until a load that moves is at this client's sidecar, and reports whether ctx goes on.
func (c *client) turn(ctx context.Context) bool {
	for c.o.load != even && ctx.Err() == nil {
		phase := time.Since(c.begun) / c.o.move
		places := c.o.sidecars
		if c.o.load == bursts {
			places *= 2 // nobody is asked in half of the phases
		}
		if rand.New(rand.NewPCG(uint64(phase), 42)).IntN(places) == c.sidecar {
			break
		}
		pause(ctx, time.Until(c.begun.Add((phase+1)*c.o.move)))
	}
	return ctx.Err() == nil
}
