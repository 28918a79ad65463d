package limiter

import (
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// Verdict is the answer to a request. It belongs to the caller, who may reuse it: Check overwrites it and allocates nothing
// once it has grown. What it points to is good until the next Check into it.
type Verdict struct {
	OverLimit bool               // the request as a whole must not pass
	Statuses  []DescriptorStatus // one for each descriptor, in order

	charges   []store.Charge
	decisions []algorithms.Decision
	keys      []byte
	values    []byte
	limits    []descriptors.Limit  // overrides of this request
	charged   []*descriptors.Limit // of charges[i]
	replaced  []string             // names whose limits are taken out of this request
}

// Outcome says how a descriptor was treated.
type Outcome uint8

// The outcomes.
const (
	NoLimit   Outcome = iota // nothing matched, or a rule that does not limit
	Unlimited                // a rule that lets everything pass
	Replaced                 // another rule's replaces took all its limits away
	Limited                  // Limit and Decision say what was found
)

// DescriptorStatus is the answer for one descriptor.
type DescriptorStatus struct {
	Outcome    Outcome
	Rule       *descriptors.Rule // nil when nothing matched
	Overridden bool              // the limit came with the request

	// Of a Limited descriptor: the limit that decided (of several, the denying one with the longest retry, else the one with
	// the least remaining), what it decided and on how many hits (negative: a refund).
	Limit    *descriptors.Limit
	Decision algorithms.Decision
	Hits     int64

	OverLimit bool // what to report: denied, and not in shadow mode
	Quota     bool // the limit is one of the request's quotas, of which one with room is enough
	Shadowed  bool // denied in shadow mode, and so reported as if it were not

	domain *descriptors.Domain
	charge int // first of its charges
	count  int // and how many
}

// reset empties the verdict.
func (v *Verdict) reset() {
	v.OverLimit = false
	v.Statuses, v.charges = v.Statuses[:0], v.charges[:0]
	v.keys, v.limits = v.keys[:0], v.limits[:0]
	v.charged, v.replaced = v.charged[:0], v.replaced[:0]
}

// sum makes of the decisions on a descriptor's charges the one that its status reports.
func (v *Verdict) sum(s *DescriptorStatus) {
	best := s.charge
	for i := best + 1; i < s.charge+s.count; i++ {
		d, b := &v.decisions[i], &v.decisions[best]
		switch {
		case d.Allowed != b.Allowed:
			if !d.Allowed {
				best = i
			}
		case d.Allowed && d.Remaining < b.Remaining, !d.Allowed && d.RetryAfter > b.RetryAfter:
			best = i
		}
	}
	s.Decision = v.decisions[best]
	s.Limit = v.charged[best]
	if !s.Decision.Allowed {
		s.Shadowed = s.Rule != nil && s.Rule.Shadow && !s.Overridden
		s.OverLimit = !s.Shadowed
	}
}

// quotas makes no charge deny the request when one of its descriptors has no limit: that is a quota with room, where all are
// quotas.
func (v *Verdict) quotas() {
	free := slices.ContainsFunc(v.Statuses, func(s DescriptorStatus) bool { return s.Outcome == NoLimit || s.Outcome == Replaced })
	for i := range v.charges {
		if free {
			v.charges[i].Mode = store.Shadow
		}
	}
}
