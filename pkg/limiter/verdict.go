package limiter

import (
	"iter"
	"slices"
	"time"

	"github.com/weirproxy/weir/internal/top"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// Verdict is the answer to a request. The caller owns the verdict and may reuse it: Check
// overwrites a verdict, and allocates nothing after it has grown. Pointers in a verdict are valid
// until the next Check into it.
type Verdict struct {
	OverLimit bool               // the request as a whole must not pass
	Statuses  []DescriptorStatus // one for each descriptor, in order
	Groups    []Group            // of quotas that the request asks, in the rules' order; none when an error or another limit decided

	// SoftBreach says that a key of the request has used as much as the first mark of its limit's
	// warn_at, or more.
	SoftBreach bool

	// TellSource is set by the caller, for somebody who watches: Check then also fills in
	// DescriptorStatus.Source. For a leased charge that takes 20 to 40 ns, and no memory after the
	// verdict has grown.
	TellSource bool

	set       *ruleSet // in force when the request was prepared
	charges   []store.Charge
	decisions []algorithms.Decision
	one       [1]store.Transaction // of the charges, while they wait
	keys      []byte
	values    []byte
	limits    []descriptors.Limit // of this request alone: overrides, and limits with the numbers of a table or a grant
	terms     []term              // of charges[i]
	replaced  []string            // names of limits that do not apply to this request, sorted
	parts     parts               // that few charges have
	name      []byte              // of a holder
	random    top.Random          // for tracked keys
	noGrants  bool                // grants do not count, and nothing is learned
	noPart    bool                // a part does not count, see Limiter.SetPart
	explains  bool                // nothing is charged, and each key that learns is asked
	notes     bool                // a limit of the charges has warn_at
	cuts      bool                // an estimate was cut
	scheduled bool                // a limit of the charges has a schedule
	escalates bool                // a limit of the charges has escalate
	now       algorithms.Instant  // that decides about schedules
	choice    choice              // among Groups
	usage     descriptors.Usage   // of the descriptor while its charges are added
	lessons   lessons             // the same
}

// parts are parts of charges.
type parts struct {
	holds   []store.Hold   // of the charges that have one, in order
	formers []store.Former // of the charges whose limits replaced others
	states  []store.State  // of all charges, with TellSource
}

// term is the limit of a charge, and its part in a group.
type term struct {
	limit  *descriptors.Limit
	grant  *Grant // changed the limit; nil without one
	hits   int64  // of the charge; of a group that is only asked, the hits that it would be charged
	hold   int32  // 1 + index in parts.holds; 0: none. Of a key that learns: -1 - index of the charge that it learns for
	cut    uint32 // of a slot: the estimate of the charge before, which was cut
	frees  bool   // the slot of an end, which a begin of the request takes
	part   bool   // of the limits before, see Limiter.SetPart
	began  bool   // of a guard: this request has begun a block
	guards int32  // of a charge that asks whether a key is blocked: 1 + index of the charge of its limit; else 0
}

// learns reports whether a charge is of a key that learns.
func (t *term) learns() bool { return t.hold < 0 }

// aside reports whether a charge is no limit, but stands beside one.
func (t *term) aside() bool { return t.cut > 0 || t.learns() || t.frees || t.guards > 0 }

// Outcome is the treatment of a descriptor.
type Outcome uint8

// The outcomes.
const (
	NoLimit   Outcome = iota // nothing matched, or a rule that does not limit
	Unlimited                // a rule that lets everything pass
	Replaced                 // another rule's replaces removed all limits
	Limited                  // see Limit and Decision
)

// DescriptorStatus is the answer for one descriptor.
type DescriptorStatus struct {
	Outcome    Outcome
	Rule       *descriptors.Rule // nil when nothing matched
	Overridden bool              // the limit came with the request

	// Of a Limited descriptor: the limit that decided, the decision, and the hits (negative for a
	// refund). Of several limits the denying one with the longest retry decides, but one that can
	// never admit the hits goes before. If all admit them, the one with the least remaining decides.
	Limit    *descriptors.Limit
	Decision algorithms.Decision
	Hits     int64

	// Grant changed the deciding limit, or lets the descriptor pass; nil without a grant.
	Grant *Grant

	// Source says where the decision comes from. The zero value: Verdict.TellSource is not set, or the
	// store does not say. A store in this process alone does not say.
	Source store.Source

	OverLimit bool // denied, and not in shadow mode
	Never     bool // denied, and the hits are more than the limit ever has; false under a grant, which ends
	Quota     bool // the limit is a quota: the request passes while one of its quotas has room
	Group     int  // 1 + index in Verdict.Groups; 0: the limit is in no group

	// Blocked is the wait until the end of a block of a limit with escalate; 0 for a key that is not
	// blocked.
	Blocked time.Duration

	Shadowed bool // denied in shadow mode, and reported as allowed

	// Hold is the hold of the first limit with holders, at the begin or the end of a holder; else nil.
	// An end is never denied. Held is the hits that the holder holds after a begin, or has held until
	// an end.
	Held uint32
	Hold *store.Hold

	domain *descriptors.Domain
	charge int // index of the first charge
	count  int // number of charges
}

func (v *Verdict) reset() {
	v.OverLimit, v.SoftBreach, v.notes, v.cuts, v.scheduled, v.choice.freed = false, false, false, false, false, false
	v.escalates, v.choice.told, v.choice.telling = false, false, false
	v.Statuses, v.charges = v.Statuses[:0], v.charges[:0]
	v.keys, v.limits = v.keys[:0], v.limits[:0]
	v.terms, v.replaced, v.parts.holds, v.parts.formers, v.Groups = v.terms[:0], v.replaced[:0], v.parts.holds[:0], v.parts.formers[:0], v.Groups[:0]
}

// grow makes room for as many descriptors, most of which have one limit with a key of at most 64
// bytes.
func (v *Verdict) grow(descriptors int) {
	if cap(v.keys) >= 64*descriptors && cap(v.Statuses) >= descriptors && cap(v.charges) >= descriptors && cap(v.terms) >= descriptors {
		return
	}
	v.keys = slices.Grow(v.keys, 64*descriptors)
	v.Statuses = slices.Grow(v.Statuses, descriptors)
	v.charges, v.terms = slices.Grow(v.charges, descriptors), slices.Grow(v.terms, descriptors)
}

// replaces reports whether limits of this name do not apply to the request.
func (v *Verdict) replaces(name string) bool {
	_, found := slices.BinarySearch(v.replaced, name)
	return found
}

// link points charges and statuses to their holds, which no longer move.
func (v *Verdict) link() {
	if len(v.parts.holds) == 0 {
		return
	}
	for i := range v.charges {
		if c := &v.charges[i]; c.Hold != nil {
			v.hold(i)
		}
	}
}

// hold gives charge i its hold.
func (v *Verdict) hold(i int) {
	c := &v.charges[i]
	c.Hold = &v.parts.holds[v.terms[i].hold-1]
	if s := &v.Statuses[c.Rule]; s.Hold == nil {
		s.Hold = c.Hold
	}
}

// tellSource makes the store say where the decision on each charge comes from.
func (v *Verdict) tellSource() {
	v.parts.states = append(v.parts.states[:0], make([]store.State, len(v.charges))...)
	for i := range v.charges {
		v.charges[i].Left = &v.parts.states[i]
	}
}

func (v *Verdict) sum(s *DescriptorStatus) {
	best := s.charge
	for i := best + 1; i < s.charge+s.count; i++ {
		if !v.terms[i].learns() && v.before(i, best) {
			best = i
		}
		if d := &v.decisions[i]; v.terms[i].guards > 0 && !d.Allowed {
			s.Blocked = max(s.Blocked, d.RetryAfter)
		}
	}
	s.Decision = v.decisions[best]
	s.Limit, s.Grant = v.terms[best].limit, v.terms[best].grant
	switch of := &v.terms[best]; {
	case of.cut > 0: // the slot of the limit before
		s.Limit = v.terms[best-1].limit
	case of.part:
		s.Limit, s.Grant = v.terms[s.charge].limit, v.terms[s.charge].grant
	}
	if v.TellSource {
		s.Source = v.parts.states[best].Source
	}
	if !s.Decision.Allowed {
		s.Shadowed = s.Rule != nil && s.Rule.Shadow && !s.Overridden
		s.OverLimit, s.Never = !s.Shadowed, v.never(best)
	}
}

// before reports whether charge i decides about a descriptor before charge j.
func (v *Verdict) before(i, j int) bool {
	a, b := &v.decisions[i], &v.decisions[j]
	switch {
	case a.Allowed != b.Allowed:
		return b.Allowed
	case a.Allowed:
		return a.Remaining < b.Remaining && !v.terms[i].aside()
	case v.never(i) != v.never(j):
		return v.never(i)
	}
	return a.RetryAfter > b.RetryAfter
}

// never reports whether the hits of charge i are more than its limit ever has.
func (v *Verdict) never(i int) bool {
	return v.terms[i].grant == nil && !v.terms[i].part && v.terms[i].hits > int64(v.charges[i].Limit.Capacity()) &&
		(!v.scheduled || v.terms[i].hits > int64(v.terms[i].limit.Peak()))
}

// quotas keeps charges from denying a request with a descriptor without a limit: with Options.Quota
// that descriptor is a quota with room.
func (v *Verdict) quotas() {
	if slices.ContainsFunc(v.Statuses, func(s DescriptorStatus) bool { return s.Outcome == NoLimit || s.Outcome == Replaced }) {
		for i := range v.charges {
			v.charges[i].Mode = store.Shadow
		}
	}
}

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

// Charged is one limit of a descriptor, and the decision about the hits.
type Charged struct {
	Key      []byte // readable, see descriptors.Rule.AppendKey; valid until the next Check into the verdict
	Limit    *descriptors.Limit
	Hits     int64
	Decision algorithms.Decision
	Blocked  time.Duration // the wait until the end of a block of the key; 0: the key is not blocked
	Grant    *Grant        // changed Limit; nil without a grant
	Source   store.Source  // zero without Verdict.TellSource, and where the store does not say
}

// Charged returns the limits of the rule that descriptor i of the request was charged for, in the
// order of the rule. A descriptor that is not Limited has no such limits.
func (v *Verdict) Charged(i int) iter.Seq[Charged] {
	return func(yield func(Charged) bool) {
		s := &v.Statuses[i]
		for n := s.charge; n < s.charge+s.count; n++ {
			c := &v.charges[n]
			if v.terms[n].aside() || v.terms[n].part {
				continue
			}
			var source store.Source
			if v.TellSource {
				source = v.parts.states[n].Source
			}
			d, blocked := v.blocked(n)
			if !yield(Charged{c.Key, v.terms[n].limit, c.Hits, d, blocked, v.terms[n].grant, source}) {
				return
			}
		}
	}
}
