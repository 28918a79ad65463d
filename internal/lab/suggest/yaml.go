package suggest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// Document is the suggested rules of one domain.
type Document struct {
	Domain string `json:"domain"`
	YAML   string `json:"yaml"` // a rule document
}

// place is a node of the tree of a document.
type place struct {
	key, value string
	shared     bool   // share_threshold
	shown      bool   // value_to_metric
	shape      *Shape // nil of a node that only leads on
	below      []*place
}

// Documents returns the suggested rules, by domain, ready to paste.
func (r *Result) Documents() ([]Document, error) {
	roots := make(map[string]*place)
	defaults := make(map[string]*Shape)
	var names []string
	limits := make(map[string]map[string]bool) // the names of limits, by domain
	for _, s := range slices.Concat(r.Shapes, r.kept) {
		if limits[s.Domain] == nil {
			limits[s.Domain] = make(map[string]bool)
		}
		s.addNames(limits[s.Domain])
		root := roots[s.Domain]
		if root == nil {
			root = new(place)
			roots[s.Domain] = root
			names = append(names, s.Domain)
		}
		if s.rule != nil && len(s.rule.Levels) == 0 {
			defaults[s.Domain] = s
			continue
		}
		root.add(s)
	}
	slices.Sort(names)
	all := make([]Document, 0, len(names))
	for _, name := range names {
		named := limits[name]
		document := mapping(0, text("domain"), text(name))
		if s := defaults[name]; s != nil {
			key := text("default")
			key.HeadComment = s.comment(named)
			document.Content = append(document.Content, key, s.limits(named)[0])
		}
		if root := roots[name]; len(root.below) > 0 {
			document.Content = append(document.Content, text("descriptors"), root.list(named))
		}
		var out bytes.Buffer
		e := yaml.NewEncoder(&out)
		e.SetIndent(2)
		if err := e.Encode(document); err != nil {
			return nil, fmt.Errorf("domain %q: %w", name, err)
		}
		all = append(all, Document{name, out.String()})
	}
	return all, nil
}

// add adds a suggestion below the root.
func (p *place) add(s *Shape) {
	levels := make([]descriptors.Level, 0, len(s.keys))
	for _, key := range s.keys {
		levels = append(levels, descriptors.Level{Key: key})
	}
	if s.rule != nil {
		levels = s.rule.Levels
	}
	for _, l := range levels {
		i := slices.IndexFunc(p.below, func(b *place) bool { return b.key == l.Key && b.value == l.Value })
		if i < 0 {
			i = len(p.below)
			p.below = append(p.below, &place{key: l.Key, value: l.Value})
		}
		p = p.below[i]
		p.shared, p.shown = p.shared || l.ShareThreshold, p.shown || l.ValueToMetric
	}
	p.shape = s
}

// list returns the nodes below, each rule of the files in its order.
func (p *place) list(named map[string]bool) *yaml.Node {
	slices.SortStableFunc(p.below, func(a, b *place) int { return cmp.Compare(a.line(), b.line()) })
	list := &yaml.Node{Kind: yaml.SequenceNode}
	for _, b := range p.below {
		node := mapping(0, text("key"), text(b.key))
		if b.value != "" {
			node.Content = append(node.Content, text("value"), text(b.value))
		}
		if b.shared {
			node.Content = append(node.Content, text("share_threshold"), plain("true"))
		}
		if b.shown {
			node.Content = append(node.Content, text("value_to_metric"), plain("true"))
		}
		if s := b.shape; s != nil {
			node.HeadComment = s.comment(named)
			node.Content = append(node.Content, s.options(named)...)
		}
		if len(b.below) > 0 {
			node.Content = append(node.Content, text("descriptors"), b.list(named))
		}
		list.Content = append(list.Content, node)
	}
	return list
}

// line returns the first line of a rule at the place or below, for the order of wildcards. New
// rules come last.
func (p *place) line() int {
	line := 1 << 30
	if p.shape != nil && !p.shape.New {
		line = p.shape.Line
	}
	for _, b := range p.below {
		line = min(line, b.line())
	}
	return line
}

// options returns the modes, the metadata and the limits of a rule.
func (s *Shape) options(named map[string]bool) (all []*yaml.Node) {
	if r := s.rule; r != nil {
		if r.Shadow {
			all = append(all, text("shadow_mode"), plain("true"))
		}
		if r.Quota {
			all = append(all, text("quota_mode"), plain("true"))
		}
		if r.DetailedMetric {
			all = append(all, text("detailed_metric"), plain("true"))
		}
		if len(r.Metadata) > 0 {
			all = append(all, text("metadata"), metadata(r.Metadata))
		}
	}
	limits := s.limits(named)
	if len(limits) == 1 {
		return append(all, text("rate_limit"), limits[0])
	}
	return append(all, text("rate_limits"), &yaml.Node{Kind: yaml.SequenceNode, Content: limits})
}

