package limiter

import (
	"fmt"
	"strings"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// Request is one call of a client: the descriptors to check in a domain. It belongs to the caller, who may reuse it: Reset,
// then Add again, allocates nothing once it has grown. Its strings must not change during Check.
type Request struct {
	Domain      string // which rules to look in; not empty
	Descriptors []Descriptor
	Hits        uint32 // of descriptors that bring none of their own; 0 counts as 1
}

// Descriptor is an ordered list of entries to find a rule for, and what to charge.
type Descriptor struct {
	Entries []descriptors.Entry // keys are not empty; values may be

	Hits    uint64 // of this descriptor, when HasHits; at most algorithms.MaxHits; 0 is a probe
	HasHits bool
	Refund  bool // the hits are given back

	Override    Override // replaces the rule's limits, when HasOverride
	HasOverride bool
}

// Override is a limit that comes with a request.
type Override struct {
	Requests      uint32 // hits per period
	Unit          int32  // a descriptors.Unit, but UnitUnknown
	Multiplier    uint32 // units per period, when HasMultiplier; at least 1
	HasMultiplier bool
}

// Reset empties the request for reuse.
func (r *Request) Reset() {
	r.Domain, r.Hits = "", 0
	r.Descriptors = r.Descriptors[:0]
}

// Add appends an empty descriptor and returns it, reusing the memory of one that was there before a Reset. The pointer is
// good until the next Add.
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

// InvalidError says what is wrong with a request; nothing was charged.
type InvalidError struct {
	Violations []Violation // at least one
}

// Violation is one mistake in a request.
type Violation struct {
	Field       string // such as "descriptors[0].entries[1].key", in the names of Envoy's RateLimitRequest
	Description string // what is wrong and what is allowed
}

// Error returns all violations, separated by "; ". A violation of the whole domain or descriptor list stands without its field.
func (e *InvalidError) Error() string {
	texts := make([]string, len(e.Violations))
	for i, v := range e.Violations {
		if texts[i] = v.Description; strings.Contains(v.Field, "[") {
			texts[i] = v.Field + ": " + v.Description
		}
	}
	return strings.Join(texts, "; ")
}

func (e *InvalidError) add(field, format string, args ...any) {
	e.Violations = append(e.Violations, Violation{Field: field, Description: fmt.Sprintf(format, args...)})
}
