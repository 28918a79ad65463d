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

	"github.com/weirproxy/weir/internal/timespan"
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
	descriptors.Level
	shape *Shape // nil of a node that only leads on
	below []*place
}

// descriptor is an element of descriptors as a rule file has it, without the descriptors below.
type descriptor struct {
	Key            string         `yaml:"key"`
	Value          string         `yaml:"value,omitempty"`
	Match          *yaml.Node     `yaml:"match,omitempty"`
	ShareThreshold bool           `yaml:"share_threshold,omitempty"`
	ValueToMetric  bool           `yaml:"value_to_metric,omitempty"`
	ShadowMode     bool           `yaml:"shadow_mode,omitempty"`
	QuotaMode      bool           `yaml:"quota_mode,omitempty"`
	Group          string         `yaml:"group,omitempty"`
	DetailedMetric bool           `yaml:"detailed_metric,omitempty"`
	Metadata       map[string]any `yaml:"metadata,flow,omitempty"`
	RateLimit      *yaml.Node     `yaml:"rate_limit,omitempty"`
	RateLimits     []*yaml.Node   `yaml:"rate_limits,omitempty"`
}

type rateLimit struct {
	Name            string      `yaml:"name,omitempty"`
	Unlimited       bool        `yaml:"unlimited,omitempty"`
	Table           string      `yaml:"table,omitempty"`
	Algorithm       string      `yaml:"algorithm,omitempty"`
	Period          string      `yaml:"period,omitempty"`
	Unit            string      `yaml:"unit,omitempty"`
	UnitMultiplier  uint32      `yaml:"unit_multiplier,omitempty"`
	RequestsPerUnit *uint64     `yaml:"requests_per_unit,omitempty"`
	Budget          string      `yaml:"budget,omitempty"`
	Prices          *prices     `yaml:"prices,omitempty,flow"`
	MaxInFlight     *uint64     `yaml:"max_in_flight,omitempty"`
	Burst           uint32      `yaml:"burst,omitempty"`
	Hold            *hold       `yaml:"hold,omitempty"`
	CountRejected   *bool       `yaml:"count_rejected,omitempty"`
	OnStoreError    string      `yaml:"on_store_error,omitempty"`
	Sharing         string      `yaml:"sharing,omitempty"`
	Align           *align      `yaml:"align,omitempty,flow"`
	WarnAt          []string    `yaml:"warn_at,omitempty,flow"`
	Schedule        []scheduled `yaml:"schedule,omitempty,flow"`
	Escalate        *escalate   `yaml:"escalate,omitempty,flow"`
	Replaces        []limitName `yaml:"replaces,omitempty"`
}

// scheduled is an entry of a schedule.
type scheduled struct {
	From            string  `yaml:"from,omitempty"`
	Until           string  `yaml:"until,omitempty"`
	Days            string  `yaml:"days,omitempty"`
	Hours           string  `yaml:"hours,omitempty"`
	Zone            string  `yaml:"zone,omitempty"`
	Factor          string  `yaml:"factor,omitempty"`
	RequestsPerUnit *uint64 `yaml:"requests_per_unit,omitempty"`
	MaxInFlight     *uint64 `yaml:"max_in_flight,omitempty"`
	Budget          string  `yaml:"budget,omitempty"`
	Burst           uint32  `yaml:"burst,omitempty"`
}

type escalate struct {
	After  uint32   `yaml:"after"`
	Within string   `yaml:"within"`
	Block  []string `yaml:"block,flow"`
	Forget string   `yaml:"forget"`
}

type prices struct {
	Table   string `yaml:"table"`
	Unknown string `yaml:"unknown"`
}

// align is an alignment without the values that a rule file may leave out.
type align struct {
	To     string `yaml:"to"`
	Zone   string `yaml:"zone,omitempty"`
	Day    uint8  `yaml:"day,omitempty"`
	At     string `yaml:"at,omitempty"`
	Starts string `yaml:"starts,omitempty"`
}

type hold struct {
	Begin  string `yaml:"begin,omitempty"`
	End    string `yaml:"end,omitempty"`
	Pair   string `yaml:"pair,omitempty"`
	AtMost string `yaml:"at_most"`

	OnRunOut string `yaml:"on_run_out,omitempty"`

	Estimate *estimate `yaml:"estimate,omitempty"`
}

type estimate struct {
	Learned learned `yaml:"learned"`
}

type learned struct {
	Quantile float64 `yaml:"quantile"`
	Ceiling  any     `yaml:"ceiling"` // a number, or an amount of money
}

type limitName struct {
	Name string `yaml:"name"`
}

// encoded returns a value as a node, to which a comment can be added.
func encoded(v any) *yaml.Node {
	n := new(yaml.Node)
	_ = n.Encode(v) // texts, numbers and values of JSON have a form in YAML
	return n
}

