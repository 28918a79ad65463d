package server

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// observers is observers of one kind. The zero value has no observers, and then costs an atomic
// load for each event. Safe for concurrent use.
type observers[T any] struct {
	all atomic.Pointer[[]*T] // nil: none. Pointers, so that equal observers are told apart

	mu sync.Mutex // held while all changes
}

// add adds an observer, and returns the function that removes it. After the removal the observer
// may still see events that are under way.
func (o *observers[T]) add(one T) (remove func()) {
	added := &one
	o.change(func(all []*T) []*T { return append(all, added) })
	return func() {
		o.change(func(all []*T) []*T {
			return slices.DeleteFunc(all, func(other *T) bool { return other == added })
		})
	}
}

func (o *observers[T]) change(to func([]*T) []*T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []*T
	if was := o.all.Load(); was != nil {
		all = slices.Clone(*was)
	}
	if all = to(all); len(all) == 0 {
		o.all.Store(nil)
		return
	}
	o.all.Store(&all)
}

// answered shows an answered request to the observers.
func (s *service) answered(c *call, err error, took time.Duration) {
	if all := s.observers.all.Load(); all != nil {
		for _, one := range *all {
			(*one).Observe(limiter.Observed{Begun: c.begun, Took: took, Request: &c.request, Verdict: &c.verdict, Err: err})
		}
	}
}

// Observe adds an observer of all rate limit requests, by gRPC and by /json, and returns the
// function that removes the observer. Without observers a request costs no more than a load.
func (s *Server) Observe(o limiter.Observer) (remove func()) { return s.service.observers.add(o) }
