// Package statistics shows the counts of a limiter under the names of envoyproxy/ratelimit. The
// sinks are Prometheus ([Reader.NewCollector]), StatsD and DogStatsD ([Reader.NewReporter]), and
// plain text ([Reader.WriteText]).
//
// The package counts nothing: each scrape or flush reads the counts of the limiter (see
// limiter.Counts). The rules, and the values that the limiter counts apart, bound the number of
// metrics. Three mistakes of the original are not repeated. A domain or a value with dots stays one
// label. Rules deeper than two levels have metrics of their own. Times are exact to the
// microsecond. Package server shows Weir's own metrics (weir_*).
package statistics

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
)

// Options is the options of New. Limiter must be given; all functions must be safe for concurrent
// use.
type Options struct {
	Limiter *limiter.Limiter
	Spent   func() store.Durations // times of requests; nil: unknown
	Lost    func() uint64          // requests that failed before the limiter; nil means 0

	// LocalCache returns the number of remembered denials, as the original's local cache has; nil:
	// there is no local cache. The limiter must have limiter.Options.Remembered.
	LocalCache func() int

	// DecidedWithout returns the requests decided while Redis did not answer, which the original
	// counts as errors of Redis; nil means 0.
	DecidedWithout func() uint64

	Loads func() (succeeded, refused uint64) // loads of rules; nil: unknown
}

// Reader reads the counts. All methods are safe for concurrent use.
type Reader struct {
	options Options
	address *regexp.Regexp // an IPv4 address
}

// New returns a reader. A missing limiter is an error.
func New(o Options) (*Reader, error) {
	if o.Limiter == nil {
		return nil, errors.New("limiter: must not be nil")
	}
	if o.Spent == nil {
		o.Spent = func() store.Durations { return store.Durations{} }
	}
	for _, count := range []*func() uint64{&o.Lost, &o.DecidedWithout} {
		if *count == nil {
			*count = func() uint64 { return 0 }
		}
	}
	if o.Loads == nil {
		o.Loads = func() (succeeded, refused uint64) { return 0, 0 }
	}
	return &Reader{options: o, address: regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)}, nil
}

// key names the hits of a rule, or of a value of a rule.
type key struct{ domain, key1, key2, more string }

// path returns the key as part of the original's names, with dots between the levels.
func (k key) path() string {
	levels := []string{k.domain, k.key1, k.key2, k.more}
	for levels[len(levels)-1] == "" && len(levels) > 1 {
		levels = levels[:len(levels)-1]
	}
	return strings.Join(levels, ".")
}

// hits is the counts under one key.
type hits struct {
	total, over, near, within, shadow, negative uint64
	remembered                                  uint64 // of over
	shadows                                     bool   // a rule of the key is in shadow mode
}

