// Package suggest says which limits would deny little of recorded traffic: for each rule, and for
// each shape of descriptors that no rule limits. A shape is a domain and the keys of a descriptor.
//
// Each key's hits are counted in aligned windows of a second, a minute, an hour and a day, as
// fixed_window counts them. From all windows of a shape follows the part of hits that a limit would
// deny. From the fullest window of each key follows the part of keys without a denial. The package
// reads no clock and no file.
package suggest

import (
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// Bounds.
const (
	DefaultMaxKeys = 1_000_000 // of Options.MaxKeys
	maxShapes      = 1000      // clients could send many
	maxWindows     = 5         // of a shape: four units, and the period of its rule
)

// units returns the windows that every shape has.
func units() []time.Duration {
	return []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour}
}

// Options configures New. The zero value has no rules.
type Options struct {
	Rules   *descriptors.Rules // nil: none
	MaxKeys int                // most keys that are counted, about 200 bytes each; 0 means DefaultMaxKeys
}

// Collector counts the hits of recorded requests, for one goroutine.
type Collector struct {
	rules  *descriptors.Rules
	seeds  [2]maphash.Seed
	room   int // for keys that are yet to be counted
	byRule map[int]*shape
	met    map[int]*descriptors.Rule // by ID; rules with limits, and unlimited ones
	byKeys map[string]*shape         // of descriptors without a limit; the domain and the keys, each behind a NUL
	text   []byte                    // of a key

	requests    uint64
	first, last algorithms.Instant
	skipped     Skipped
}

// Skipped counts the descriptors that say nothing about a limit.
type Skipped struct {
	Overrides uint64 `json:"overrides"` // with a limit of their own
	Refunds   uint64 `json:"refunds"`
	Probes    uint64 `json:"probes"`
	Holders   uint64 `json:"holders"`   // begins and ends of holders: their hits in flight need another count
	Unlimited uint64 `json:"unlimited"` // of rules that let all pass
	Banned    uint64 `json:"banned"`    // of rules that deny all
	Tabled    uint64 `json:"tabled"`    // with numbers of their own in a table
	Untracked uint64 `json:"untracked"` // of keys or shapes beyond the bound
}

// shape is descriptors that one limit would apply to.
type shape struct {
	domain string
	rule   *descriptors.Rule // nil without a limit
	keys   []string          // of entries, without a rule

	windows []time.Duration // the units, and other periods of the rule
	counts  [maxWindows]histogram
	all     map[[2]uint64]*counter
	hits    uint64
}

// counter counts the hits of one key, in each window of its shape.
type counter struct {
	number  [maxWindows]int64 // of the window
	hits    [maxWindows]uint64
	fullest [maxWindows]uint64 // of the windows before
}

// New returns a collector without requests.
func New(o Options) *Collector {
	if o.MaxKeys == 0 {
		o.MaxKeys = DefaultMaxKeys
	}
	if o.Rules == nil {
		o.Rules = new(descriptors.Rules)
	}
	return &Collector{
		rules: o.Rules, room: o.MaxKeys, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		byRule: make(map[int]*shape), met: make(map[int]*descriptors.Rule), byKeys: make(map[string]*shape),
	}
}

// Add counts a request. Requests must come in the order of their instants.
func (c *Collector) Add(r *records.Record) {
	if c.requests++; c.requests == 1 {
		c.first = r.At
	}
	c.last = max(c.last, r.At)
	domain := c.rules.Domain(r.Request.Domain)
	for i := range r.Request.Descriptors {
		d := &r.Request.Descriptors[i]
		var rule *descriptors.Rule
		if domain != nil {
			if rule = domain.Match(d.Entries); rule == nil {
				rule = domain.Default
			}
		}
		if rule != nil && (rule.Unlimited || len(rule.Limits) > 0) {
			c.met[rule.ID] = rule
		}
		switch {
		case d.Override != nil:
			c.skipped.Overrides++
			continue
		case d.Refund:
			c.skipped.Refunds++
			continue
		case d.Probe:
			c.skipped.Probes++
			continue
		}
		switch {
		case rule.Holds():
			c.skipped.Holders++
			continue
		case rule != nil && rule.Unlimited:
			c.skipped.Unlimited++
			continue
		case tabled(rule, d.Entries):
			c.skipped.Tabled++
			continue
		case bans(rule):
			c.skipped.Banned++
			continue
		}
		s := c.shape(r.Request.Domain, rule, d.Entries)
		if s == nil || !c.hit(s, r, d) {
			c.skipped.Untracked++
		}
	}
}

