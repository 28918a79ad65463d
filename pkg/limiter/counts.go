package limiter

import (
	"iter"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
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
	values map[string]*tally
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
}

// Tally is one set of figures at one moment.
type Tally struct {
	Decisions [Codes]uint64 // by Code
	Hits      [Codes]uint64 // by Code; hits that decisions were about, refunds left out
	Refunded  uint64        // hits that refunds were about
}

func newCounts(values int) *Counts { return &Counts{most: values} }

func (t *tally) add(code Code, hits int64) {
	t.decisions[code].Add(1)
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
	sum.Refunded = t.refunded.Load()
	return sum
}

// of returns the figures of a value, which are OtherValue's when there are too many.
func (c *Counts) of(value []byte) *tally {
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
		return t
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.values == nil {
		c.values = map[string]*tally{OtherValue: new(tally)}
	}
	name := strings.ToValidUTF8(string(value), "\uFFFD")
	if len(c.values) > c.most {
		name = OtherValue
	}
	if c.values[name] == nil {
		c.values[name] = new(tally)
	}
	return c.values[name]
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

// RuleCounts is the counts of one rule.
type RuleCounts struct {
	Domain string
	Path   string // Rule.Path; "override" for limits that requests brought themselves where no rule matched
	Counts *Counts
}

// Counts returns what was decided for each rule in force.
func (l *Limiter) Counts() iter.Seq[RuleCounts] {
	return func(yield func(RuleCounts) bool) {
		set := l.current.Load()
		for _, r := range set.rules.All() {
			if !yield(RuleCounts{r.Domain, r.Path, set.counts[r.ID]}) {
				return
			}
		}
		for domain, c := range set.overrides {
			if !yield(RuleCounts{domain, "override", c}) {
				return
			}
		}
	}
}

// requestCounts is what became of requests.
type requestCounts struct {
	passed, overLimit, failed atomic.Uint64
	noDomain, noMatch         atomic.Uint64
}

// RequestCounts is what became of requests since the start.
type RequestCounts struct {
	OK, OverLimit, Failed uint64 // requests
	DomainNotFound        uint64 // descriptors of a domain that has no rules
	NoMatch               uint64 // descriptors that no rule of their domain matched
}

// Requests returns what became of requests.
func (l *Limiter) Requests() RequestCounts {
	return RequestCounts{
		OK:             l.requests.passed.Load(),
		OverLimit:      l.requests.overLimit.Load(),
		Failed:         l.requests.failed.Load(),
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
	if s.Rule != nil {
		c = set.counts[s.Rule.ID]
	} else {
		l.requests.noMatch.Add(1)
		if !s.Overridden {
			return
		}
	}
	code := s.code()
	c.add(code, s.Hits)
	if s.Rule != nil && s.Rule.Detailed() {
		v.values = s.Rule.AppendMetricValue(v.values[:0], r.Descriptors[i].Entries)
		c.of(v.values).add(code, s.Hits)
	}
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
