package main

import (
	"fmt"
	"strings"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// domain is the domain of all rules.
const domain = "overadmission"

// plan is the limits of one algorithm and the requests for them.
type plan struct {
	algorithm algorithms.Algorithm
	kinds     []kind
	limits    []algorithms.Limit // by key
	choices   []choice
}

// kind is keys that have the same rule.
type kind struct {
	name  string // of the rule's descriptor key
	limit algorithms.Limit
}

// choice is a request: its encoded form, and the keys that it charges.
type choice struct {
	encoded []byte
	keys    []int
}

// newPlan returns the plan of an algorithm. With several limits per request there are half as many
// keys of a second kind, with twice the limit. So either kind may deny.
func newPlan(o options, a algorithms.Algorithm) (*plan, error) {
	limit := algorithms.Limit{Algorithm: a, Requests: uint32(o.limits.requests), Period: o.limits.period}
	if a == algorithms.TokenBucket {
		if limit.Burst = uint32(o.limits.burst); o.limits.burst == 0 {
			limit.Burst = max(limit.Requests/5, 1) // so that capacity and rate are told apart
		}
	}
	p := &plan{algorithm: a, kinds: []kind{{a.String(), limit}}}
	if !o.limits.several {
		for i := range o.limits.keys {
			if err := p.add([]int{i}, []drive.Entry{{Key: a.String(), Value: fmt.Sprint(i)}}); err != nil {
				return nil, err
			}
			p.limits = append(p.limits, limit)
		}
		return p, nil
	}
	second := limit
	second.Requests, second.Burst = 2*limit.Requests, 2*limit.Burst
	p.kinds = append(p.kinds, kind{a.String() + "_second", second})
	seconds := max(o.limits.keys/2, 1)
	for i := range o.limits.keys + seconds {
		if i < o.limits.keys {
			p.limits = append(p.limits, limit)
		} else {
			p.limits = append(p.limits, second)
		}
	}
	for i := range o.limits.keys {
		for j := range seconds {
			err := p.add([]int{i, o.limits.keys + j},
				[]drive.Entry{{Key: p.kinds[0].name, Value: fmt.Sprint(i)}}, []drive.Entry{{Key: p.kinds[1].name, Value: fmt.Sprint(j)}})
			if err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

func (p *plan) add(keys []int, descriptors ...[]drive.Entry) error {
	encoded, err := drive.Request(domain, descriptors...)
	p.choices = append(p.choices, choice{encoded, keys})
	return err
}

// ruleFile returns the rules of plans. With several limits per request, denied hits do not count:
// an oracle would have to know the window of each denied hit. With one limit, that changes no
// admitted hit.
func ruleFile(plans []*plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\n", domain)
	if len(plans[0].kinds) > 1 {
		b.WriteString("defaults: {count_rejected: false}\n")
	}
	b.WriteString("descriptors:\n")
	for _, p := range plans {
		for _, k := range p.kinds {
			fmt.Fprintf(&b, "  - key: %s\n    rate_limit: {algorithm: %v, period: %v, requests_per_unit: %d",
				k.name, k.limit.Algorithm, k.limit.Period, k.limit.Requests)
			if k.limit.Burst != 0 {
				fmt.Fprintf(&b, ", burst: %d", k.limit.Burst)
			}
			b.WriteString("}\n")
		}
	}
	return b.String()
}