// rules returns the hits of all rules, and the keys in order. Rules without limits are left out, as
// in the original. A rule with detailed_metric or value_to_metric has keys for its values only.
func (r *Reader) rules() (map[key]hits, []key) {
	all := make(map[key]hits)
	for c := range r.options.Limiter.Counts() {
		if c.Rule != nil && len(c.Rule.Limits) == 0 {
			continue
		}
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

// used reports whether there was a decision.
func used(t limiter.Tally) bool { return t.Decisions != [limiter.Codes]uint64{} }

// add adds counts to the hits of a key. Two rules may have the same key, because clean makes
// different names equal.
func (r *Reader) add(all map[key]hits, domain string, levels []string, t limiter.Tally, shadow bool) {
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
	h := all[k]
	h.within += t.Hits[limiter.CodeOK]
	h.shadow += t.Hits[limiter.CodeShadowed]
	h.over += t.Hits[limiter.CodeOverLimit] + t.Hits[limiter.CodeShadowed]
	h.near += t.Near
	h.negative += t.Refunded
	h.remembered += t.RememberedHits
	h.total = h.within + h.over
	h.shadows = h.shadows || shadow
	all[k] = h
}

// clean replaces the characters that the original replaces in a name: colons, bars and the dots of
// every IPv4 address. It also replaces control characters, which would end a line of StatsD.
func (r *Reader) clean(s string) string {
	clean := without(s, ":|")
	if !strings.Contains(clean, ".") {
		return clean
	}
	return r.address.ReplaceAllStringFunc(clean, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}

// without replaces these characters, and all control characters, by underscores.
func without(s, characters string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || strings.ContainsRune(characters, c) {
			return '_'
		}
		return c
	}, s)
}

// totals is the counts that do not belong to a rule.
type totals struct {
	requests, redisErrors, serviceErrors uint64
	shadowed, notFound                   uint64
	loads, refusals                      uint64
}

func (r *Reader) totals() totals {
	n, lost := r.options.Limiter.Requests(), r.options.Lost()
	loads, refusals := r.options.Loads()
	return totals{
		requests:      n.OK + n.OverLimit + n.Failed + lost,
		redisErrors:   n.Failed - min(n.Invalid+n.Early, n.Failed) + r.options.DecidedWithout(),
		serviceErrors: n.Invalid + n.Early + lost,
		shadowed:      n.Shadowed,
		notFound:      n.DomainNotFound,
		loads:         loads,
		refusals:      refusals,
	}
}

// counters returns all counters under the original's names for StatsD, each name once. The counters
// of a rule stand together.
func (r *Reader) counters() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		rules, keys := r.rules()
		for _, k := range keys {
			h, path := rules[k], "ratelimit.service.rate_limit."+k.path()
			ok := yield(path+".total_hits", h.total) &&
				yield(path+".over_limit", h.over) &&
				yield(path+".near_limit", h.near) &&
				yield(path+".over_limit_with_local_cache", h.remembered) &&
				yield(path+".within_limit", h.within) &&
				yield(path+".shadow_mode", h.shadow) &&
				yield(path+".total_negative_hits", h.negative)
			if !ok {
				return
			}
		}
		t := r.totals()
		for _, c := range []struct {
			name  string
			value uint64
		}{
			{"ratelimit.service.call.should_rate_limit.redis_error", t.redisErrors},
			{"ratelimit.service.call.should_rate_limit.service_error", t.serviceErrors},
			{"ratelimit.service.config_load_error", t.refusals},
			{"ratelimit.service.config_load_success", t.loads},
			{"ratelimit.service.global_shadow_mode", t.shadowed},
			{"ratelimit.service.rate_limit.domain_not_found", t.notFound},
			{"ratelimit_server." + method + ".total_requests", t.requests},
		} {
			if !yield(c.name, c.value) {
				return
			}
		}
	}
}

// gauges returns the gauges under the original's names for StatsD: of the local cache, none without
// one. A lookup is a descriptor that a limit applies to, a hit one that was denied from memory.
func (r *Reader) gauges() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		if r.options.LocalCache == nil {
			return
		}
		lookups, found := uint64(0), uint64(0)
		for c := range r.options.Limiter.Counts() {
			t := c.Counts.Total()
			found += t.Remembered
			lookups += t.Decisions[limiter.CodeOK] + t.Decisions[limiter.CodeOverLimit] + t.Decisions[limiter.CodeShadowed]
		}
		_ = yield("entryCount", uint64(r.options.LocalCache())) && yield("hitCount", found) &&
			yield("lookupCount", lookups) && yield("missCount", lookups-min(found, lookups))
	}
}

// localCache begins the names of gauges.
const localCache = "ratelimit.localcache."

// responseTime is the name of the times of requests.
const responseTime = "ratelimit_server." + method + ".response_time"

// WriteText writes all counters and gauges, one `name: value` per line.
func (r *Reader) WriteText(w io.Writer) error {
	for name, value := range r.counters() {
		if _, err := fmt.Fprintf(w, "%s: %d\n", name, value); err != nil {
			return err
		}
	}
	for name, value := range r.gauges() {
		if _, err := fmt.Fprintf(w, "%s%s: %d\n", localCache, name, value); err != nil {
			return err
		}
	}
	return nil
}
