package cases

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// descriptorKeys returns the keys of a descriptor.
func descriptorKeys() []string {
	return []string{"descriptor", "hits", "refund", "limit", "rule", "outcome", "requests", "remaining", "wait", "reset"}
}

// maxTimes bounds the times of a step.
const maxTimes = 1_000_000

func (r *reader) step(n *yaml.Node, path string, last time.Duration) Step {
	all := r.keys(n, path, append([]string{"at", "times", "verdict", "descriptors"}, descriptorKeys()...)...)
	s := Step{Line: n.Line, At: last, Times: 1}
	if all == nil {
		return s
	}
	if at := all["at"]; at != nil {
		if s.At = r.duration(at, path+".at"); s.At < last {
			r.fail(at, path+".at", "is %v, must be at least %v as in the step above: time does not go back", s.At, last)
		}
	}
	if all["times"] != nil {
		s.Times = int(r.number(all["times"], path+".times", 1, maxTimes))
	}
	if all["verdict"] != nil {
		s.Verdict = r.oneOf(all["verdict"], path+".verdict", ok, overLimit)
	}
	if all["descriptors"] == nil {
		s.Descriptors = []Descriptor{r.descriptor(n, all, path)}
		return s
	}
	for _, key := range descriptorKeys() {
		if at := all[key]; at != nil {
			r.fail(at, path+"."+key, "stands beside descriptors, must be in one of them")
		}
	}
	for i, item := range r.list(all["descriptors"], n, path+".descriptors", "descriptors") {
		path := fmt.Sprintf("%s.descriptors[%d]", path, i)
		if item.Kind == yaml.ScalarNode {
			s.Descriptors = append(s.Descriptors, r.descriptor(item, map[string]*yaml.Node{"descriptor": item}, path))
		} else if all := r.keys(item, path, descriptorKeys()...); all != nil {
			s.Descriptors = append(s.Descriptors, r.descriptor(item, all, path))
		}
	}
	return s
}

func (r *reader) descriptor(n *yaml.Node, all map[string]*yaml.Node, path string) Descriptor {
	d := Descriptor{Line: n.Line, Text: r.text(all["descriptor"], path+".descriptor")}
	var err error
	if all["descriptor"] == nil {
		r.fail(n, path+".descriptor", "is missing, must be key=value[,key=value…]")
	} else if d.Entries, err = r.parse(d.Text); err != nil {
		r.fail(all["descriptor"], path+".descriptor", "%v", err)
	}
	if at := all["hits"]; at != nil {
		d.Hits = uint64(r.number(at, path+".hits", 0, 1<<32-1))
		d.Probe = d.Hits == 0
	}
	if at := all["refund"]; at != nil {
		if d.Refund = at.Value == "true"; !d.Refund && at.Value != "false" {
			r.fail(at, path+".refund", "must be true or false")
		}
	}
	if at := all["limit"]; at != nil {
		d.Override = r.override(at, path+".limit")
	}
	if at := all["rule"]; at != nil {
		rule := r.text(at, path+".rule")
		d.Rule = &rule
	}
	if at := all["outcome"]; at != nil {
		d.Outcome = r.oneOf(at, path+".outcome", Outcomes()...)
	}
	number := func(key string) *uint32 {
		if at := all[key]; at != nil {
			n := r.number(at, path+"."+key, 0, 1<<32-1)
			return &n
		}
		return nil
	}
	duration := func(key string) *time.Duration {
		if at := all[key]; at != nil {
			d := r.duration(at, path+"."+key)
			return &d
		}
		return nil
	}
	d.Requests, d.Remaining = number("requests"), number("remaining")
	d.Wait, d.Reset = duration("wait"), duration("reset")
	return d
}

// override decodes a limit that comes with a request.
func (r *reader) override(n *yaml.Node, path string) *limiter.Override {
	all := r.keys(n, path, "requests_per_unit", "unit", "unit_multiplier")
	if all == nil {
		return nil
	}
	o := new(limiter.Override)
	if all["requests_per_unit"] == nil || all["unit"] == nil {
		r.fail(n, path, "must have requests_per_unit and unit")
		return o
	}
	o.Requests = r.number(all["requests_per_unit"], path+".requests_per_unit", 0, 1<<32-1)
	var known bool
	if o.Unit, known = descriptors.ParseUnit(r.text(all["unit"], path+".unit")); !known {
		r.fail(all["unit"], path+".unit", "must be second, minute, hour, day, week, month or year")
	}
	if at := all["unit_multiplier"]; at != nil {
		o.Multiplier = r.number(at, path+".unit_multiplier", 1, 1<<32-1)
	}
	return o
}
