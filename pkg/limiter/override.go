package limiter

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// unitLimits holds a limit of 0 requests for every algorithm and unit, so that the usual override,
// of one unit, needs no new key suffix.
type unitLimits map[unitKey]descriptors.Limit

type unitKey struct {
	algorithm algorithms.Algorithm
	unit      descriptors.Unit
}

func newUnitLimits(calendarMonths bool) unitLimits {
	known := make(unitLimits)
	for _, a := range algorithms.RateAlgorithms() {
		for unit := descriptors.Second; unit.Duration() > 0; unit++ {
			known[unitKey{a, unit}] = descriptors.NewLimit(algorithms.Limit{Algorithm: a, Period: unit.Duration()}, unit, 1, false, 1)
		}
	}
	if calendarMonths {
		month, _ := algorithms.NewCalendar(algorithms.CalendarSpec{Unit: algorithms.CalendarMonth, Count: 1}) // is valid
		aligned := algorithms.Limit{Algorithm: algorithms.CalendarWindow, Period: descriptors.Month.Duration(), Extra: algorithms.Extra{Calendar: month}}
		known[unitKey{algorithms.FixedWindow, descriptors.Month}] = descriptors.NewLimit(aligned, descriptors.Month, 1, false, 1)
	}
	return known
}

// override returns the limit of an override of descriptor i, or an [*InvalidError]. A request does
// not bring the algorithm, count_rejected, on_store_error and hold: these are as in like. The store
// decides each hit of an override. An override of the unit of like is aligned as like is. Other
// units are not aligned, but for Options.CalendarMonths. An override of concurrency takes the
// number of requests as max_in_flight, and ignores the unit.
func (l *Limiter) override(o *Override, i int, like *descriptors.Limit) (limit descriptors.Limit, err error) {
	if like.Algorithm == algorithms.SlidingWindowLog && o.Requests > descriptors.MaxLogEntries {
		return limit, &InvalidError{[]Violation{violation(FieldOverrideRequests, i,
			"%d is more than sliding_window_log remembers, must be at most %d", o.Requests, descriptors.MaxLogEntries)}}
	}
	switch {
	case like.Algorithm == algorithms.Concurrency: // which has no period
		limit = *like
		limit.Requests, limit.Name = o.Requests, ""
	case like.Calendar != nil && like.Unit == o.Unit && like.Multiplier == max(o.Multiplier, 1):
		aligned := algorithms.Limit{Algorithm: like.Algorithm, Requests: o.Requests, Period: like.Period, Extra: algorithms.Extra{Calendar: like.Calendar}}
		limit = descriptors.NewLimit(aligned, o.Unit, like.Multiplier, like.CountRejected, 1)
	case o.Multiplier <= 1:
		limit = l.units[unitKey{like.Algorithm.Plain(), o.Unit}]
		limit.Requests, limit.CountRejected = o.Requests, like.CountRejected
	default:
		limit = descriptors.NewLimit(
			algorithms.Limit{Algorithm: like.Algorithm.Plain(), Requests: o.Requests, Period: o.Unit.Duration() * time.Duration(o.Multiplier)},
			o.Unit, o.Multiplier, like.CountRejected, 1,
		)
	}
	limit.OnStoreError, limit.Sharing, limit.AtMost = like.OnStoreError, descriptors.SharingExact, like.AtMost
	limit.GivesBack = like.GivesBack
	if err := limit.Validate(); err != nil {
		return limit, &InvalidError{[]Violation{violation(FieldOverride, i, "%v", err)}}
	}
	return limit, nil
}
