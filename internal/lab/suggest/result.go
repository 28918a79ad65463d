package suggest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// Goal is how little a limit may deny.
type Goal struct {
	Deny float64          // largest part of the hits that is denied, from 0 to 1
	Keys float64          // smallest part of the keys that is never denied, from 0 to 1
	Unit descriptors.Unit // longest of limits without a rule: second, minute, hour or day
}

// Result is all suggestions.
type Result struct {
	Requests uint64    `json:"requests"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Skipped  Skipped   `json:"skipped"`

	Unit descriptors.Unit `json:"-"` // of limits without a rule: Goal.Unit, or a shorter one that fits into the record

	Shapes []*Shape `json:"shapes"` // the most hits first

	kept []*Shape // rules that requests met, and that say nothing about a limit: they stay as they are
}

// Shape is a suggestion for one rule, or for descriptors with the same keys that no rule limits.
type Shape struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"` // the path of a rule, or the keys
	New    bool   `json:"new"`  // no rule limits these descriptors
	File   string `json:"file"`
	Line   int    `json:"line"`

	Keys    int      `json:"keys"`
	Hits    uint64   `json:"hits"`
	Windows []Window `json:"windows"`

	Limits []Limit `json:"limits"` // as many as the rule has; without a rule one

	Checked    bool    `json:"checked"`     // the next two are known
	Denied     float64 `json:"denied"`      // part of the descriptors that the suggestion denied, from 0 to 1
	KeysDenied int     `json:"keys_denied"` // keys that the suggestion denied at least once

	rule *descriptors.Rule
	keys []string
	why  string // a kept rule has no suggestion; "" for any other
}

// Limit is a suggested limit.
type Limit struct {
	Requests uint64        `json:"requests"`
	Burst    uint32        `json:"burst"` // of a token_bucket
	Period   time.Duration `json:"period_ns"`
	Now      uint64        `json:"now"` // requests of the limit in force; 0 without a rule

	// Stays is true where the record has no whole period of the rule's limit, and so says nothing
	// about the limit. Requests and Burst are then the ones in force.
	Stays bool `json:"stays"`

	of descriptors.Limit // the limit in force, or a new one
}

// Window is the hits of keys in windows of one length.
type Window struct {
	Period time.Duration `json:"period_ns"`
	// Percentiles over the keys, of each key's fullest window.
	P50  uint64 `json:"p50"`
	P90  uint64 `json:"p90"`
	P99  uint64 `json:"p99"`
	P999 uint64 `json:"p999"`
	Max  uint64 `json:"max"`

	ForHits uint64 `json:"for_hits"` // the smallest limit that denies at most Goal.Deny of the hits
	ForKeys uint64 `json:"for_keys"` // the smallest limit that never denies Goal.Keys of the keys
}

// ErrShort is the error of a record that has no whole second.
var ErrShort = errors.New("the record has no whole second, and says nothing about a limit: record for longer")

// has reports whether the record has a whole window of that length, which a limit without a period
// does not need.
func (c *Collector) has(period time.Duration) bool {
	if period <= 0 {
		return true
	}
	start := (int64(c.first) + int64(period) - 1) / int64(period) * int64(period)
	return start+int64(period) <= int64(c.last)
}

// Result ends the counting, and returns the suggestions, or ErrShort if there are requests but no
// whole second. A limit whose period is longer than the record stays as it is. A limit without a
// rule has the longest unit up to Goal.Unit of which the record has a whole window. The Collector
// must not be used after.
func (c *Collector) Result(g Goal) (*Result, error) {
	for g.Unit > descriptors.Second && !c.has(g.Unit.Duration()) {
		g.Unit--
	}
	if c.requests > 0 && !c.has(g.Unit.Duration()) {
		return nil, ErrShort
	}
	r := &Result{
		Requests: c.requests, From: time.Unix(0, int64(c.first)).UTC(), To: time.Unix(0, int64(c.last)).UTC(),
		Unit: g.Unit, Skipped: c.skipped, Shapes: []*Shape{},
	}
	for _, all := range [][]*shape{slices.Collect(maps.Values(c.byRule)), slices.Collect(maps.Values(c.byKeys))} {
		for _, s := range all {
			if len(s.all) > 0 {
				r.Shapes = append(r.Shapes, s.result(g, c.has))
			}
		}
	}
	slices.SortFunc(r.Shapes, func(a, b *Shape) int {
		return cmp.Or(cmp.Compare(b.Hits, a.Hits), cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Rule, b.Rule), cmp.Compare(b.File, a.File))
	})
	r.kept = c.kept()
	return r, nil
}

