package limiter

import (
	"fmt"
	"strings"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// Request is one call of a client: the descriptors to check in a domain. The caller owns the
// request and may reuse it: Reset, then Add again, allocates nothing after the request has grown.
// The strings must not change during Check.
type Request struct {
	Domain      string // of the rules; not empty
	Descriptors []Descriptor
	Hits        uint32 // of descriptors without hits of their own; 0 counts as 1
}

// Entry is one key and value of a descriptor.
type Entry = descriptors.Entry

// Descriptor is an ordered list of entries that a rule may match, and the hits to charge.
type Descriptor struct {
	Entries []Entry // keys are not empty; values may be

	Hits   uint64 // at most algorithms.MaxHits; 0 means the hits of the request
	Probe  bool   // charge nothing and report the remaining hits; Hits must be 0
	Refund bool   // give the hits back

	Override *Override // replaces the limits of the rule; nil keeps them
}

// Override is a limit that comes with a request.
type Override struct {
	Requests   uint32           // hits per period
	Unit       descriptors.Unit // any but UnitUnknown
	Multiplier uint32           // units per period, which is at most algorithms.MaxPeriod; 0 means 1
}

// Reset empties the request for reuse.
func (r *Request) Reset() {
	r.Domain, r.Hits = "", 0
	r.Descriptors = r.Descriptors[:0]
}

// Add appends an empty descriptor and returns it, with the memory of a descriptor from before a
// Reset where there is one. The pointer is valid until the next Add.
func (r *Request) Add() *Descriptor {
	if n := len(r.Descriptors); n < cap(r.Descriptors) {
		r.Descriptors = r.Descriptors[:n+1]
		d := &r.Descriptors[n]
		*d = Descriptor{Entries: d.Entries[:0]}
		return d
	}
	r.Descriptors = append(r.Descriptors, Descriptor{})
	return &r.Descriptors[len(r.Descriptors)-1]
}

// InvalidError lists the mistakes in a request; nothing was charged.
type InvalidError struct {
	Violations []Violation // at least one
}

// Violation is one mistake in a request.
type Violation struct {
	Field       Field
	Descriptor  int    // index in Request.Descriptors; -1 for FieldDomain and FieldDescriptors
	Entry       int    // index in Descriptor.Entries for FieldKey and FieldUsage, else -1
	Description string // the mistake and the allowed values
}

// Field is a part of a request.
type Field uint8

// The fields.
const (
	FieldDomain             Field = iota + 1 // Request.Domain
	FieldDescriptors                         // Request.Descriptors
	FieldKey                                 // Entry.Key
	FieldHits                                // Descriptor.Hits
	FieldOverride                            // Descriptor.Override
	FieldOverrideRequests                    // Override.Requests
	FieldOverrideUnit                        // Override.Unit
	FieldOverrideMultiplier                  // Override.Multiplier
	FieldUsage                               // Entry.Value of descriptors.UsageKey
)

// String returns the field in words.
func (f Field) String() string {
	names := [...]string{
		"", "domain", "descriptors", "key", "hits", "override", "override requests", "override unit", "override multiplier", "usage",
	}
	if f > 0 && int(f) < len(names) {
		return names[f]
	}
	return fmt.Sprintf("field(%d)", uint8(f))
}

// String returns the place and the description: "descriptor 0: entry 1: key: must not be empty".
func (v Violation) String() string {
	switch {
	case v.Descriptor < 0:
		return v.Description
	case v.Entry < 0:
		return fmt.Sprintf("descriptor %d: %s: %s", v.Descriptor, v.Field, v.Description)
	default:
		return fmt.Sprintf("descriptor %d: entry %d: %s: %s", v.Descriptor, v.Entry, v.Field, v.Description)
	}
}

// Error returns all violations, separated by "; ".
func (e *InvalidError) Error() string {
	texts := make([]string, len(e.Violations))
	for i, v := range e.Violations {
		texts[i] = v.String()
	}
	return strings.Join(texts, "; ")
}

func violation(f Field, descriptor int, format string, args ...any) Violation {
	return Violation{f, descriptor, -1, fmt.Sprintf(format, args...)}
}

// HitsOf returns the own hits of descriptor i, else the hits of the request, where 0 counts as 1.
// The hits of a refund are negative.
func (r *Request) HitsOf(i int) int64 {
	d := &r.Descriptors[i]
	n := int64(d.Hits)
	if n == 0 && !d.Probe {
		n = int64(max(r.Hits, 1))
	}
	if d.Refund {
		n = -n
	}
	return n
}

// maxViolations bounds the mistakes that are listed: an empty entry is a mistake, and takes two
// bytes of a message.
const maxViolations = 20

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
