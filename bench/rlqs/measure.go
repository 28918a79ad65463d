package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/test/promise"
)

// verdict is a row as the clients saw it.
type verdict struct {
	admitted, expected, over, failed int
	median, longest                  time.Duration // from a first request to a first answer with 200
	cpu                              float64       // milliseconds in a second
}

// client sends the requests of one tenant to one Envoy, and notes each answer.
type client struct {
	url   string
	load  *load
	begun time.Time
	http  *http.Client
	slots chan struct{} // of requests in flight

	mu       sync.Mutex // guards the rest
	all      []promise.Request
	asked    int64 // when the first request of a bucket was sent; 0: none
	waits    []time.Duration
	failures int
}

const inFlight = 64

func clientOf(connections int) *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections}}
}

func newRequest(ctx context.Context, url, tenant string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err == nil {
		r.Header.Set("X-Tenant", tenant)
	}
	return r, err
}

// run sends requests at random instants until the context ends, and waits for the answers.
func (c *client) run(ctx context.Context, rate func(at time.Duration) float64) {
	var open sync.WaitGroup
	for next := time.Duration(0); ctx.Err() == nil; {
		r := rate(next)
		if r == 0 {
			next += 10 * time.Millisecond
		} else {
			next += time.Duration(rand.ExpFloat64() / r * float64(time.Second))
		}
		if early := next - time.Since(c.begun); early > 0 && !drive.Pause(ctx, early) {
			break
		}
		if r > 0 {
			c.slots <- struct{}{}
			open.Go(func() {
				c.one(context.WithoutCancel(ctx))
				<-c.slots
			})
		}
	}
	open.Wait()
}

func (c *client) one(ctx context.Context) {
	r, err := newRequest(ctx, c.url, c.load.tenant)
	if err != nil {
		return
	}
	now := func() int64 { return c.begun.UnixNano() + int64(time.Since(c.begun)) } // a wall clock may be set
	sent := now()
	c.mu.Lock()
	if c.asked == 0 {
		c.asked = sent
	}
	c.mu.Unlock()
	a, err := c.http.Do(r)
	received := now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		err = a.Body.Close()
	}
	if err != nil || a.StatusCode != http.StatusOK && a.StatusCode != http.StatusTooManyRequests {
		c.failures++
		return
	}
	admitted := a.StatusCode == http.StatusOK
	if admitted && c.asked > 0 {
		c.waits = append(c.waits, time.Duration(received-c.asked))
		c.asked = -1
	}
	c.all = append(c.all, promise.Request{Sent: sent, Received: received, Keys: []int{0}, Admitted: admitted})
}

// measure runs a row, and returns a verdict for each of its loads.
func measure(ctx context.Context, root string, r *row, o *options) (all []verdict, err error) {
	dir, err := os.MkdirTemp("", "rlqs")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	w, err := start(ctx, root, dir, r.rules(), o)
	defer w.close()
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithTimeout(ctx, o.lasts)
	defer cancel()
	before, err := drive.CPU(w.sidecar.PID())
	if err != nil {
		return nil, err
	}
	sidecar, begun := w.sidecar, time.Now()
	var running sync.WaitGroup
	clients := make([][]*client, len(r.loads))
	for n := range r.loads {
		l := &r.loads[n]
		for i := range envoys {
			c := &client{url: w.urls[i], load: l, begun: begun, http: clientOf(inFlight), slots: make(chan struct{}, inFlight)}
			clients[n] = append(clients[n], c)
			running.Go(func() { c.run(run, func(at time.Duration) float64 { return l.rate(i, at) }) })
		}
	}
	var faulty error
	left := []period{{to: begun.Add(o.warm)}}
	if r.fault != nil {
		running.Go(func() {
			var more []period
			more, faulty = r.happen(run, w)
			left = append(left, more...)
		})
	}
	running.Wait()
	if err := errors.Join(faulty, context.Cause(ctx)); err != nil {
		return nil, err
	}
	all = make([]verdict, len(r.loads))
	for n := range all {
		all[n].judge(&r.loads[n], clients[n], left)
	}
	if sidecar == w.sidecar {
		after, err := drive.CPU(w.sidecar.PID())
		if err != nil {
			return nil, err
		}
		all[0].cpu = (after - before).Seconds() * 1000 / time.Since(begun).Seconds()
	}
	return all, nil
}

// period is a time of which the admitted part does not count.
type period struct{ from, to time.Time }

// happen lets the fault happen again and again. With settles, the results are the times of which
// the admitted part does not count.
func (r *row) happen(ctx context.Context, w *world) (left []period, err error) {
	for n := 0; drive.Pause(ctx, r.every); n++ {
		from := time.Now()
		if err := r.fault(ctx, w, n); err != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("fault %d: %w", n, err)
		}
		if r.settles > 0 {
			left = append(left, period{from, time.Now().Add(r.settles)})
		}
	}
	return left, nil
}

func (v *verdict) judge(l *load, all []*client, left []period) {
	var history []promise.Request
	var waits []time.Duration
	for _, c := range all {
		history, waits = append(history, c.all...), append(waits, c.waits...)
		v.failed += c.failures
	}
	limits := []algorithms.Limit{l.limit}
	v.over = promise.Over(promise.Judge(limits, history, 0))
	for i, expected := range promise.Replay(limits, history) {
		sent := time.Unix(0, history[i].Sent)
		if slices.ContainsFunc(left, func(p period) bool { return !sent.Before(p.from) && sent.Before(p.to) }) {
			continue
		}
		if history[i].Admitted {
			v.admitted++
		}
		if expected {
			v.expected++
		}
	}
	if slices.Sort(waits); len(waits) > 0 {
		v.median, v.longest = waits[len(waits)/2].Round(time.Millisecond/10), waits[len(waits)-1].Round(time.Millisecond/10)
	}
}
