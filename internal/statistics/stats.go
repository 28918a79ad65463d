package statistics

import (
	"fmt"
	"io"
	"iter"
)

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
			{"ratelimit.service.rate_limit.over_limit_with_local_cache", t.deniedLocally},
			{"ratelimit_server." + method + ".total_requests", t.requests},
		} {
			if !yield(c.name, c.value) {
				return
			}
		}
	}
}

// responseTime is the name of the times of requests.
const responseTime = "ratelimit_server." + method + ".response_time"

// WriteText writes all counters, one `name: value` per line.
func (r *Reader) WriteText(w io.Writer) error {
	for name, value := range r.counters() {
		if _, err := fmt.Fprintf(w, "%s: %d\n", name, value); err != nil {
			return err
		}
	}
	return nil
}
