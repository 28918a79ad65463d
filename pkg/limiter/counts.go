package limiter

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// Code says under what a decision is counted.
type Code uint8

// The codes, in the order of [Counts].
const (
	CodeOK        Code = iota // allowed, or nothing to limit
	CodeOverLimit             // denied
	CodeShadowed              // denied in shadow mode
	CodeUnlimited
	CodeReplaced
	Codes // how many there are
)

// String returns the code as metrics write it.
func (c Code) String() string {
	switch c {
	case CodeOK:
		return "ok"
	case CodeOverLimit:
		return "over_limit"
	case CodeShadowed:
		return "shadow_over_limit"
	case CodeUnlimited:
		return "unlimited"
	case CodeReplaced:
		return "replaced"
	case Codes:
	}
	return "unknown"
}

// Counts is what was decided for one rule since the start. All its methods are safe for concurrent use.
//
// A rule with detailed_metric or value_to_metric is counted by value as well, for a bounded number of values of at most
// MaxValue bytes: those that come first; all others together under [OtherValue].
type Counts struct {
	tally
	most int // values counted apart

	mu     sync.RWMutex // guards values, not what they point to
	values map[string]*valueTally
}

// valueTally is the figures of one value.
type valueTally struct {
	tally
	levels []string // see descriptors.Rule.MetricLevels
}

// OtherValue stands for all values of a rule beyond those counted apart.
const OtherValue = "_other"

// MaxValue is the longest value that is counted apart, in bytes. A client chooses what it sends; a label of megabytes would be
// kept, and told at every scrape.
const MaxValue = 256

// tally is one set of figures.
type tally struct {
	decisions [Codes]atomic.Uint64
	hits      [Codes]atomic.Uint64
	refunded  atomic.Uint64
	near      atomic.Uint64
}

// Tally is one set of figures at one moment.
type Tally struct {
	Decisions [Codes]uint64 // by Code
	Hits      [Codes]uint64 // by Code; hits that decisions were about, refunds left out
	Refunded  uint64        // hits that refunds were about
	Near      uint64        // of the hits of CodeOK those above the part of the limit that Options.NearLimit says
}

func newCounts(values int) *Counts { return &Counts{most: values} }

func (t *tally) add(code Code, hits int64, near uint64) {
	t.decisions[code].Add(1)
	if near > 0 {
		t.near.Add(near)
	}
	if hits > 0 {
		t.hits[code].Add(uint64(hits))
	} else if hits < 0 {
		t.refunded.Add(uint64(-hits))
	}
}

func (t *tally) read() (sum Tally) {
	for c := range Codes {
		sum.Decisions[c], sum.Hits[c] = t.decisions[c].Load(), t.hits[c].Load()
	}
	sum.Refunded, sum.Near = t.refunded.Load(), t.near.Load()
	return sum
}

