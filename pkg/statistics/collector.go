package statistics

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// CollectorOptions is what NewCollector may be told. The zero value is valid.
type CollectorOptions struct {
	Tags         map[string]string // labels of every series; what a name of a label must not have becomes _
	Milliseconds bool              // response times are in milliseconds, though their name says seconds
}

// Check returns why NewCollector would fail, nil when it would not.
func (o CollectorOptions) Check() error {
	_, err := o.labels()
	return err
}

// labels returns the tags as labels.
func (o CollectorOptions) labels() (prometheus.Labels, error) {
	tags := make(prometheus.Labels, len(o.Tags))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(o.Tags)) {
		label := labelName(name)
		if _, twice := tags[label]; twice || slices.Contains([]string{"domain", "key1", "key2", "key3", "err_type", "grpc_method", "le"}, label) {
			errs = append(errs, fmt.Errorf("tag %q: is the label %s, which there is already", name, label))
		}
		tags[label] = strings.ToValidUTF8(o.Tags[name], "\uFFFD")
	}
	return tags, errors.Join(errs...)
}

// method is the only one of the rate limit service, as the label grpc_method.
const method = "ShouldRateLimit"

// collector tells the figures to Prometheus.
type collector struct {
	reader *Reader
	scale  float64 // of seconds

	total, over, near, within, shadow, negative *prometheus.Desc
	deniedLocally, notFound                     *prometheus.Desc
	errs, requests, spent                       *prometheus.Desc
	loads, refusals, shadowed                   *prometheus.Desc
}

// NewCollector returns the figures for a Prometheus registry, by the names and labels of the original's own mapping. It fails
// when a tag has the name of a label that there is already. The collector is safe for concurrent use.
//
// key1 and key2 are the first two levels of a rule, key3 all further ones; a label that is empty is, to Prometheus, none. A series
// is there, with 0, as soon as its rule is; those of values once there is something to tell.
func (r *Reader) NewCollector(o CollectorOptions) (prometheus.Collector, error) {
	tags, err := o.labels()
	if err != nil {
		return nil, err
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("ratelimit_service_"+name, help, labels, tags)
	}
	rule := func(name, help string) *prometheus.Desc {
		return desc("rate_limit_"+name, help, "domain", "key1", "key2", "key3")
	}
	c := &collector{
		reader: r,
		scale:  1,

		total:    rule("total_hits", "Hits of descriptors that a limit was found for."),
		over:     rule("over_limit", "Hits that were over limit, also those of rules in shadow mode."),
		near:     rule("near_limit", "Hits within the limit that were near it."),
		within:   rule("within_limit", "Hits within the limit."),
		shadow:   rule("shadow_mode", "Hits over limit of rules in shadow mode, which passed."),
		negative: rule("total_negative_hits", "Hits that were given back."),

		deniedLocally: desc("rate_limit_over_limit_with_local_cache", "Hits that were denied from memory, of all rules together."),
		notFound:      desc("rate_limit_domain_not_found", "Descriptors of domains that have no rules."),
		errs:          desc("should_rate_limit_error", "Requests that failed.", "err_type"),
		requests:      desc("total_requests", "Requests.", "grpc_method"),
		spent:         desc("response_time_seconds", "Time from the arrival of a request to its answer.", "grpc_method"),
		loads:         desc("config_load_success", "Rules that came into force."),
		refusals:      desc("config_load_error", "Rules that were refused."),
		shadowed:      desc("global_shadow_mode", "Requests that were over limit and passed, as all do."),
	}
	if o.Milliseconds {
		c.scale = 1000
	}
	return c, nil
}

// labelName makes of a tag's name one that a label may have.
func labelName(tag string) string {
	name := strings.Map(func(c rune) rune {
		if c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, tag)
	if name == "" || name[0] >= '0' && name[0] <= '9' || strings.HasPrefix(name, "__") {
		return "tag_" + strings.TrimLeft(name, "_")
	}
	return name
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(all chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.total, c.over, c.near, c.within, c.shadow, c.negative, c.deniedLocally, c.notFound,
		c.errs, c.requests, c.spent, c.loads, c.refusals, c.shadowed,
	} {
		all <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(all chan<- prometheus.Metric) {
	send := func(m prometheus.Metric, err error) {
		if err == nil { // what is cleaned and valid UTF-8 never fails
			all <- m
		}
	}
	counter := func(d *prometheus.Desc, value uint64, labels ...string) {
		send(prometheus.NewConstMetric(d, prometheus.CounterValue, float64(value), labels...))
	}
	rules, keys := c.reader.rules()
	for _, k := range keys {
		f := rules[k]
		labels := []string{k.domain, k.key1, k.key2, k.more}
		counter(c.total, f.total, labels...)
		counter(c.over, f.over, labels...)
		counter(c.near, f.near, labels...)
		counter(c.within, f.within, labels...)
		if f.shadows || f.shadow > 0 {
			counter(c.shadow, f.shadow, labels...)
		}
		if f.negative > 0 {
			counter(c.negative, f.negative, labels...)
		}
	}
	t := c.reader.totals()
	counter(c.deniedLocally, t.deniedLocally)
	counter(c.notFound, t.notFound)
	counter(c.errs, t.redisErrors, "redis_error")
	counter(c.errs, t.serviceErrors, "service_error")
	counter(c.requests, t.requests, method)
	counter(c.loads, t.loads)
	counter(c.refusals, t.refusals)
	counter(c.shadowed, t.shadowed)
	s := c.reader.options.Spent()
	buckets := make(map[float64]uint64, len(s.Buckets))
	for bound, n := range s.Buckets {
		buckets[bound*c.scale] = n
	}
	send(prometheus.NewConstHistogram(c.spent, s.Count, s.Sum.Seconds()*c.scale, buckets, method))
}
