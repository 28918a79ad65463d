package limiter

import (
	"iter"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// Observed is a request that was answered.
type Observed struct {
	Begun   time.Time     // when the request was complete
	Took    time.Duration // from then to the answer
	Request *Request
	Verdict *Verdict // no meaning after an error
	Err     error    // of Check, or the reason why the request never came to Check
}

// Observer sees requests that were answered. An Observer must be safe for concurrent use.
type Observer interface {
	// Observe is called once for each request, on the goroutine that answers, before the answer is
	// sent. Observe must not wait. Observe must not keep or change the request, a text of the request
	// or the verdict: their memory is used again.
	Observe(Observed)
}

// Domain returns the rules that decided the request; nil when its domain has no rules.
func (v *Verdict) Domain() *descriptors.Domain {
	if len(v.Statuses) == 0 {
		return nil
	}
	return v.Statuses[0].domain
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

// Charged is one limit of a descriptor, and the decision about the hits.
type Charged struct {
	Key      []byte // readable, see descriptors.Rule.AppendKey; valid until the next Check into the verdict
	Limit    *descriptors.Limit
	Hits     int64
	Decision algorithms.Decision
	Grant    *Grant       // changed Limit; nil without a grant
	Source   store.Source // zero without Verdict.TellSource, and where the store does not say
}

// Charged returns the limits that descriptor i of the request was charged for, in the order of the
// rule. A descriptor that is not Limited has no such limits.
func (v *Verdict) Charged(i int) iter.Seq[Charged] {
	return func(yield func(Charged) bool) {
		s := &v.Statuses[i]
		for n := s.charge; n < s.charge+s.count; n++ {
			c := &v.charges[n]
			var source store.Source
			if v.TellSource {
				source = v.states[n].Source
			}
			if !yield(Charged{c.Key, v.charged[n], c.Hits, v.decisions[n], v.grantOf(n), source}) {
				return
			}
		}
	}
}
