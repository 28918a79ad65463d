package suggest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// kept returns the rules that requests met, and that no shape stands for, in their order. Without
// them the documents would have another meaning: a request would meet a rule above.
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
			s.Limits = append(s.Limits, Limit{Requests: l.Requests, Burst: l.Burst, Period: l.Period, Now: l.Requests, of: l})
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *Shape) int { return cmp.Compare(a.rule.ID, b.rule.ID) })
	return all
}

// addNames adds the names of the limits.
func (s *Shape) addNames(to map[string]bool) {
	if s.rule != nil && s.rule.Unlimited {
		to[s.rule.Name] = true
	}
	for i := range s.Limits {
		to[s.Limits[i].of.Name] = true
	}
}

// limits returns the limits, with the names that they replace. named has the names of all limits of
// the document.
func (s *Shape) limits(named map[string]bool) (all []*yaml.Node) {
	var names []string // of limits
	if s.rule != nil && s.rule.Unlimited {
		node := mapping(yaml.FlowStyle)
		if s.rule.Name != "" {
			node.Content = append(node.Content, text("name"), text(s.rule.Name))
		}
		node.Content = append(node.Content, text("unlimited"), plain("true"))
		all, names = append(all, node), append(names, s.rule.Name)
	}
	for i := range s.Limits {
		all, names = append(all, s.limitOf(&s.Limits[i])), append(names, s.Limits[i].of.Name)
	}
	if s.rule == nil {
		return all
	}
	lists := make([]*yaml.Node, len(all))
	for _, name := range s.rule.Replaces {
		i := slices.IndexFunc(names, func(own string) bool { return own != name }) // a limit cannot replace its own name
		if i < 0 || !named[name] {
			continue
		}
		if lists[i] == nil {
			lists[i] = &yaml.Node{Kind: yaml.SequenceNode}
			all[i].Content = append(all[i].Content, text("replaces"), lists[i])
		}
		lists[i].Content = append(lists[i].Content, mapping(0, text("name"), text(name)))
	}
	return all
}

// leftOut returns a line for each name that the rule replaces, and that no limit of the document
// has.
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

// hold returns the hold of a limit.
func (s *Shape) hold(l *Limit) *yaml.Node {
	return mapping(0, text("begin"), text(s.rule.Begin), text("end"), text(s.rule.End), text("at_most"), text(l.of.AtMost.String()))
}

// metadata returns a value of JSON on one line.
func metadata(of any) *yaml.Node {
	switch of := of.(type) {
	case map[string]any:
		node := mapping(yaml.FlowStyle)
		keys := make([]string, 0, len(of))
		for key := range of {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		for _, key := range keys {
			node.Content = append(node.Content, text(key), metadata(of[key]))
		}
		return node
	case []any:
		node := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for _, item := range of {
			node.Content = append(node.Content, metadata(item))
		}
		return node
	case string:
		return text(of)
	case float64:
		return plain(strconv.FormatFloat(of, 'g', -1, 64))
	case bool:
		return plain(strconv.FormatBool(of))
	default:
		return plain("null")
	}
}
