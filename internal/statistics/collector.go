package statistics

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/metrics"
)

// CollectorOptions is the options of NewCollector. The zero value is valid.
type CollectorOptions struct {
	Tags         map[string]string // labels of every series; _ replaces characters that a label must not have
	Milliseconds bool              // response times are in milliseconds, although the name of the metric says seconds
}

// Check returns the error that NewCollector would return.
func (o CollectorOptions) Check() error {
	_, err := o.labels()
	return err
}

func (o CollectorOptions) labels() (prometheus.Labels, error) {
	tags := make(prometheus.Labels, len(o.Tags))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(o.Tags)) {
		label := labelName(name)
		if _, twice := tags[label]; twice || slices.Contains([]string{"domain", "key1", "key2", "key3", "err_type", "grpc_method", "le"}, label) {
			errs = append(errs, fmt.Errorf("tag %q: is the label %s, which another tag or the metric itself has", name, label))
		}
		tags[label] = strings.ToValidUTF8(o.Tags[name], "\uFFFD")
	}
	return tags, errors.Join(errs...)
}

// method is the one method of the rate limit service, for the label grpc_method.
const method = "ShouldRateLimit"

// NewCollector returns a collector for Prometheus, with the names and labels of the original's own
// mapping. A tag with the name of another label is an error. The collector is safe for concurrent
// use.
//
// key1 and key2 are the first two levels of a rule, key3 all further levels; an empty label is
// absent in Prometheus. The series of a rule begin with 0 when the rule is loaded, the series of a
// value at its first hit.
func (r *Reader) NewCollector(o CollectorOptions) (prometheus.Collector, error) {
	tags, err := o.labels()
	if err != nil {
		return nil, err
	}
	rule := func(name, help string) metrics.Metric {
		return metrics.New("service_rate_limit_"+name, help, "domain", "key1", "key2", "key3")
	}
	scale := 1.0 // of seconds
	if o.Milliseconds {
		scale = 1000
	}
	return metrics.NewCollector("ratelimit_", tags, func(to metrics.Scrape) { r.collect(to, scale) },
		rule("total_hits", "Hits of descriptors with a limit."),
		rule("over_limit", "Hits over limit, also of rules in shadow mode."),
		rule("near_limit", "Hits within the limit and near its end."),
		rule("within_limit", "Hits within the limit."),
		rule("shadow_mode", "Hits over limit that passed because of shadow mode."),
		rule("total_negative_hits", "Hits given back."),
		rule("over_limit_with_local_cache", "Hits over limit that the memory of an earlier denial denied."),
		metrics.New("service_rate_limit_domain_not_found", "Descriptors of domains without rules."),
		metrics.New("service_should_rate_limit_error", "Requests that failed.", "err_type"),
		metrics.New("service_total_requests", "Requests.", "grpc_method"),
		metrics.New("service_response_time_seconds", "Time from the arrival of a request to its answer.", "grpc_method"),
		metrics.New("service_config_load_success", "Loads of rules that succeeded."),
		metrics.New("service_config_load_error", "Loads of rules that were refused."),
		metrics.New("service_global_shadow_mode", "Requests over limit that passed because of the global shadow mode."),
		metrics.New("localcache_entryCount", "Keys whose denial is remembered."),
		metrics.New("localcache_hitCount", "Descriptors that were denied from memory."),
		metrics.New("localcache_lookupCount", "Descriptors with a limit."),
		metrics.New("localcache_missCount", "Descriptors with a limit that were not denied from memory."),
	), nil
}

// labelName returns the name of a tag as a valid name of a label.
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

func (r *Reader) collect(to metrics.Scrape, scale float64) {
	rules, keys := r.rules()
	for _, k := range keys {
		h := rules[k]
		labels := []string{k.domain, k.key1, k.key2, k.more}
		to.Counter("service_rate_limit_total_hits", h.total, labels...)
		to.Counter("service_rate_limit_over_limit", h.over, labels...)
		to.Counter("service_rate_limit_near_limit", h.near, labels...)
		to.Counter("service_rate_limit_within_limit", h.within, labels...)
		if h.shadows || h.shadow > 0 {
			to.Counter("service_rate_limit_shadow_mode", h.shadow, labels...)
		}
		if r.options.LocalCache != nil {
			to.Counter("service_rate_limit_over_limit_with_local_cache", h.remembered, labels...)
		}
		if h.negative > 0 {
			to.Counter("service_rate_limit_total_negative_hits", h.negative, labels...)
		}
	}
	t := r.totals()
	to.Counter("service_rate_limit_domain_not_found", t.notFound)
	to.Counter("service_should_rate_limit_error", t.redisErrors, "redis_error")
	to.Counter("service_should_rate_limit_error", t.serviceErrors, "service_error")
	to.Counter("service_total_requests", t.requests, method)
	to.Counter("service_config_load_success", t.loads)
	to.Counter("service_config_load_error", t.refusals)
	to.Counter("service_global_shadow_mode", t.shadowed)
	for name, value := range r.gauges() {
		to.Gauge("localcache_"+name, float64(value))
	}
	to.ScaledHistogram("service_response_time_seconds", r.options.Spent(), scale, method)
}
