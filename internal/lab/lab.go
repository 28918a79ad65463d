// Package lab is a limiter with counts in memory in virtual time, for simulations and for tests of
// rules.
package lab

import (
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// World is a limiter with counts of its own. Time is 0 until SetTime, and stands still between two
// calls. Close a World after use.
type World struct {
	*limiter.Limiter
	Counts *memstore.Store

	now atomic.Int64 // the counts read it from other goroutines too
}

// New returns a world without counts. rules may be nil: no rules. New sets Virtual of the counts.
func New(rules *descriptors.Rules, counts memstore.Options) (*World, error) {
	w := new(World)
	counts.Virtual = func() algorithms.Instant { return algorithms.Instant(w.now.Load()) }
	var err error
	if w.Counts, err = memstore.New(counts); err != nil {
		return nil, err
	}
	if w.Limiter, err = limiter.New(w.Counts, limiter.Options{Now: func() time.Time { return time.Unix(0, w.now.Load()) }}); err != nil {
		w.Counts.Close()
		return nil, err
	}
	if rules != nil {
		w.SetRules(rules)
	}
	return w, nil
}

// SetTime sets the time of the world.
func (w *World) SetTime(now algorithms.Instant) { w.now.Store(int64(now)) }

// Close frees the counts.
func (w *World) Close() { w.Counts.Close() }
