package limiter

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// unitLimits holds a limit of 0 requests for every algorithm and unit, so that an override of a whole unit, the usual one,
// needs no new key suffix.
type unitLimits map[unitKey]descriptors.Limit

type unitKey struct {
	algorithm algorithms.Algorithm
	unit      descriptors.Unit
}

func newUnitLimits() unitLimits {
	known := make(unitLimits)
	for _, a := range algorithms.Algorithms() {
		for unit := descriptors.Second; unit.Duration() > 0; unit++ {
			known[unitKey{a, unit}] = descriptors.NewLimit(algorithms.Limit{Algorithm: a, Period: unit.Duration()}, unit, 1, false, 1)
		}
	}
	return known
}

// override returns the limit that came with descriptor i, like another in all that a request does not bring, or an
// [*InvalidError].
func (l *Limiter) override(o Override, i int, like *descriptors.Limit) (limit descriptors.Limit, err error) {
	algorithm, countRejected := like.Algorithm, like.CountRejected
	if algorithm == algorithms.SlidingWindowLog && o.Requests > l.options.MaxLogEntries {
		e := &InvalidError{}
		e.add(field(i, "limit.requests_per_unit"), "%d is more than sliding_window_log remembers, must be at most %d",
			o.Requests, l.options.MaxLogEntries)
		return limit, e
	}
	unit := descriptors.Unit(o.Unit)
	if !o.HasMultiplier || o.Multiplier == 1 {
		limit = l.units[unitKey{algorithm, unit}]
		limit.Requests, limit.CountRejected = o.Requests, countRejected
	} else {
		limit = descriptors.NewLimit(
			algorithms.Limit{Algorithm: algorithm, Requests: o.Requests, Period: unit.Duration() * time.Duration(o.Multiplier)},
			unit, o.Multiplier, countRejected, 1,
		)
	}
	limit.OnStoreError = like.OnStoreError
	if err := limit.Validate(); err != nil {
		e := &InvalidError{}
		e.add(field(i, "limit"), "%v", err)
		return limit, e
	}
	return limit, nil
}