// Documents returns the suggested rules, by domain, ready to paste.
func (r *Result) Documents() ([]Document, error) {
	roots := make(map[string]*place)
	defaults := make(map[string]*Shape)
	var names []string
	limits := make(map[string]map[string]bool) // the names of limits, by domain
	all := slices.Concat(r.Shapes, r.kept)
	slices.SortStableFunc(all, func(a, b *Shape) int { return cmp.Compare(isNew(a), isNew(b)) }) // these go below the nodes of rules
	for _, s := range all {
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
	documents := make([]Document, 0, len(names))
	for _, name := range names {
		named := limits[name]
		document := encoded(map[string]string{"domain": name})
		if s := defaults[name]; s != nil {
			key := encoded("default")
			key.HeadComment = s.comment(named)
			document.Content = append(document.Content, key, s.limits(named)[0])
		}
		if root := roots[name]; len(root.below) > 0 {
			document.Content = append(document.Content, encoded("descriptors"), root.list(named))
		}
		var out bytes.Buffer
		e := yaml.NewEncoder(&out)
		e.SetIndent(2)
		if err := e.Encode(document); err != nil {
			return nil, fmt.Errorf("domain %q: %w", name, err)
		}
		documents = append(documents, Document{name, out.String()})
	}
	return documents, nil
}

func isNew(s *Shape) int {
	if s.rule == nil {
		return 1
	}
	return 0
}

// add adds a suggestion below the root. A new one goes to a node that matches every value, as a
// node without a value beside that one is never reached.
func (p *place) add(s *Shape) {
	levels := make([]descriptors.Level, 0, len(s.keys))
	for _, key := range s.keys {
		levels = append(levels, descriptors.Level{Key: key})
	}
	if s.rule != nil {
		levels = s.rule.Levels
	}
	for _, l := range levels {
		i := slices.IndexFunc(p.below, func(b *place) bool {
			isSame := b.Value == l.Value && (b.Match == nil) == (l.Match == nil)
			return b.Key == l.Key && (isSame || s.rule == nil && b.Value == "*")
		})
		if i < 0 {
			i = len(p.below)
			p.below = append(p.below, &place{Level: descriptors.Level{Key: l.Key, Value: l.Value, Match: l.Match}})
		}
		p = p.below[i]
		p.ShareThreshold, p.ValueToMetric = p.ShareThreshold || l.ShareThreshold, p.ValueToMetric || l.ValueToMetric
	}
	p.shape = s
}

// list returns the nodes below, each rule of the files in its order.
func (p *place) list(named map[string]bool) *yaml.Node {
	slices.SortStableFunc(p.below, func(a, b *place) int { return cmp.Compare(a.line(), b.line()) })
	list := &yaml.Node{Kind: yaml.SequenceNode}
	for _, b := range p.below {
		d := descriptor{Key: b.Key, Value: b.Value, ShareThreshold: b.ShareThreshold, ValueToMetric: b.ValueToMetric}
		if b.Match != nil {
			d.Value, d.Match = "", matchNode(b.Value)
		}
		comment := ""
		if b.shape != nil {
			b.shape.describe(&d, named)
			comment = b.shape.comment(named)
		}
		node := encoded(d)
		node.HeadComment = comment
		if len(b.below) > 0 {
			node.Content = append(node.Content, encoded("descriptors"), b.list(named))
		}
		list.Content = append(list.Content, node)
	}
	return list
}

// matchNode returns the match of a level, which its text is in YAML.
func matchNode(text string) *yaml.Node {
	document := new(yaml.Node)
	_ = yaml.Unmarshal([]byte(text), document) // the text of a match is always a map
	return document.Content[0]
}

// line returns the first line of a rule here or below, for the order of wildcards.
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

// describe adds the modes, the metadata and the limits of a rule.
func (s *Shape) describe(d *descriptor, named map[string]bool) {
	if r := s.rule; r != nil {
		d.Group = r.Group.Name
		d.ShadowMode, d.QuotaMode, d.DetailedMetric, d.Metadata = r.Shadow, r.Quota, r.DetailedMetric, r.Metadata
	}
	if d.RateLimits = s.limits(named); len(d.RateLimits) == 1 {
		d.RateLimit, d.RateLimits = d.RateLimits[0], nil
	}
}

func (s *Shape) rateLimit(l *Limit) rateLimit {
	slots := l.of.Algorithm == algorithms.Concurrency
	out := rateLimit{Name: l.of.Name}
	if t := l.of.Table(); t != nil {
		out.Table = s.tableName(t)
	}
	if l.of.Algorithm.Plain() != algorithms.FixedWindow {
		out.Algorithm = l.of.Algorithm.String()
	}
	switch {
	case slots:
		out.MaxInFlight = &l.Requests
	case l.of.Unit == descriptors.UnitUnknown:
		out.Period, out.RequestsPerUnit = l.Period.String(), &l.Requests
	default:
		out.Unit, out.RequestsPerUnit = l.of.Unit.String(), &l.Requests
		if l.of.Multiplier > 1 {
			out.UnitMultiplier = l.of.Multiplier
		}
	}
	if l.of.Money {
		out.Budget, out.RequestsPerUnit = descriptors.Money(l.Requests), nil
	}
	if t := l.of.PriceTable(); t != nil {
		out.Prices = &prices{s.tableName(t), l.of.UnknownModels()}
	}
	if l.of.Algorithm == algorithms.TokenBucket && uint64(l.Burst) != l.Requests {
		out.Burst = l.Burst
	}
	holds := l.of.AtMost > 0
	if holds {
		out.Hold = &hold{Begin: s.rule.Begin, End: s.rule.End, AtMost: l.of.AtMost.String(), Estimate: estimateOf(&l.of)}
		if l.of.GivesBack {
			out.Hold.OnRunOut = "give_back"
		}
		if s.rule.Pairs() {
			out.Hold.Begin, out.Hold.End, out.Hold.Pair = "", "", s.rule.Begin
		}
	}
	if usual := l.of.Algorithm.Plain() == algorithms.FixedWindow && !holds; !slots && l.of.CountRejected != usual {
		out.CountRejected = &l.of.CountRejected
	}
	if l.of.OnStoreError != descriptors.OnStoreErrorUnset {
		out.OnStoreError = l.of.OnStoreError.String()
	}
	if l.of.Sharing != descriptors.SharingUnset {
		out.Sharing = l.of.Sharing.String()
	}
	out.Align = alignOf(l.of.Calendar)
	for _, mark := range l.of.WarnAt.All() {
		out.WarnAt = append(out.WarnAt, descriptors.MarkText(mark))
	}
	out.Schedule = scheduleOf(&l.of)
	out.Escalate = escalateOf(l.of.Escalate)
	return out
}

// scheduleOf returns the schedule of a limit, nil for none.
func scheduleOf(l *descriptors.Limit) (all []scheduled) {
	if l.Schedule() == nil {
		return nil
	}
	for _, e := range l.Schedule().Entries() {
		out, requests := scheduled{From: e.From, Until: e.Until, Days: e.Days, Hours: e.Hours, Zone: e.Zone, Factor: e.Factor}, e.Limit.PerPeriod()
		switch {
		case e.Factor != "":
		case l.Money:
			out.Budget = descriptors.Money(requests)
		case l.Algorithm == algorithms.Concurrency:
			out.MaxInFlight = &requests
		default:
			out.RequestsPerUnit, out.Burst = &requests, e.Limit.Burst
		}
		all = append(all, out)
	}
	return all
}

// escalateOf returns when keys of a limit are blocked, nil for a limit that blocks none.
func escalateOf(e *descriptors.Escalate) *escalate {
	if e == nil {
		return nil
	}
	out := &escalate{After: e.Offenses, Within: timespan.Format(e.Within), Forget: timespan.Format(e.Forget)}
	for _, d := range e.Block {
		out.Block = append(out.Block, timespan.Format(d))
	}
	return out
}

// estimateOf returns how a limit learns its estimates, nil for none.
func estimateOf(l *descriptors.Limit) *estimate {
	switch e := l.Estimate; {
	case !e.Learns():
		return nil
	case l.Money:
		return &estimate{learned{float64(e.Quantile) / 1000, descriptors.Money(uint64(e.Ceiling))}}
	default:
		return &estimate{learned{float64(e.Quantile) / 1000, e.Ceiling}}
	}
}

// alignOf returns the alignment of a calendar, nil for none.
func alignOf(c *algorithms.Calendar) *align {
	switch {
	case c == nil:
		return nil
	case c.FirstHit():
		return &align{To: "first_hit"}
	}
	s := c.Spec()
	out := &align{To: "calendar", Zone: s.Zone.String()}
	if s.Day > 1 {
		out.Day = s.Day
	}
	if s.At > 0 {
		out.At = time.Time{}.Add(s.At).Format(time.TimeOnly)
	}
	if s.Unit == algorithms.CalendarWeek {
		out.Starts = strings.ToLower(s.Starts.String())
	}
	return out
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
			for _, t := range []*descriptors.Table{s.Limits[i].of.Table(), s.Limits[i].of.PriceTable()} {
				if t != nil && s.tableName(t) == name {
					return t, nil
				}
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
			now = append(now, strconv.FormatUint(l.Now, 10))
		}
		origin = fmt.Sprintf("now %s, in %s:%d", strings.Join(now, " and "), s.File, s.Line)
	}
	lines = append(lines, fmt.Sprintf("hits: %d, keys: %d; %s", s.Hits, s.Keys, origin))
	for _, l := range s.Limits {
		if l.Stays {
			lines = append(lines, fmt.Sprintf("%d/%s stays: the record has no whole %[2]s", l.Requests, Length(l.Period)))
		}
	}
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
