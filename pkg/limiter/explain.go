package limiter

import (
	"context"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// Explanation says how a descriptor would be treated, and why.
type Explanation struct {
	Status DescriptorStatus // its Limit and Decision are not set: see Limits
	Limits []LimitState     // one for each limit that would be charged; empty when Outcome is not Limited
}

// LimitState is a limit of a descriptor, the key it is counted under, and what a charge would find there now.
type LimitState struct {
	Limit    descriptors.Limit
	Key      string
	Decision algorithms.Decision
}

// Explain returns for each descriptor of the request how it would be treated now. It charges nothing and counts nothing.
// Each limit is looked at alone: whether another limit would deny the request is not part of it. It fails as Check does.
func (l *Limiter) Explain(ctx context.Context, r *Request) ([]Explanation, error) {
	var v Verdict
	if err := l.prepare(l.current.Load(), r, &v); err != nil {
		return nil, err
	}
	if err := l.store.Peek(ctx, v.charges, v.decisions); err != nil {
		return nil, err
	}
	all := make([]Explanation, len(v.Statuses))
	for i := range v.Statuses {
		s := v.Statuses[i]
		for n := s.charge; n < s.charge+s.count; n++ {
			all[i].Limits = append(all[i].Limits, LimitState{*v.charged[n], string(v.charges[n].Key), v.decisions[n]})
		}
		s.Limit = nil
		all[i].Status = s
	}
	return all, nil
}

// Reset forgets the states that the request would charge, so that their keys are as if never used. It returns these keys and
// how many of them had a state. It fails as Check does.
func (l *Limiter) Reset(ctx context.Context, r *Request) (keys []string, forgotten int, err error) {
	var v Verdict
	if err := l.prepare(l.current.Load(), r, &v); err != nil {
		return nil, 0, err
	}
	for i := range v.charges {
		keys = append(keys, string(v.charges[i].Key))
	}
	forgotten, err = l.store.Reset(ctx, v.charges)
	return keys, forgotten, err
}
