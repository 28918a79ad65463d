package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/weirproxy/weir/bench/drive"
)

const (
	// longest is the time that a client really waits, to see answers after the deadline.
	longest = 10 * time.Second
	redial  = 20 * time.Millisecond
)

// client sends the requests of one sidecar at their instants, and notes each answer. A connection
// that ends is made again.
type client struct {
	address string
	begun   time.Time
	timeout time.Duration // each request says that its caller waits for that long; 0: nothing
	charged [][]int
	note    func(e *exchange, number int) // gets each end, one at a time, with mu held; nil: nobody needs it

	mu   sync.Mutex
	wire *drive.Wire // nil: there is no connection
	open map[uint32]pending
	next int // requests that note will send
	all  []exchange
	why  map[string]int // errors by their text
}

type pending struct {
	exchange

	number int
}

// run sends requests until all are sent or ctx ends, waits for answers, and returns the exchanges.
func (c *client) run(ctx context.Context, requests [][]byte, schedule []due) []exchange {
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var dialing sync.WaitGroup
	first := make(chan struct{})
	dialing.Go(func() { c.stayConnected(whole, first) })
	select {
	case <-first:
	case <-time.After(longest):
	}
	for n, d := range schedule {
		if wait := time.Until(c.begun.Add(d.at)); wait > 0 && !drive.Pause(ctx, wait) || ctx.Err() != nil {
			break
		}
		c.send(requests[d.key], c.charged[d.key], n)
	}
	for until := time.Now().Add(longest); drive.Pause(ctx, redial) && time.Now().Before(until) && c.waits(); {
	}
	cancel()
	dialing.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all
}

// waits reports whether requests are open, or will be sent.
func (c *client) waits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)+c.next > 0
}

// stayConnected keeps a connection and reads answers until ctx ends.
func (c *client) stayConnected(ctx context.Context, first chan struct{}) {
	for ctx.Err() == nil {
		wire, err := drive.DialWire(ctx, c.address, c.timeout)
		if err == nil {
			c.mu.Lock()
			c.wire, c.open = wire, make(map[uint32]pending)
			c.mu.Unlock()
			if first != nil {
				close(first)
				first = nil
			}
			for err == nil {
				err = wire.Receive(c.ended)
			}
			_ = wire.Close()
			c.disconnect(ctx.Err() == nil)
		}
		drive.Pause(ctx, redial)
	}
}

// disconnect ends all requests that are open. lost says that the sidecar ended the connection.
func (c *client) disconnect(lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.open {
		if lost {
			c.endLocked(p, unreached)
		} else {
			c.failLocked(p, "no answer")
		}
	}
	c.wire, c.open = nil, nil
}

func (c *client) send(request []byte, charged []int, number int) {
	p := pending{exchange{sent: time.Now(), keys: charged}, number}
	c.mu.Lock()
	wire := c.wire
	c.mu.Unlock()
	noted := false
	if wire != nil {
		_ = wire.Send(func(stream uint32) { // an error ends the connection
			c.mu.Lock()
			defer c.mu.Unlock()
			if noted = c.wire == wire; noted {
				c.open[stream] = p
			}
		}, request)
	}
	if !noted {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.endLocked(p, unreached)
	}
}

// sent notes that one request less will be sent.
func (c *client) sent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next--
}

// ended notes the answer to a request.
func (c *client) ended(stream uint32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, is := c.open[stream]
	if !is {
		return
	}
	delete(c.open, stream)
	switch {
	case err == nil:
		c.endLocked(p, allowed)
	case errors.Is(err, drive.ErrDenied):
		c.endLocked(p, denied)
	default:
		c.failLocked(p, err.Error())
	}
}

func (c *client) failLocked(p pending, why string) {
	if c.why == nil {
		c.why = make(map[string]int)
	}
	c.why[why]++
	c.endLocked(p, failed)
}

// endLocked notes the end of a request. The mu must be held.
func (c *client) endLocked(p pending, o outcome) {
	p.received, p.outcome = time.Now(), o
	c.all = append(c.all, p.exchange)
	if c.note != nil {
		c.note(&p.exchange, p.number)
	}
}
