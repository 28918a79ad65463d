package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// holding is a load of requests that hold slots of one key.
type holding struct {
	slots   int
	length  time.Duration
	timeout time.Duration // of each request
}

const (
	held   = 100 * time.Millisecond // by each request
	crowds = 1.5                    // times as many requests as there are slots
)

func (h *holding) rules() string {
	return fmt.Sprintf(`domain: %s
descriptors:
  - key: model
    value: x
    rate_limit: {algorithm: concurrency, max_in_flight: %d, hold: {begin: request, end: request_done, at_most: 5s}}
`, domain, h.slots)
}

// run lets the clients begin and end requests.
func (h *holding) run(ctx context.Context, f *fleet, begun time.Time, r *result) truth {
	t := truth{}
	limits := []algorithms.Limit{{Algorithm: algorithms.Concurrency, Requests: uint32(h.slots)}}
	gap := time.Duration(float64(held) / (crowds * float64(h.slots)) * float64(len(f.address)))
	var mu sync.Mutex // guards all, t and r
	var all []hold
	var clients sync.WaitGroup
	for i := range f.address {
		var schedule []due
		var begins [][]byte
		for at := gap * time.Duration(i) / time.Duration(len(f.address)); at < h.length; at += gap {
			schedule = append(schedule, due{at, len(begins)})
			begins = append(begins, h.request("request", i, len(begins)))
		}
		charged := make([][]int, len(begins))
		c := &client{address: f.address[i], begun: begun, timeout: h.timeout, charged: charged}
		c.note = func(e *exchange, number int) {
			if number < 0 || e.outcome != allowed {
				return
			}
			from := e.received
			c.next++
			time.AfterFunc(held, func() {
				defer c.sent()
				to := time.Now()
				c.send(h.request("request_done", i, number), nil, -1)
				mu.Lock()
				defer mu.Unlock()
				all = append(all, hold{0, from, to})
			})
		}
		clients.Go(func() {
			run := c.run(ctx, begins, schedule)
			mu.Lock()
			defer mu.Unlock()
			t.run = append(t.run, run...)
			r.blame(c.why)
		})
	}
	clients.Wait()
	mu.Lock()
	defer mu.Unlock()
	r.crowd, r.long = crowd(limits, all)
	return t
}

// request returns the begin or the end of a request.
func (h *holding) request(phase string, sidecar, number int) []byte {
	encoded, err := drive.Request(domain, []drive.Entry{{Key: "model", Value: "x"}, {Key: phase, Value: fmt.Sprintf("%d-%d", sidecar, number)}})
	if err != nil {
		return nil // no entry of ours is too large
	}
	return encoded
}