// bans reports whether a rule denies every hit: one of its limits is 0. rule may be nil.
func bans(rule *descriptors.Rule) bool {
	return rule != nil && slices.ContainsFunc(rule.Limits, func(l descriptors.Limit) bool { return l.Requests == 0 })
}

// tabled reports whether a table has numbers for a descriptor. rule may be nil.
func tabled(rule *descriptors.Rule, entries []limiter.Entry) bool {
	if rule != nil {
		for n := range rule.Limits {
			var l descriptors.Limit
			if rule.LimitFor(n, entries, &l) {
				return true
			}
		}
	}
	return false
}

// shape returns the shape of a descriptor; nil if there are too many.
func (c *Collector) shape(domain string, rule *descriptors.Rule, entries []limiter.Entry) *shape {
	if rule != nil && len(rule.Limits) > 0 {
		s := c.byRule[rule.ID]
		if s == nil {
			s = &shape{domain: rule.Domain, rule: rule, windows: units(), all: make(map[[2]uint64]*counter)}
			for _, l := range rule.Limits {
				if l.Period > 0 && !slices.Contains(s.windows, l.Period) && len(s.windows) < maxWindows {
					s.windows = append(s.windows, l.Period)
				}
			}
			c.byRule[rule.ID] = s
		}
		return s
	}
	c.text = append(c.text[:0], domain...)
	for _, e := range entries {
		c.text = append(append(c.text, 0), e.Key...)
	}
	s := c.byKeys[string(c.text)]
	if s == nil && len(c.byKeys) < maxShapes && len(entries) > 0 {
		s = &shape{domain: strings.Clone(domain), windows: units(), all: make(map[[2]uint64]*counter)}
		for _, e := range entries {
			s.keys = append(s.keys, strings.Clone(e.Key))
		}
		c.byKeys[string(c.text)] = s
	}
	return s
}

// hit counts the hits of a descriptor, and reports false if there is no room for its key.
func (c *Collector) hit(s *shape, r *records.Record, d *limiter.Descriptor) bool {
	if s.rule != nil {
		c.text = s.rule.AppendKey(c.text[:0], s.domain, d.Entries, &s.rule.Limits[0])
	} else {
		c.text = descriptors.AppendKey(c.text[:0], s.domain, d.Entries, new(descriptors.Limit))
	}
	digest := [2]uint64{maphash.Bytes(c.seeds[0], c.text), maphash.Bytes(c.seeds[1], c.text)}
	k := s.all[digest]
	if k == nil {
		if c.room == 0 {
			return false
		}
		c.room--
		k = new(counter)
		s.all[digest] = k
	}
	hits := d.Hits
	if hits == 0 {
		hits = uint64(max(r.Request.Hits, 1))
	}
	s.hits += hits
	for i, window := range s.windows {
		number := int64(c.last) / int64(window)
		if number != k.number[i] {
			s.close(k, i)
			k.number[i] = number
		}
		k.hits[i] = min(k.hits[i]+hits, algorithms.MaxCount)
	}
	return true
}

func (s *shape) close(k *counter, i int) {
	if k.hits[i] > 0 {
		s.counts[i].add(k.hits[i])
		k.fullest[i] = max(k.fullest[i], k.hits[i])
		k.hits[i] = 0
	}
}
