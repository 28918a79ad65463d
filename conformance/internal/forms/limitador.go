package forms

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/conformance/cases"
)

// A node is a descriptor of the rules, as far as limitador has words for it.
type node struct {
	Key            string     `yaml:"key"`
	Value          *string    `yaml:"value"`
	RateLimit      *rateLimit `yaml:"rate_limit"`
	Descriptors    []node     `yaml:"descriptors"`
	ShadowMode     bool       `yaml:"shadow_mode"`
	QuotaMode      bool       `yaml:"quota_mode"`
	ShareThreshold bool       `yaml:"share_threshold"`
	DetailedMetric bool       `yaml:"detailed_metric"`
	ValueToMetric  bool       `yaml:"value_to_metric"`
	Metadata       any        `yaml:"metadata"`
}

type rateLimit struct {
	Unit      string `yaml:"unit"`
	Requests  uint64 `yaml:"requests_per_unit"`
	Unlimited bool   `yaml:"unlimited"`
	Name      string `yaml:"name"`
	Replaces  []any  `yaml:"replaces"`
}

// A limit is an element of limitador's limits file.
type limit struct {
	Namespace  string   `yaml:"namespace"`
	Max        uint64   `yaml:"max_value"`
	Seconds    int      `yaml:"seconds"`
	Name       string   `yaml:"name,omitempty"`
	Conditions []string `yaml:"conditions"`
	Variables  []string `yaml:"variables"`
}

func limitsFile(domains []cases.Domain) (string, error) {
	var all []limit
	for _, d := range domains {
		if Check(Limitador, d) != nil {
			continue
		}
		some, err := limits(d)
		if err != nil {
			return "", err
		}
		all = append(all, some...)
	}
	text, err := yaml.Marshal(all)
	return string(text), err
}

func limits(d cases.Domain) ([]limit, error) {
	text, err := yaml.Marshal(d.Rules)
	if err != nil {
		return nil, err
	}
	var root node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCannot, err)
	}
	for key := range d.Rules {
		if key != "descriptors" {
			return nil, fmt.Errorf("%w: %s", ErrCannot, key)
		}
	}
	var all []limit
	for i := range indexes {
		w := walk{domain: d.Domain, descriptor: fmt.Sprintf("descriptors[%d]", i), index: i}
		if err := w.children(root.Descriptors, nil, nil, 0); err != nil {
			return nil, err
		}
		all = append(all, w.all...)
	}
	return all, nil
}

// indexes is the number of descriptors of a request that limits are written for. Limitador has no
// words for any descriptor of a request: each place has a limit, and a count, of its own.
const indexes = 3

// A walk collects the limits of one domain for one place of a descriptor in a request.
type walk struct {
	domain     string
	descriptor string
	index      int
	all        []limit
}

func (w *walk) children(nodes []node, conditions, variables []string, level int) error {
	for i, n := range nodes {
		entry := fmt.Sprintf("%s[%s]", w.descriptor, strconv.Quote(n.Key))
		mine := append(slices.Clone(conditions), fmt.Sprintf("%s in %s", strconv.Quote(n.Key), w.descriptor))
		names := slices.Clone(variables)
		if n.Value != nil {
			mine = append(mine, matches(entry, *n.Value))
		}
		if !n.ShareThreshold {
			names = append(names, entry)
		}
		// A value is looked up first, then patterns in their order, then the key alone.
		for j, other := range nodes {
			if i != j && other.Key == n.Key && other.Value != nil && before(j, other, i, n) {
				mine = append(mine, "!("+matches(entry, *other.Value)+")")
			}
		}
		if n.ShadowMode || n.QuotaMode || n.Metadata != nil {
			return fmt.Errorf("%w: shadow_mode, quota_mode and metadata", ErrCannot)
		}
		if l := n.RateLimit; l != nil {
			if len(l.Replaces) > 0 {
				return fmt.Errorf("%w: replaces", ErrCannot)
			}
			if !l.Unlimited {
				seconds, known := Seconds(l.Unit)
				if !known {
					return fmt.Errorf("%w: unit %q", ErrCannot, l.Unit)
				}
				is := append([]string{
					fmt.Sprintf("size(descriptors) > %d", w.index), fmt.Sprintf("size(%s) == %d", w.descriptor, level+1),
				}, mine...)
				// One expression: limitador evaluates each condition, also after one that is false.
				w.all = append(w.all, limit{
					Namespace: w.domain, Max: l.Requests, Seconds: int(seconds), Name: l.Name,
					Conditions: []string{strings.Join(is, " && ")}, Variables: names,
				})
			}
		}
		if err := w.children(n.Descriptors, mine, names, level+1); err != nil {
			return err
		}
	}
	return nil
}

// before reports whether node j is looked up before node i.
func before(j int, other node, i int, n node) bool {
	pattern := func(n node) bool { return n.Value != nil && strings.Contains(*n.Value, "*") }
	switch {
	case n.Value == nil:
		return true
	case pattern(n):
		return !pattern(other) || j < i
	default:
		return false
	}
}

// matches is the expression that an entry has a value, which may be a pattern.
func matches(entry, value string) string {
	first, rest, pattern := strings.Cut(value, "*")
	if !pattern {
		return entry + " == " + strconv.Quote(value)
	}
	parts := strings.Split(rest, "*")
	all := []string{fmt.Sprintf("%s.startsWith(%s)", entry, strconv.Quote(first))}
	for _, part := range parts[:len(parts)-1] {
		all = append(all, fmt.Sprintf("%s.contains(%s)", entry, strconv.Quote(part)))
	}
	all = append(all, fmt.Sprintf("%s.endsWith(%s)", entry, strconv.Quote(parts[len(parts)-1])))
	return strings.Join(all, " && ")
}

// Seconds returns the length of a unit, and whether the unit is known.
func Seconds(unit string) (int64, bool) {
	const day = 24 * 60 * 60
	seconds := map[string]int64{
		"second": 1, "minute": 60, "hour": 3600, "day": day, "week": 7 * day, "month": 30 * day, "year": 365 * day,
	}
	s, known := seconds[strings.ToLower(unit)]
	return s, known
}

// CheckCase returns nil when the rules of a form count the descriptors of a case as it means, and
// else an error that wraps ErrCannot.
func CheckCase(form string, c *cases.Case) error {
	if form != Limitador {
		return nil
	}
	places := make(map[string]int)
	for _, s := range c.Steps {
		asks := []string{s.Ask}
		if s.Race != nil {
			asks = s.Race.Asks()
		}
		for _, ask := range asks {
			r, err := cases.ParseRequest(ask, c.Domain, "")
			if err != nil {
				return err
			}
			for i, d := range r.Message.GetDescriptors() {
				name := r.Message.GetDomain() + fmt.Sprint(d.GetEntries())
				if place, found := places[name]; i >= indexes || found && place != i {
					return fmt.Errorf("%w: a limit there is of one place of a descriptor in a request", ErrCannot)
				}
				places[name] = i
			}
		}
	}
	return nil
}
