// Package statistics tells what a limiter counted under the names that envoyproxy/ratelimit has for it: to Prometheus
// ([Reader.NewCollector]), to StatsD and DogStatsD ([Reader.NewReporter]) and as plain text ([Reader.WriteText]).
//
// It counts nothing itself. All figures are those of the limiter (see limiter.Counts), read when somebody wants them; so their
// number is bounded by that of the rules and of the values that the limiter tells apart, whatever requests hold. Where the
// original's names break, they are right here: a domain or a value with dots stays one label, rules deeper than two levels
// are told apart, and times are exact to the microsecond. Our own figures (weir_*) are told by package server.
package statistics

import (
	"cmp"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/weirproxy/weir/internal/durations"
	"github.com/weirproxy/weir/pkg/limiter"
)

// Options is what New needs. Limiter must be given; all functions must be safe for concurrent use.
type Options struct {
	Limiter       *limiter.Limiter
	Spent         func() durations.Snapshot // how long requests took; nil: nobody knows
	Lost          func() uint64             // requests that failed before the limiter had them; nil: none did
	DeniedLocally func() uint64             // hits that were denied from memory without asking Redis; nil: none were

	// DecidedWithout returns how many requests were decided without Redis, as it could not be asked; nil: none were. To the
	// original that is an error of Redis.
	DecidedWithout func() uint64
}

// Reader reads the figures. All methods are safe for concurrent use.
type Reader struct {
	options Options
	address *regexp.Regexp // IPv4 of a remote_address
}

// New returns a reader. It fails when there is no limiter.
func New(o Options) (*Reader, error) {
	if o.Limiter == nil {
		return nil, errors.New("limiter: must not be nil")
	}
	if o.Spent == nil {
		o.Spent = func() durations.Snapshot { return durations.Snapshot{} }
	}
	if o.Lost == nil {
		o.Lost = func() uint64 { return 0 }
	}
	if o.DecidedWithout == nil {
		o.DecidedWithout = func() uint64 { return 0 }
	}
	if o.DeniedLocally == nil {
		o.DeniedLocally = func() uint64 { return 0 }
	}
	return &Reader{options: o, address: regexp.MustCompile(`remote_address_\d+\.\d+\.\d+\.\d+`)}, nil
}

// key is what the figures of a rule, or of a value of one, are told under.
type key struct{ domain, key1, key2, more string }

// path returns the key as it stands in the original's own names, levels joined by dots.
func (k key) path() string {
	levels := []string{k.domain, k.key1, k.key2, k.more}
	for levels[len(levels)-1] == "" && len(levels) > 1 {
		levels = levels[:len(levels)-1]
	}
	return strings.Join(levels, ".")
}

// figures is what was counted under one key, in hits.
type figures struct {
	total, over, near, within, shadow, negative uint64
	shadows                                     bool // a rule of the key is in shadow mode
}

// rules returns the figures of all rules, and their keys in order.
//
// Rules without limits are not told: the original does not, and there is nothing to say of them. A rule with detailed_metric or
// value_to_metric is told by value only.
func (r *Reader) rules() (map[key]figures, []key) {
	all := make(map[key]figures)
	seen := make(map[*limiter.Counts]bool)
	for c := range r.options.Limiter.Counts() {
		if seen[c.Counts] || c.Rule != nil && len(c.Rule.Limits) == 0 {
			continue
		}
		seen[c.Counts] = true
		switch {
		case c.Rule == nil:
			if t := c.Counts.Total(); used(t) {
				r.add(all, c.Domain, []string{c.Path}, t, false)
			}
		case c.Rule.Detailed():
			for levels, t := range c.Counts.Levels() {
				if used(t) {
					r.add(all, c.Domain, levels, t, c.Rule.Shadow)
				}
			}
		default:
			levels := c.Rule.MetricLevels(nil)
			if len(levels) == 0 { // a domain's default
				levels = []string{c.Path}
			}
			r.add(all, c.Domain, levels, c.Counts.Total(), c.Rule.Shadow)
		}
	}
	keys := slices.SortedFunc(maps.Keys(all), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.domain, b.domain), cmp.Compare(a.key1, b.key1), cmp.Compare(a.key2, b.key2), cmp.Compare(a.more, b.more))
	})
	return all, keys
}

// used reports whether anything was counted.
func used(t limiter.Tally) bool {
	for code := range limiter.Codes {
		if t.Decisions[code] > 0 {
			return true
		}
	}
	return false
}

// add adds figures to those of their key, of which there may be some already: names that differ only in what is cleaned read the
// same.
func (r *Reader) add(all map[key]figures, domain string, levels []string, t limiter.Tally, shadow bool) {
	k := key{domain: r.clean(domain)}
	for i, level := range levels {
		switch level = r.clean(level); i {
		case 0:
			k.key1 = level
		case 1:
			k.key2 = level
		case 2:
			k.more = level
		default:
			k.more += "." + level
		}
	}
	f := all[k]
	f.within += t.Hits[limiter.CodeOK]
	f.shadow += t.Hits[limiter.CodeShadowed]
	f.over += t.Hits[limiter.CodeOverLimit] + t.Hits[limiter.CodeShadowed]
	f.near += t.Near
	f.negative += t.Refunded
	f.total = f.within + f.over
	f.shadows = f.shadows || shadow
	all[k] = f
}

// clean replaces what the original replaces in a name: colons, bars and the dots of an IPv4 remote_address; and what would end
// a line of StatsD.
func (r *Reader) clean(s string) string {
	clean := without(s, ":|")
	if !strings.Contains(clean, ".") {
		return clean
	}
	return r.address.ReplaceAllStringFunc(clean, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}

// without replaces some characters in a text by underscores, and all that control something, such as the end of a line.
func without(s, characters string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || strings.ContainsRune(characters, c) {
			return '_'
		}
		return c
	}, s)
}

// totals is the figures that are of no rule.
type totals struct {
	requests, redisErrors, serviceErrors uint64
	shadowed, notFound, deniedLocally    uint64
	loads, refusals                      uint64
}

func (r *Reader) totals() totals {
	n, s, lost := r.options.Limiter.Requests(), r.options.Limiter.Status(), r.options.Lost()
	return totals{
		requests:      n.OK + n.OverLimit + n.Failed + lost,
		redisErrors:   n.Failed - min(n.Invalid+n.Early, n.Failed) + r.options.DecidedWithout(),
		serviceErrors: n.Invalid + n.Early + lost,
		shadowed:      n.Shadowed,
		notFound:      n.DomainNotFound,
		deniedLocally: r.options.DeniedLocally(),
		loads:         s.Loads,
		refusals:      s.Refusals,
	}
}
