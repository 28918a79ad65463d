package server

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// observers is the observers of answered requests. The zero value has no observers, and then costs
// an atomic load for each request. Safe for concurrent use.
type observers struct {
	all atomic.Pointer[[]*limiter.Observer] // nil: none. Pointers, so that equal observers are told apart

	mu sync.Mutex // held while all changes
}

// add adds an observer, and returns the function that removes it. After the removal the observer
// may still see requests that are being answered.
func (o *observers) add(one limiter.Observer) (remove func()) {
	added := &one
	o.change(func(all []*limiter.Observer) []*limiter.Observer { return append(all, added) })
	return func() {
		o.change(func(all []*limiter.Observer) []*limiter.Observer {
			return slices.DeleteFunc(all, func(other *limiter.Observer) bool { return other == added })
		})
	}
}

func (o *observers) change(to func([]*limiter.Observer) []*limiter.Observer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []*limiter.Observer
	if was := o.all.Load(); was != nil {
		all = slices.Clone(*was)
	}
	if all = to(all); len(all) == 0 {
		o.all.Store(nil)
		return
	}
	o.all.Store(&all)
}

func (o *observers) answered(c *call, err error, took time.Duration) {
	if all := o.all.Load(); all != nil {
		for _, one := range *all {
			(*one).Observe(limiter.Observed{Begun: c.begun, Took: took, Request: &c.request, Verdict: &c.verdict, Err: err})
		}
	}
}

// Observe adds an observer of all rate limit requests, by gRPC and by /json, and returns the
// function that removes the observer. Without observers a request costs no more than a load.
func (s *Server) Observe(o limiter.Observer) (remove func()) { return s.service.observers.add(o) }
