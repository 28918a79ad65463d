package limiter

import (
	"fmt"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// valid reports whether the request can be decided. It is quick, and violations says what is wrong.
func (l *Limiter) valid(r *Request) bool {
	if r.Domain == "" || len(r.Descriptors) == 0 || len(r.Descriptors) > l.options.MaxDescriptors {
		return false
	}
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		if d.HasHits && d.Hits > algorithms.MaxHits || d.HasOverride && !d.Override.valid() {
			return false
		}
		for _, e := range d.Entries {
			if e.Key == "" {
				return false
			}
		}
	}
	return true
}

func (o Override) valid() bool {
	if o.Unit < 0 || o.Unit > 255 {
		return false
	}
	unit := descriptors.Unit(o.Unit).Duration()
	multiplier := uint64(1)
	if o.HasMultiplier {
		multiplier = uint64(o.Multiplier)
	}
	return unit > 0 && multiplier > 0 && multiplier <= uint64(algorithms.MaxPeriod/unit)
}

// violations returns everything that is wrong with a request that is not valid.
func (l *Limiter) violations(r *Request) error {
	e := &InvalidError{}
	if r.Domain == "" {
		e.add("domain", "rate limit domain must not be empty")
	}
	if len(r.Descriptors) == 0 {
		e.add("descriptors", "rate limit descriptor list must not be empty")
	}
	if n, most := len(r.Descriptors), l.options.MaxDescriptors; n > most {
		e.add("descriptors", "%d rate limit descriptors in one request, must be at most %d", n, most)
		return e
	}
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		for n, entry := range d.Entries {
			if entry.Key == "" {
				e.add(field(i, fmt.Sprintf("entries[%d].key", n)), "must not be empty")
			}
		}
		if d.HasHits && d.Hits > algorithms.MaxHits {
			e.add(field(i, "hits_addend"), "%d: must be at most %d", d.Hits, uint64(algorithms.MaxHits))
		}
		if d.HasOverride {
			e.override(d.Override, i)
		}
	}
	return e
}

func (e *InvalidError) override(o Override, i int) {
	var unit descriptors.Unit
	if o.Unit >= 0 && o.Unit <= 255 {
		unit = descriptors.Unit(o.Unit)
	}
	if unit.Duration() == 0 {
		e.add(field(i, "limit.unit"), "%d is not a unit, must be SECOND (1), MINUTE, HOUR, DAY, MONTH, YEAR or WEEK (7)", o.Unit)
	}
	switch {
	case o.HasMultiplier && o.Multiplier == 0:
		e.add(field(i, "limit.unit_multiplier"), "0: must be at least 1")
	case !o.valid() && unit.Duration() > 0:
		e.add(field(i, "limit.unit_multiplier"), "%d: must be at most %d of this unit, which is 10 years",
			o.Multiplier, algorithms.MaxPeriod/unit.Duration())
	}
}

// field names a field of descriptor i.
func field(i int, name string) string { return fmt.Sprintf("descriptors[%d].%s", i, name) }
