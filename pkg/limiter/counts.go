package limiter

import (
	"iter"
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/internal/top"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// Code classifies a decision in the counts.
type Code uint8

// The codes, in the order of [Counts].
const (
	CodeOK        Code = iota // allowed, or nothing to limit
	CodeOverLimit             // denied
	CodeShadowed              // denied in shadow mode
	CodeUnlimited
	CodeReplaced
	Codes // the number of codes
)

// String returns the code as metrics write it.
func (c Code) String() string {
	if names := [Codes]string{"ok", "over_limit", "shadow_over_limit", "unlimited", "replaced"}; c < Codes {
		return names[c]
	}
	return "unknown"
}

// Counts is the number of decisions for one rule since the start. All methods are safe for
// concurrent use.
//
// A rule with detailed_metric or value_to_metric has counts by value too. The first values of at
// most MaxValue bytes have counts of their own, up to a bound; all other values count together
// under [OtherValue].
type Counts struct {
	tally
	unmatched atomic.Uint64                 // of overrides: descriptors of the domain that no rule matched, with and without an override
	more      atomic.Pointer[furtherCounts] // nil: all are 0
}

// furtherCounts is the counts that a rule without hits lacks. A rule may be one of 100 000.
type furtherCounts struct {
	holds   holdCounts
	tracked top.Group // the keys that are tracked
	blocks  atomic.Uint64

	mu      sync.RWMutex // guards values and notices; a valueTally is atomic
	values  map[string]*valueTally
	notices map[uint8]uint64 // by mark
}

func (c *Counts) further() *furtherCounts { return made(&c.more) }

// made returns the value of a pointer, and makes a missing one.
func made[T any](p *atomic.Pointer[T]) *T {
	if p.Load() == nil {
		p.CompareAndSwap(nil, new(T))
	}
	return p.Load()
}

type valueTally struct {
	tally
	levels []string // see descriptors.Rule.MetricLevels
}

// OtherValue stands for all values of a rule that are not counted apart.
const OtherValue = "_other"

// MaxValue is the length of the longest value counted apart, in bytes. Clients choose values, and
// every scrape would send a label of megabytes.
const MaxValue = 256

type tally struct {
	single [Codes]atomic.Uint64       // decisions with one hit, so that most decisions cost one atomic operation
	other  atomic.Pointer[otherTally] // nil: all are 0
}

// otherTally is all that decisions with one hit lack.
type otherTally struct {
	decisions [Codes]atomic.Uint64 // with another number of hits
	hits      [Codes]atomic.Uint64 // of decisions
	refunded  atomic.Uint64
	near      atomic.Uint64

	remembered, rememberedHits atomic.Uint64
}

// Tally is one set of counts at one moment.
type Tally struct {
	Decisions [Codes]uint64 // by Code
	Hits      [Codes]uint64 // by Code, without refunds
	Refunded  uint64        // hits of refunds
	Near      uint64        // hits of CodeOK above the part of the limit in Options.NearLimit

	// Remembered counts the denials, also in shadow mode, that came from the memory of an earlier one
	// (store.Memory), and RememberedHits their hits. Both are 0 without Options.Remembered.
	Remembered, RememberedHits uint64
}

func (t *tally) add(code Code, hits int64, near uint64) {
	if near > 0 {
		made(&t.other).near.Add(near)
	}
	if hits == 1 {
		t.single[code].Add(1)
		return
	}
	other := made(&t.other)
	other.decisions[code].Add(1)
	if hits > 0 {
		other.hits[code].Add(uint64(hits))
	} else if hits < 0 {
		other.refunded.Add(uint64(-hits))
	}
}

// remember counts a denial from memory, which add has counted too.
func (t *tally) remember(hits int64) {
	other := made(&t.other)
	other.remembered.Add(1)
	other.rememberedHits.Add(uint64(max(hits, 0)))
}

func (t *tally) read() (sum Tally) {
	for c := range Codes {
		single := t.single[c].Load()
		sum.Decisions[c], sum.Hits[c] = single, single
	}
	other := t.other.Load()
	if other == nil {
		return sum
	}
	for c := range Codes {
		sum.Decisions[c], sum.Hits[c] = sum.Decisions[c]+other.decisions[c].Load(), sum.Hits[c]+other.hits[c].Load()
	}
	sum.Refunded, sum.Near = other.refunded.Load(), other.near.Load()
	sum.Remembered, sum.RememberedHits = other.remembered.Load(), other.rememberedHits.Load()
	return sum
}

// of returns the counts of a value of rule r, or of OtherValue when there are more than most
// values. The entries have this value.
func (c *furtherCounts) of(value []byte, most int, r *descriptors.Rule, entries []descriptors.Entry) *tally {
	if len(value) > MaxValue {
		value = append(value[:0], OtherValue...)
	}
	c.mu.RLock()
	t := c.values[string(value)]
	if t == nil && len(c.values) > most {
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
	if len(c.values) > most {
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

// warn counts a notice.
func (c *furtherCounts) warn(mark uint8) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.notices == nil {
		c.notices = make(map[uint8]uint64)
	}
	c.notices[mark]++
}

// Notices returns the number of notices by the mark of warn_at in percent.
func (c *Counts) Notices() map[uint8]uint64 {
	more := c.more.Load()
	if more == nil {
		return nil
	}
	more.mu.RLock()
	defer more.mu.RUnlock()
	return maps.Clone(more.notices)
}

// Blocks returns the number of blocks that requests of this process have begun.
func (c *Counts) Blocks() uint64 {
	if more := c.more.Load(); more != nil {
		return more.blocks.Load()
	}
	return 0
}

// Total returns the counts of the rule.
func (c *Counts) Total() Tally { return c.read() }

// Values returns the counts by value.
func (c *Counts) Values() map[string]Tally {
	values := c.byValue()
	sums := make(map[string]Tally, len(values))
	for value, t := range values {
		sums[value] = t.read()
	}
	return sums
}

func (c *Counts) byValue() map[string]*valueTally {
	more := c.more.Load()
	if more == nil {
		return nil
	}
	more.mu.RLock()
	defer more.mu.RUnlock()
	return maps.Clone(more.values)
}

// Levels returns the counts by value as Values does, with a text for each level; OtherValue is one
// level.
func (c *Counts) Levels() iter.Seq2[[]string, Tally] {
	return func(yield func([]string, Tally) bool) {
		for _, t := range c.byValue() {
			if !yield(t.levels, t.read()) {
				return
			}
		}
	}
}

// overridePath stands for the path of a rule where an override has none.
const overridePath = "override"

// RuleCounts is the counts of one rule.
type RuleCounts struct {
	Rule   *descriptors.Rule // nil for overrides without a matching rule
	Domain string
	Path   string // Rule.Path; "override" for overrides without a matching rule
	Counts *Counts
}

// Counts returns the counts of each rule in force. Rules with equal paths count together, and come
// once.
func (l *Limiter) Counts() iter.Seq[RuleCounts] {
	return func(yield func(RuleCounts) bool) {
		for _, c := range l.current.Load().counted {
			if name := c.name(); !yield(RuleCounts{c.rule, name.domain, name.path, c.counts}) {
				return
			}
		}
	}
}

// Unmatched returns, by domain with rules, the number of descriptors that no rule matched since the
// domain has rules.
func (l *Limiter) Unmatched() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for domain, c := range l.current.Load().overrides {
			if !yield(domain, c.unmatched.Load()) {
				return
			}
		}
	}
}

type requestCounts struct {
	passed, overLimit, failed atomic.Uint64
	invalid, early, shadowed  atomic.Uint64
	noDomain, noMatch         atomic.Uint64
}

// RequestCounts is the number of requests by outcome since the start.
type RequestCounts struct {
	OK, OverLimit, Failed uint64 // requests
	Invalid               uint64 // failed requests that were not valid
	Early                 uint64 // failed requests before the first rules, with Options.NeedRules
	Shadowed              uint64 // OK requests that were over limit, with Options.Shadow
	DomainNotFound        uint64 // descriptors of a domain without rules
	NoMatch               uint64 // descriptors that no rule of the domain matched
}

// Requests returns the number of requests by outcome.
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

// countsOf returns the counts of a descriptor that matched a rule or has an override; nil for
// others. An override of a rule without limits counts as one without a rule.
func (set *ruleSet) countsOf(r *Request, s *DescriptorStatus) *Counts {
	switch {
	case s.Rule != nil && !(s.Overridden && len(s.Rule.Limits) == 0):
		return set.counts[s.Rule.ID]
	case s.Overridden:
		return set.overrides[r.Domain]
	default:
		return nil
	}
}

func (l *Limiter) count(r *Request, v *Verdict, i int) {
	s, set := &v.Statuses[i], v.set
	if s.domain == nil {
		l.requests.noDomain.Add(1)
		return
	}
	c := set.countsOf(r, s)
	if s.Rule == nil {
		l.requests.noMatch.Add(1)
		set.overrides[r.Domain].unmatched.Add(1)
	}
	if c == nil {
		return
	}
	code, near, hits := s.code(), uint64(0), s.Hits
	if s.Hold != nil {
		c.further().holds.add(v, s)
		if first := v.terms[s.charge].limit; first.Prices() || first.Estimate.Learns() {
			hits = v.charges[s.charge].Hits
		}
		hits = s.charged(hits)
		l.noticeBegins(r, v, s, c)
	}
	if l.options.NearLimit > 0 && s.Outcome == Limited {
		near = l.near(v, s, hits)
	}
	c.add(code, hits, near)
	remembered := l.options.Remembered && s.Source == store.Memory && (code == CodeOverLimit || code == CodeShadowed)
	if remembered {
		c.remember(hits)
	}
	if s.Rule != nil && s.Rule.Detailed() && c == set.counts[s.Rule.ID] {
		entries := r.Descriptors[i].Entries
		v.values = s.Rule.AppendMetricValue(v.values[:0], entries)
		value := c.further().of(v.values, l.options.DetailedValues, s.Rule, entries)
		value.add(code, hits, near)
		if remembered {
			value.remember(hits)
		}
	}
}

// near returns the allowed hits above the part of a limit in Options.NearLimit. When another limit
// denied the request, near counts the hits as if they had been charged.
func (l *Limiter) near(v *Verdict, s *DescriptorStatus, hits int64) uint64 {
	if !s.Decision.Allowed || hits <= 0 {
		return 0
	}
	capacity := s.Limit.Capacity()
	after := int64(capacity) - int64(s.Decision.Remaining)
	if v.OverLimit && !s.Limit.CountRejected {
		after += hits
	}
	// envoyproxy/ratelimit rounds in 32 bits.
	from := int64(float32(capacity) * float32(l.options.NearLimit))
	return uint64(min(max(after-from, 0), hits))
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
