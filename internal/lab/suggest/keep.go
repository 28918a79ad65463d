package suggest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// kept returns the rules that were met without a shape: without them others would be met instead.
func (c *Collector) kept() (all []*Shape) {
	for id, rule := range c.met {
		if s := c.byRule[id]; s != nil && len(s.all) > 0 {
			continue
		}
		s := &Shape{Domain: rule.Domain, Rule: rule.Path, File: rule.File, Line: rule.Line, rule: rule, why: "no hits of the rule were counted"}
		switch {
		case rule.Unlimited:
			s.why = "unlimited"
		case rule.Holds():
			s.why = "hits of a rule with hold are not counted"
		case bans(rule):
			s.why = "a ban: the limit is 0"
		}
		for _, l := range rule.Limits {
			s.Limits = append(s.Limits, Limit{Requests: l.PerPeriod(), Burst: l.Burst, Period: l.Period, Now: l.PerPeriod(), of: l})
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *Shape) int { return cmp.Compare(a.rule.ID, b.rule.ID) })
	return all
}

func (s *Shape) addNames(to map[string]bool) {
	if s.rule != nil && s.rule.Unlimited {
		to[s.rule.Name] = true
	}
	for i := range s.Limits {
		to[s.Limits[i].of.Name] = true
	}
}

// limits returns the limits, a line each. inDocument has the names that they may replace.
func (s *Shape) limits(inDocument map[string]bool) []*yaml.Node {
	var all []rateLimit
	if s.rule != nil && s.rule.Unlimited {
		all = append(all, rateLimit{Name: s.rule.Name, Unlimited: true})
	}
	for i := range s.Limits {
		all = append(all, s.rateLimit(&s.Limits[i]))
	}
	if s.rule != nil {
		for _, name := range s.rule.Replaces {
			i := slices.IndexFunc(all, func(l rateLimit) bool { return l.Name != name }) // a limit cannot replace its own name
			if i >= 0 && inDocument[name] {
				all[i].Replaces = append(all[i].Replaces, limitName{name})
			}
		}
	}
	nodes := make([]*yaml.Node, 0, len(all))
	for _, l := range all {
		n := encoded(l)
		n.Style = yaml.FlowStyle
		nodes = append(nodes, n)
	}
	return nodes
}

// leftOut returns a line for each replaced name that no limit of the document has.
func (s *Shape) leftOut(named map[string]bool) (lines []string) {
	if s.rule != nil {
		for _, name := range s.rule.Replaces {
			if !named[name] {
				lines = append(lines, fmt.Sprintf("left out: replaces %s, as no limit here has that name", strconv.Quote(name)))
			}
		}
	}
	return lines
}
