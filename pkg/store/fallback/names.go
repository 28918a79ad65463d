package fallback

import (
	"context"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// names is the memory of a transaction about one holder in the local store.
type names struct {
	charges   [2]store.Charge
	holds     [2]store.Hold
	decisions [2]algorithms.Decision
}

// set makes charge i one of the holder of c, under a limit.
func (n *names) set(i int, c *store.Charge, l algorithms.Limit, p algorithms.HoldPhase, hits int64) {
	n.holds[i] = store.Hold{Phase: p, Holder: c.Hold.Holder, AtMost: c.Hold.AtMost}
	n.charges[i] = store.Charge{Key: c.Key, Limit: l, Hits: hits, Hold: &n.holds[i]}
}

// release gives scratch memory back.
func (s *Store) release(n *names) {
	*n = names{} // releases the keys
	s.names.Put(n)
}

// A holder that is denied here must be known until its end, which has no cost then. The local store
// remembers the holder under the limit of its charge, or under a limit of 0 that no rule has. Two
// limits serve for that. The second one has the holders in doubt: the primary was asked about their
// begin, and may have admitted them.

// denials returns the limit under which the local store remembers denied holders. The requests are
// 0, but of a holder that is forgotten.
func (s *Store) denials(doubt bool, requests uint32) algorithms.Limit {
	l := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: requests, Period: s.unused}
	if doubt {
		l.Period -= time.Microsecond
	}
	return l
}

// keepsDenials reports whether the local store remembers the denied holders of a charge under the
// charge's own limit.
func keepsDenials(c *store.Charge) bool {
	return isLocal(c) && c.Limit.Algorithm != algorithms.Concurrency
}

// knowsHolders reports whether the local store may know holders whose begin was decided here.
func (s *Store) knowsHolders() bool {
	until := s.holdersUntil.Load()
	return until > 0 && int64(time.Since(s.started)) < until
}

// noteHolder notes that the local store knows a holder for a time.
func (s *Store) noteHolder(atMost time.Duration) {
	until := int64(time.Since(s.started) + atMost)
	for {
		was := s.holdersUntil.Load()
		if was >= until || s.holdersUntil.CompareAndSwap(was, until) {
			return
		}
	}
}

// known returns the holder of a charge as the local store knows it. doubt says that the holder was
// denied here, and that the primary may have admitted it.
func (s *Store) known(n *names, c *store.Charge) (h algorithms.Hold, doubt bool) {
	if c.Hold.Holder == (store.Holder{}) || !s.knowsHolders() { // has the slots that the primary told of, which an end must not free
		return h, false
	}
	if isLocal(c) {
		if h = s.peek(n, c, c.Limit); h.Status == algorithms.HoldHeld || h.Status == algorithms.HoldEnded {
			return h, false
		}
	}
	if in := s.peek(n, c, s.denials(true, 0)); in.Status == algorithms.HoldDenied {
		return in, true
	}
	if !keepsDenials(c) {
		if h = s.peek(n, c, s.denials(false, 0)); h.Status != algorithms.HoldDenied {
			h = algorithms.Hold{}
		}
	}
	return h, false
}

// peek returns the holder of a charge as the local store knows it under a limit.
func (s *Store) peek(n *names, c *store.Charge, l algorithms.Limit) algorithms.Hold {
	n.set(0, c, l, algorithms.HoldEnd, 0)
	_ = s.local.Peek(context.Background(), n.charges[:1], n.decisions[:1]) // never fails
	return n.holds[0].Was
}

// take has the local store apply the first charges of n.
func (s *Store) take(n *names, count int) {
	_, _ = store.Take(context.Background(), s.local, n.charges[:count], n.decisions[:count]) // never fails
}

// deny remembers that the holder of a charge was denied here.
func (s *Store) deny(n *names, c *store.Charge, doubt bool) {
	if doubt || !keepsDenials(c) {
		n.set(0, c, s.denials(doubt, 0), algorithms.HoldBegin, 1)
		s.take(n, 1)
	}
}

// admit forgets that the holder of a charge was denied here.
func (s *Store) admit(n *names, c *store.Charge) {
	for _, l := range [...]algorithms.Limit{c.Limit, s.denials(false, algorithms.MaxHits), s.denials(true, algorithms.MaxHits)} {
		if l == c.Limit && !keepsDenials(c) || s.peek(n, c, l).Status != algorithms.HoldDenied {
			continue
		}
		n.set(0, c, l, algorithms.HoldBegun, 1) // a holder that begins and ends at once, at no cost, has ended
		n.set(1, c, l, algorithms.HoldEnd, 0)
		s.take(n, 2)
	}
}
