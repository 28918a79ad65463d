package limiter

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// readUsage decodes the usage of descriptor i, under a priced rule.
func (v *Verdict) readUsage(s *DescriptorStatus, d *Descriptor, i int) (err error) {
	if v.usage, err = descriptors.ParseUsage(s.Rule.Usage(d.Entries)); err != nil {
		return &InvalidError{[]Violation{{FieldUsage, i, len(s.Rule.Levels), err.Error()}}}
	}
	return nil
}

// price gives the charge of a limit the price of the usage. Without a price for the model a begin
// is denied, as by a ban, and an end changes nothing: the estimate stays. Hits of 0 and refunds
// have no price, but for a begin of 0 hits under a limit that learns: it holds an estimate.
func (v *Verdict) price(c *store.Charge, limit *descriptors.Limit) {
	cost, known := limit.Cost(&v.usage)
	asks := c.Hits <= 0
	if limit.Estimate.Learns() && c.Hold.Phase == algorithms.HoldBegin {
		known = limit.HasPrice(v.usage.Model)
		asks = asks && known
	}
	switch {
	case asks:
	case known:
		c.Hits = cost
	case c.Hold.Phase == algorithms.HoldBegin:
		c.Limit.SetPerPeriod(0)
		c.Limit.Burst, c.CountRejected, c.Hits = 0, false, 1
	default:
		c.Hold, c.Hits, c.Mode = nil, 0, store.Shadow
	}
}

// unpriced reports whether charge i is a begin that was denied because its model has no price.
func (v *Verdict) unpriced(i int) bool {
	c, limit := &v.charges[i], v.terms[i].limit
	return limit.Prices() && c.Limit.Requests == 0 && limit.Requests > 0
}
