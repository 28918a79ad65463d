package limiter

import "github.com/weirproxy/weir/pkg/algorithms"

// maxViolations bounds the mistakes that are listed: an empty entry is a mistake, and takes two
// bytes of a message.
const maxViolations = 20

// valid reports whether a request has no mistake, faster than violations lists the mistakes.
func (l *Limiter) valid(r *Request) bool {
	if r.Domain == "" || len(r.Descriptors) == 0 || len(r.Descriptors) > l.options.MaxDescriptors {
		return false
	}
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		if d.Hits != 0 || d.Override != nil {
			return len(l.violations(r)) == 0
		}
		for n := range d.Entries {
			if d.Entries[n].Key == "" {
				return false
			}
		}
	}
	return true
}

// violations returns the mistakes in a request, after maxViolations a note, and allocates nothing
// for a valid one.
func (l *Limiter) violations(r *Request) (all []Violation) {
	if r.Domain == "" {
		all = append(all, violation(FieldDomain, -1, "rate limit domain must not be empty"))
	}
	if len(r.Descriptors) == 0 {
		all = append(all, violation(FieldDescriptors, -1, "rate limit descriptor list must not be empty"))
	}
	if n, bound := len(r.Descriptors), l.options.MaxDescriptors; n > bound {
		return append(all, violation(FieldDescriptors, -1, "%d rate limit descriptors in one request, must be at most %d", n, bound))
	}
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		for n := range d.Entries {
			if d.Entries[n].Key == "" {
				all = append(all, Violation{FieldKey, i, n, "must not be empty"})
			}
			if len(all) >= maxViolations {
				break
			}
		}
		if len(all) >= maxViolations {
			return append(all, violation(FieldDescriptors, -1, "there may be more mistakes: only the first are listed"))
		}
		if d.Hits > algorithms.MaxHits {
			all = append(all, violation(FieldHits, i, "%d: must be at most %d", d.Hits, uint64(algorithms.MaxHits)))
		}
		if d.Probe && d.Hits > 0 {
			all = append(all, violation(FieldHits, i, "%d: must be 0 in a probe", d.Hits))
		}
		if d.Override == nil {
			continue
		}
		switch unit := d.Override.Unit.Duration(); {
		case unit == 0:
			all = append(all, violation(FieldOverrideUnit, i,
				"%d is not a unit, must be SECOND (1), MINUTE, HOUR, DAY, MONTH, YEAR or WEEK (7)", int32(d.Override.Unit)))
		case uint64(d.Override.Multiplier) > uint64(algorithms.MaxPeriod/unit):
			all = append(all, violation(FieldOverrideMultiplier, i,
				"must be 1 to %d of this unit, which is 10 years", algorithms.MaxPeriod/unit))
		}
	}
	return all
}