// limitOf returns a limit on one line.
func (s *Shape) limitOf(l *Limit) *yaml.Node {
	node := mapping(yaml.FlowStyle)
	add := func(key string, value *yaml.Node) { node.Content = append(node.Content, text(key), value) }
	if l.of.Name != "" {
		add("name", text(l.of.Name))
	}
	if t := l.of.Table(); t != nil {
		add("table", text(s.tableName(t)))
	}
	if l.of.Algorithm != algorithms.FixedWindow {
		add("algorithm", text(l.of.Algorithm.String()))
	}
	switch {
	case l.of.Algorithm == algorithms.Concurrency:
	case l.of.Unit == descriptors.UnitUnknown:
		add("period", text(l.Period.String()))
	default:
		add("unit", text(l.of.Unit.String()))
		if l.of.Multiplier > 1 {
			add("unit_multiplier", plain(strconv.FormatUint(uint64(l.of.Multiplier), 10)))
		}
	}
	number := "requests_per_unit"
	if l.of.Algorithm == algorithms.Concurrency {
		number = "max_in_flight"
	}
	add(number, plain(strconv.FormatUint(uint64(l.Requests), 10)))
	if l.of.Algorithm == algorithms.TokenBucket && l.Burst > 0 && l.Burst != l.Requests {
		add("burst", plain(strconv.FormatUint(uint64(l.Burst), 10)))
	}
	holds := l.of.AtMost > 0
	if holds {
		add("hold", s.hold(l))
	}
	if usual := l.of.Algorithm == algorithms.FixedWindow && !holds; l.of.Algorithm != algorithms.Concurrency && l.of.CountRejected != usual {
		add("count_rejected", plain(strconv.FormatBool(l.of.CountRejected)))
	}
	if l.of.OnStoreError != descriptors.OnStoreErrorUnset {
		add("on_store_error", text(l.of.OnStoreError.String()))
	}
	if l.of.Sharing != descriptors.SharingUnset {
		add("sharing", text(l.of.Sharing.String()))
	}
	return node
}

// tableName returns the name of a table beside the file of the rule, as the rule has it.
func (s *Shape) tableName(t *descriptors.Table) string {
	name, err := filepath.Rel(filepath.Dir(s.File), t.File())
	if err != nil {
		return t.File()
	}
	return filepath.ToSlash(name)
}

// Table returns the table of a name in Documents, for descriptors.Source.
func (r *Result) Table(name string) (*descriptors.Table, error) {
	for _, s := range slices.Concat(r.Shapes, r.kept) {
		for i := range s.Limits {
			if t := s.Limits[i].of.Table(); t != nil && s.tableName(t) == name {
				return t, nil
			}
		}
	}
	return nil, errors.New("is not in the rules")
}

// hasTable reports whether some keys have numbers of their own.
func (s *Shape) hasTable() bool {
	return slices.ContainsFunc(s.Limits, func(l Limit) bool { return l.of.Table() != nil })
}

// comment says how many hits the keys have, and the parts of the rule that are not there.
func (s *Shape) comment(named map[string]bool) string {
	lines := s.leftOut(named)
	if s.why != "" {
		lines = append(lines, fmt.Sprintf("stays as in %s:%d: %s", s.File, s.Line, s.why))
		return strings.ToValidUTF8(strings.Join(lines, "\n"), "?")
	}
	origin := "no rule limits these now"
	if !s.New {
		var now []string
		for _, l := range s.Limits {
			now = append(now, strconv.FormatUint(uint64(l.Now), 10))
		}
		origin = fmt.Sprintf("now %s, in %s:%d", strings.Join(now, " and "), s.File, s.Line)
	}
	lines = append(lines, fmt.Sprintf("hits: %d, keys: %d; %s", s.Hits, s.Keys, origin))
	for _, w := range s.Windows {
		lines = append(lines, fmt.Sprintf("most per %s: half of the keys %d, 99%% of the keys %d, all %d", Length(w.Period), w.P50, w.P99, w.Max))
	}
	return strings.ToValidUTF8(strings.Join(lines, "\n"), "?")
}

// Length returns a period in words: "minute", or a duration.
func Length(period time.Duration) string {
	for u := descriptors.Second; u.Duration() > 0; u++ {
		if u.Duration() == period {
			return u.String()
		}
	}
	return period.String()
}

func mapping(style yaml.Style, content ...*yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Style: style, Content: content}
}

// text is a string, which is quoted where YAML of any version would read something else.
func text(s string) *yaml.Node {
	n := new(yaml.Node)
	n.SetString(s)
	if slices.Contains([]string{"y", "n", "yes", "no", "on", "off"}, strings.ToLower(s)) { // booleans before YAML 1.2
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

// plain is a number or a boolean.
func plain(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }
