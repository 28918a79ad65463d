package limiter

import (
	"context"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// Explanation is the treatment of a descriptor, without a charge.
type Explanation struct {
	Status DescriptorStatus // without Limit and Decision: see Limits
	Limits []LimitState     // one for each limit that would be charged; empty when Outcome is not Limited
}

// LimitState is a limit of a descriptor, the key of the count, and the decision on a charge now.
type LimitState struct {
	Limit    descriptors.Limit
	Key      string
	Decision algorithms.Decision
	Never    bool         // see DescriptorStatus.Never
	Grant    *Grant       // changed Limit; nil without a grant
	Learned  uint32       // hits: the estimate that the key has learned, before the ceiling; 0: none yet
	Offenses Offenses     // of a limit with escalate; else zero
	NoPrice  bool         // the limit has no price for the model of the descriptor
	Source   store.Source // of Decision; zero where the store does not say
	Divided  bool         // clients that count by themselves have a part of the limit, see Limiter.SetPart

	Hold    *store.Hold   // the holder of the descriptor as it is now, see Hold.Was; nil without one
	Holders *LimitHolders // of the limit, the next one to run out alone; nil without a Hold
}

// divide puts the decision of the part in place of the decision of the limit, if it is tighter.
func (s *LimitState) divide(part *algorithms.Decision) {
	s.Divided = true
	if d := &s.Decision; d.Allowed && (!part.Allowed || part.Remaining < d.Remaining) {
		*d = *part
	}
}

// Explain returns the treatment of each descriptor of the request now, and changes no state and no
// count. The decision on each limit stands alone: other limits of the request do not change it. The
// errors are as in Check.
func (l *Limiter) Explain(ctx context.Context, r *Request) ([]Explanation, error) {
	v := Verdict{explains: true}
	for range 2 { // once more by the estimates that the first answer tells
		if err := l.charges(l.current.Load(), r, &v); err != nil {
			return nil, err
		}
		for i := range v.charges { // also of a group that a request would only ask
			if v.charges[i].Hits = v.terms[i].hits; v.terms[i].hold > 0 {
				v.hold(i)
			}
		}
		v.tellSource()
		if err := l.store.Peek(ctx, v.charges, v.decisions); err != nil {
			return nil, err
		}
		if !l.learned(&v) {
			break
		}
	}
	all := make([]Explanation, len(v.Statuses))
	for i := range v.Statuses {
		s := v.Statuses[i]
		for n := s.charge; n < s.charge+s.count; n++ {
			c, of := &v.charges[n], v.terms[n]
			if of.part {
				for j := range all[i].Limits {
					all[i].Limits[j].divide(&v.decisions[n])
				}
				continue
			}
			if of.learns() {
				if v.decisions[n].ResetAfter > 0 { // else without the shared store
					all[i].Limits[-1-int(of.hold)-s.charge].Learned = uint32(v.decisions[n].Remaining)
				}
				continue
			}
			if of.guards > 0 {
				continue
			}
			state := LimitState{
				Limit: *of.limit, Key: string(c.Key), Never: !v.decisions[n].Allowed && v.never(n), Offenses: v.offenses(n),
				Grant: of.grant, Source: v.parts.states[n].Source, Hold: c.Hold,
			}
			state.Decision, _ = v.blocked(n)
			if of.limit.Prices() && of.hold > 0 {
				usage, _ := descriptors.ParseUsage(s.Rule.Usage(r.Descriptors[i].Entries)) // read before
				_, known := of.limit.Cost(&usage)
				state.NoPrice = !known
			}
			if c.Hold != nil {
				held, err := l.holders(ctx, c, of.limit, 1)
				if err != nil {
					return nil, err
				}
				state.Holders = &held
			}
			all[i].Limits = append(all[i].Limits, state)
		}
		s.Limit = nil
		all[i].Status = s
	}
	return all, nil
}

// Reset forgets the states that the request would charge: the keys are idle then. A block and the
// offenses of a key with escalate have a key of their own. Reset returns all these keys, and the
// number of states that it forgot. The errors are as in Check. The descriptor of a rule with
// holders needs no holder; all holders are forgotten.
func (l *Limiter) Reset(ctx context.Context, r *Request) (keys []string, forgotten int, err error) {
	v := Verdict{noGrants: true, noPart: true} // a key with a grant that lets everything pass has a state all the same
	set := l.current.Load()
	if err := l.charges(set, withHolders(set.rules.Domain(r.Domain), r), &v); err != nil {
		return nil, 0, err
	}
	for i := range v.charges {
		keys = append(keys, string(v.charges[i].Key))
		l.accounts.reset(v.charges[i].KeyHash())
	}
	if forgotten, err = l.store.Reset(ctx, v.charges); err != nil {
		return keys, forgotten, err
	}
	var slots []store.Charge
	for i := range v.charges {
		if c := &v.charges[i]; c.Hold != nil && c.Limit.Algorithm != algorithms.Concurrency {
			slots = append(slots, v.slot(c))
		}
	}
	_, err = l.store.Reset(ctx, slots)
	return keys, forgotten, err
}
