package shared

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// The share of this process. While the remote store cannot be asked, each hit costs as many hits in
// the local store as there are processes. So if all processes have seen the same states and are cut
// off together, they admit at most the hits that were left. A process that has not seen the hits of
// others can admit its share of these again. A limit below the number of processes counts as that
// many processes, so that a full key admits at least one hit in each. If the fleet is counted too
// small, the processes admit more in the proportion; if too large, they admit less.

// isLocal reports whether the local store decides the charge while the remote store cannot be
// asked.
func isLocal(c *store.Charge) bool {
	return c.OnError != store.OnErrorAllow && c.OnError != store.OnErrorDeny
}

// sharers returns the number of processes that share the key of a charge: the fleet, but not more
// than a full key admits hits.
func sharers(c *store.Charge, fleet int) int64 {
	return max(1, min(int64(fleet), int64(c.Limit.Capacity())))
}

// cost returns the hits that a charge costs in the local store: as many for each process. A refund
// returns its own hits only.
func cost(c *store.Charge, fleet int) int64 {
	n := sharers(c, fleet)
	if c.Hits <= 0 {
		return c.Hits
	}
	if c.Hits > algorithms.MaxHits/n {
		return algorithms.MaxHits
	}
	return c.Hits * n
}

// partOf returns the part of the limit that the local store has given to a charge, which it has
// decided at an instant of the remote store's clock. The wait until the key is full shows when it
// would be full without the charge.
func partOf(c *store.Charge, d *algorithms.Decision, at algorithms.Instant, fleet int) store.Part {
	if c.Limit.Requests == 0 || !isLocal(c) {
		return store.Part{}
	}
	own := scale(c.Limit.Period, uint64(max(0, cost(c, fleet))), uint64(c.Limit.Requests))
	return store.Part{Full: at.Add(d.ResetAfter) - algorithms.Instant(own), Mine: 1, Of: uint32(sharers(c, fleet))}
}

// unseenPart is the part of the hits left that a process leaves to the hits of others that an
// answer does not show. Others may use these after the answer, and before an outage.
const unseenPart = 64

// leaveUnseen counts the unseen part as used, in the state that goes on in the local store. For an
// algorithm without a state the decision has it.
func leaveUnseen(c *store.Charge, told *store.State, d *algorithms.Decision) {
	unseen := d.Remaining / unseenPart
	switch {
	case unseen == 0 || told.Now == 0:
	case c.Limit.Algorithm.HasState():
		told.Take(c.Limit, told.Now, int64(unseen), true)
	default:
		d.Remaining -= unseen
	}
}

// applied returns the hits of a charge without a holder that a request without the remote store has
// applied. As package store says, these are all or none.
func applied(c *store.Charge, d *algorithms.Decision, admitted bool) int64 {
	if c.Hold == nil && (c.CountRejected || admitted && d.Allowed) {
		return c.Hits
	}
	return 0
}