// result returns the suggestion; has reports whether the record has a whole window of a length.
func (s *shape) result(g Goal, has func(time.Duration) bool) *Shape {
	out := &Shape{
		Domain: s.domain, New: s.rule == nil, Rule: strings.Join(s.keys, ","), Keys: len(s.all), Hits: s.hits, rule: s.rule, keys: s.keys,
	}
	if s.rule != nil {
		out.Rule, out.File, out.Line = s.rule.Path, s.rule.File, s.rule.Line
		for _, l := range s.rule.Limits {
			out.Limits = append(out.Limits, Limit{Requests: l.PerPeriod(), Burst: l.Burst, Period: l.Period, Now: l.PerPeriod(), Stays: !has(l.Period), of: l})
		}
	} else {
		l := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1, Period: g.Unit.Duration()}
		out.Limits = []Limit{{Period: l.Period, of: descriptors.NewLimit(l, g.Unit, 1, true, 1)}}
	}
	var fullest [maxWindows]histogram
	for _, k := range s.all {
		for i := range s.windows {
			s.close(k, i)
			fullest[i].add(k.fullest[i])
		}
	}
	burst := uint64(0) // most hits in a second
	for i, period := range s.windows {
		f := &fullest[i]
		if period == time.Second {
			burst = f.quantile(g.Keys)
		}
		if !has(period) {
			continue
		}
		w := Window{
			Period: period, P50: f.quantile(0.5), P90: f.quantile(0.9), P99: f.quantile(0.99), P999: f.quantile(0.999), Max: f.quantile(1),
			ForHits: s.counts[i].bound(uint64(g.Deny*float64(s.hits) + 1e-6)), ForKeys: f.quantile(g.Keys),
		}
		out.Windows = append(out.Windows, w)
		for n := range out.Limits {
			if l := &out.Limits[n]; l.Period == period {
				l.set(max(w.ForHits, w.ForKeys), burst)
			}
		}
	}
	return out
}

// set makes the suggestion a limit of at least that many hits, rounded up to two digits. The burst
// of a token_bucket keeps its proportion, and is at least that burst.
func (l *Limit) set(requests, burst uint64) {
	most := uint64(algorithms.MaxHits)
	if l.of.Money {
		most = l.of.Algorithm.MostPerPeriod()
	}
	l.Requests = min(round(requests), most)
	if l.of.Algorithm == algorithms.TokenBucket {
		l.Burst = uint32(l.Requests)
		if now := uint64(l.of.Requests); now > 0 && l.of.Burst > 0 {
			l.Burst = uint32(min(round(max((uint64(l.of.Burst)*l.Requests+now-1)/now, burst)), algorithms.MaxHits))
		}
	}
}

// Raise makes the limits that do not stay a tenth larger, at least by one hit, and reports whether
// there are any.
func (s *Shape) Raise() (raised bool) {
	more := func(n uint64) uint64 { return n + max(n/10, 1) }
	for i := range s.Limits {
		if l := &s.Limits[i]; !l.Stays {
			l.set(more(l.Requests), more(uint64(l.Burst)))
			raised = true
		}
	}
	return raised
}

// round rounds up to two digits.
func round(n uint64) uint64 {
	unit := uint64(1)
	for n/unit >= 100 {
		unit *= 10
	}
	return (n + unit - 1) / unit * unit
}

// Name returns the domain and the rule, or the keys, in words.
func (s *Shape) Name() string {
	if s.New {
		return fmt.Sprintf("%s (new) %s", s.Domain, s.Rule)
	}
	return s.Domain + " " + s.Rule
}