// of returns the figures of a value, that of a rule and entries, which are OtherValue's when there are too many.
func (c *Counts) of(value []byte, r *descriptors.Rule, entries []descriptors.Entry) *tally {
	if len(value) > MaxValue {
		value = append(value[:0], OtherValue...)
	}
	c.mu.RLock()
	t := c.values[string(value)]
	if t == nil && len(c.values) > c.most {
		t = c.values[OtherValue]
	}
	c.mu.RUnlock()
	if t != nil {
		return &t.tally
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.values == nil {
		c.values = map[string]*valueTally{OtherValue: {levels: []string{OtherValue}}}
	}
	name := strings.ToValidUTF8(string(value), "\uFFFD")
	if len(c.values) > c.most {
		name = OtherValue
	}
	if c.values[name] == nil {
		levels := r.MetricLevels(entries)
		for i := range levels {
			levels[i] = strings.ToValidUTF8(levels[i], "\uFFFD")
		}
		c.values[name] = &valueTally{levels: levels}
	}
	return &c.values[name].tally
}

// Total returns the figures of the rule.
func (c *Counts) Total() Tally { return c.read() }

// Values returns the figures by value, of a rule that is counted by value.
func (c *Counts) Values() map[string]Tally {
	c.mu.RLock()
	values := maps.Clone(c.values)
	c.mu.RUnlock()
	sums := make(map[string]Tally, len(values))
	for value, t := range values {
		sums[value] = t.read()
	}
	return sums
}

// Levels returns the figures by value as Values does, each with the text of every level apart: OtherValue's is one.
func (c *Counts) Levels() iter.Seq2[[]string, Tally] {
	return func(yield func([]string, Tally) bool) {
		c.mu.RLock()
		values := slices.Collect(maps.Values(c.values))
		c.mu.RUnlock()
		for _, t := range values {
			if !yield(t.levels, t.read()) {
				return
			}
		}
	}
}

// RuleCounts is the counts of one rule.
type RuleCounts struct {
	Rule   *descriptors.Rule // nil for limits that requests brought themselves where no rule matched
	Domain string
	Path   string // Rule.Path; "override" for limits that requests brought themselves where no rule matched
	Counts *Counts
}

// Counts returns what was decided for each rule in force.
func (l *Limiter) Counts() iter.Seq[RuleCounts] {
	return func(yield func(RuleCounts) bool) {
		set := l.current.Load()
		for _, r := range set.rules.All() {
			if !yield(RuleCounts{r, r.Domain, r.Path, set.counts[r.ID]}) {
				return
			}
		}
		for domain, c := range set.overrides {
			if !yield(RuleCounts{nil, domain, "override", c}) {
				return
			}
		}
	}
}

// requestCounts is what became of requests.
type requestCounts struct {
	passed, overLimit, failed atomic.Uint64
	invalid, early, shadowed  atomic.Uint64
	noDomain, noMatch         atomic.Uint64
}

// RequestCounts is what became of requests since the start.
type RequestCounts struct {
	OK, OverLimit, Failed uint64 // requests
	Invalid               uint64 // of those that failed, requests that were not valid
	Early                 uint64 // and those that came before the first rules, with Options.NeedRules
	Shadowed              uint64 // of those that are OK, requests that were over limit but for Options.Shadow
	DomainNotFound        uint64 // descriptors of a domain that has no rules
	NoMatch               uint64 // descriptors that no rule of their domain matched
}

// Requests returns what became of requests.
func (l *Limiter) Requests() RequestCounts {
	return RequestCounts{
		OK:             l.requests.passed.Load(),
		OverLimit:      l.requests.overLimit.Load(),
		Failed:         l.requests.failed.Load(),
		Invalid:        l.requests.invalid.Load(),
		Early:          l.requests.early.Load(),
		Shadowed:       l.requests.shadowed.Load(),
		DomainNotFound: l.requests.noDomain.Load(),
		NoMatch:        l.requests.noMatch.Load(),
	}
}

// count counts the status of descriptor i.
func (l *Limiter) count(set *ruleSet, r *Request, v *Verdict, i int) {
	s := &v.Statuses[i]
	if s.domain == nil {
		l.requests.noDomain.Add(1)
		return
	}
	c := set.overrides[r.Domain]
	limitless := s.Overridden && s.Rule != nil && len(s.Rule.Limits) == 0 // of which nothing is told
	switch {
	case s.Rule == nil:
		l.requests.noMatch.Add(1)
		if !s.Overridden {
			return
		}
	case !limitless:
		c = set.counts[s.Rule.ID]
	}
	code, near := s.code(), uint64(0)
	if l.options.NearLimit > 0 && s.Outcome == Limited {
		near = l.near(v, s)
	}
	c.add(code, s.Hits, near)
	if s.Rule != nil && s.Rule.Detailed() && !limitless {
		entries := r.Descriptors[i].Entries
		v.values = s.Rule.AppendMetricValue(v.values[:0], entries)
		c.of(v.values, s.Rule, entries).add(code, s.Hits, near)
	}
}

// near returns how many of the hits that a limit allowed are above the part of it that counts as near: those taken from there
// on, or, of a request that another limit denied, those that would have been.
func (l *Limiter) near(v *Verdict, s *DescriptorStatus) uint64 {
	if !s.Decision.Allowed || s.Hits <= 0 {
		return 0
	}
	capacity := s.Limit.Capacity()
	after := int64(capacity) - int64(s.Decision.Remaining)
	if v.OverLimit && !s.Limit.CountRejected {
		after += s.Hits
	}
	// As envoyproxy/ratelimit rounds: in 32 bits.
	from := int64(float32(capacity) * float32(l.options.NearLimit))
	return uint64(min(max(after-from, 0), s.Hits))
}

func (s *DescriptorStatus) code() Code {
	switch {
	case s.Outcome == Unlimited:
		return CodeUnlimited
	case s.Outcome == Replaced:
		return CodeReplaced
	case s.OverLimit:
		return CodeOverLimit
	case s.Shadowed:
		return CodeShadowed
	default:
		return CodeOK
	}
}
