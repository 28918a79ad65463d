// Package watch shows answered requests to people who watch. A [Hub] sees each request on the
// goroutine that answers it, and copies the chosen ones into the bounded queue of each [Watcher]. A
// watcher that reads too slowly loses requests and is told their number.
//
// While nobody watches, the hub sees no request. While somebody watches, a request costs the
// filters, and a copy if it is chosen. The rest of the work, such as the search for the nearest
// miss, is done on the watcher's own goroutine.
package watch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/quota"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// MaxWatchers is the most watchers at once. Watchers of SubscribeDenied do not count.
const MaxWatchers = 32

// Memory of the requests that wait for watchers, in bytes.
const (
	maxWaiting = 16 << 20  // of all watchers together
	maxShare   = 4 << 20   // of one watcher
	maxEvent   = 256 << 10 // of one request; a larger one is lost
)

// ErrTooMany is the error of Subscribe when MaxWatchers watch.
var ErrTooMany = fmt.Errorf("%d clients watch already, which is the most", MaxWatchers)

// InvalidError is a filter out of bounds.
type InvalidError struct{ reason error }

func (e *InvalidError) Error() string { return e.reason.Error() }
func (e *InvalidError) Unwrap() error { return e.reason }

// Options is the options of New. Rules and Observe must be set.
type Options struct {
	Rules         func() *descriptors.Rules                // in force
	Observe       func(limiter.Observer) (remove func())   // begins to observe all answered requests
	ObserveQuotas func(func(*quota.Event)) (remove func()) // likewise, reports and assignments of RLQS; nil: no RLQS
}

// Hub gives answered requests to watchers. All methods are safe for concurrent use. A Hub without
// watchers does nothing and needs no Close.
type Hub struct {
	options Options
	begun   time.Time                  // the zero of all instants
	all     atomic.Pointer[[]*Watcher] // never nil
	share   atomic.Int64               // bytes that may wait for one watcher

	mu     sync.Mutex // held while all changes
	remove func()     // ends the observation; nil without watchers
}

// New returns a hub without watchers.
func New(o Options) (*Hub, error) {
	if o.Rules == nil || o.Observe == nil {
		return nil, errors.New("rules, observe: must not be nil")
	}
	h := &Hub{options: o, begun: time.Now()}
	h.all.Store(new([]*Watcher))
	return h, nil
}

// Subscribe returns a watcher of the requests that in chooses, from now on. The caller must Close
// the watcher. The error is an [*InvalidError] or [ErrTooMany].
func (h *Hub) Subscribe(in *adminv1.WatchRequest) (*Watcher, error) {
	f, err := newFilter(in)
	if err != nil {
		return nil, &InvalidError{err}
	}
	return h.add(&Watcher{filter: f, pace: newPace(float64(in.GetMaxPerSecond())), oneIn: in.GetOneIn()}, MaxWatchers)
}

// SubscribeDenied returns a watcher of requests that were answered OVER_LIMIT, so many per second.
// The rate may be below 1. The server's own log has room also when MaxWatchers watch.
func (h *Hub) SubscribeDenied(perSecond float64) (*Watcher, error) {
	return h.add(&Watcher{filter: filter{denied: true}, pace: newPace(perSecond)}, MaxWatchers+2)
}

// add adds a new watcher, unless there are so many.
func (h *Hub) add(w *Watcher, most int) (*Watcher, error) {
	w.hub, w.wake = h, make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(*h.all.Load()) >= most {
		return nil, ErrTooMany
	}
	h.changeLocked(append(slices.Clone(*h.all.Load()), w))
	return w, nil
}

func (h *Hub) leave(w *Watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changeLocked(slices.DeleteFunc(slices.Clone(*h.all.Load()), func(other *Watcher) bool { return other == w }))
}

// changeLocked puts another list of watchers in place. The hub observes requests as long as there
// are watchers.
func (h *Hub) changeLocked(all []*Watcher) {
	h.share.Store(min(maxWaiting/int64(max(len(all), 1)), maxShare))
	h.all.Store(&all)
	switch {
	case len(all) > 0 && h.remove == nil:
		requests, quotas := h.options.Observe(h), func() {}
		if h.options.ObserveQuotas != nil {
			quotas = h.options.ObserveQuotas(h.observeQuota)
		}
		h.remove = func() { requests(); quotas() }
	case len(all) == 0 && h.remove != nil:
		h.remove()
		h.remove = nil
	}
}

// Watchers returns the number of watchers.
func (h *Hub) Watchers() int { return len(*h.all.Load()) }

// Observe implements [limiter.Observer]. One copy serves all watchers that choose the request.
func (h *Hub) Observe(o limiter.Observed) {
	now := int64(o.Begun.Add(o.Took).Sub(h.begun))
	var copied *event
	var is size
	for _, w := range *h.all.Load() {
		if !w.filter.chooses(&o) || w.oneIn > 1 && rand.Uint32N(w.oneIn) != 0 {
			continue
		}
		if !w.pace.due(now) {
			w.leftOut.Add(1)
			continue
		}
		if is.all == 0 {
			is = sizeOf(&o)
		}
		if !w.reserve(int64(is.all)) {
			continue
		}
		if copied == nil {
			copied = newEvent(&o, is)
		}
		w.put(copied)
	}
}
