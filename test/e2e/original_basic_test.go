package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/weirproxy/weir/test/parts"
)

// Variables that the basic scenarios are played with and without.
const (
	localCache   = "LOCAL_CACHE_SIZE_IN_BYTES=1000"
	keyPrefix    = "CACHE_KEY_PREFIX=before:"
	stopCounting = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"
	ourKeys      = "REDIS_KEY_FORMAT=weir"
	perSecond    = "REDIS_PERSECOND=true"
)

// A variant is one way to run the programs of the basic scenarios.
type variant struct {
	with  []string // of the variables above
	redis bool
	xds   bool // rules come by xDS, not from files
}

func (v variant) String() string {
	words := []string{"memory"}
	if v.redis {
		words[0] = "redis"
	}
	if v.xds {
		words = append(words, "xds")
	}
	return strings.Join(append(words, v.with...), " ")
}

func (v variant) has(variable string) bool { return slices.Contains(v.with, variable) }

// hits are the counters of a rule.
type hits struct{ Total, Within, Near, Over int }

// A step is one request, its answer, and the growth of the original's counters of rules since the
// first step. Of a reset that is there and within its unit, the answer says one second.
type step struct {
	Asked   string // see parseRequest; $ stands for a value that nobody has used
	Answer  *ratelimitv3.RateLimitResponse
	Counted map[string]hits
}

func TestBasicScenariosOfTheOriginal(t *testing.T) {
	t.Parallel()
	var variants []variant
	for _, redis := range []bool{false, true} {
		for _, with := range [][]string{nil, {localCache}, {keyPrefix}, {stopCounting}, {localCache, keyPrefix, stopCounting}} {
			variants = append(variants, variant{with: with, redis: redis})
		}
		variants = append(variants, variant{with: []string{localCache}, redis: redis, xds: true})
	}
	for _, with := range [][]string{{ourKeys}, {perSecond}, {perSecond, localCache, keyPrefix, stopCounting}} {
		variants = append(variants, variant{with: with, redis: true})
	}
	for _, v := range variants {
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel()
			environ := append(slices.Clone(v.with), originalRules(t))
			if v.xds {
				p := startControlPlane(t)
				environ = append(environ, overXDS(p)...)
				setRules(t, p, "1", basicByXDS()...)
			}
			var redis *parts.Redis
			if v.redis {
				redis = startRedis(t, parts.RedisOptions{})
				environ = append(environ, withRedis(redis)...)
			}
			if v.has(perSecond) {
				environ = append(environ, "REDIS_PERSECOND_SOCKET_TYPE=tcp", "REDIS_PERSECOND_URL="+startRedis(t, parts.RedisOptions{}).Address())
			}
			r := startRatelimit(t, environ...)
			r.awaitHealthy(t)
			want := v.scenario()
			got := undisturbed(t, r, func(value string) []step { return r.steps(t, want, value) })
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			r.resetDecreases(t)
			// In each variant, a local cache saves Redis some requests over the limit.
			saved := r.stat(t, "ratelimit.service.rate_limit.another.key2.over_limit_with_local_cache")
			if saves := v.redis && v.has(localCache); saves != (saved > 0) {
				t.Errorf("hits denied from the local cache: got %d, want some: %t", saved, saves)
			}
			if v.redis {
				for _, key := range keysOf(t, redis) {
					if strings.HasPrefix(key, "before:") != v.has(keyPrefix) {
						t.Errorf("key in Redis: got %q, want one that begins with before: %t", key, v.has(keyPrefix))
					}
				}
			}
		})
	}
}

// scenario is the steps, and their expected results.
func (v variant) scenario() (all []step) {
	counted := make(map[string]hits)
	for _, rule := range []string{"basic.key1", "another.key2", "another.key3", "basic.folder.file_files/*", "basic.folder.file_files_no_share/*"} {
		counted[rule] = hits{}
	}
	ask := func(asked string, statuses ...*ratelimitv3.RateLimitResponse_DescriptorStatus) {
		all = append(all, step{asked, answerOf(statuses...), maps.Clone(counted)})
	}
	// take is the status of the hit that brings the count of a rule there.
	take := func(rule string, limit, count int) *ratelimitv3.RateLimitResponse_DescriptorStatus {
		h := counted[rule]
		h.Total++
		switch {
		case count > limit:
			h.Over++
		case count > limit*8/10:
			h.Near++
			fallthrough
		default:
			h.Within++
		}
		counted[rule] = h
		return perYear(limit, count)
	}
	ask("basic none=$", noLimit())
	first := take("basic.key1", 50, 1)
	first.CurrentLimit.Unit = ratelimitv3.RateLimitResponse_RateLimit_SECOND
	ask("basic key1=$", first)
	for i := range 25 {
		ask("another key2=$", take("another.key2", 20, i+1))
	}
	spent, both := 25, 15
	for i := range 15 {
		other := i + 1
		if v.has(stopCounting) {
			other = min(other, 10) // hits that the other key denies do not count
			spent, both = 20, 10
		}
		ask("another key2=$-too key3=$", take("another.key2", 20, other), take("another.key3", 10, i+1))
	}
	ask("another key2=$ +0", perYear(20, spent))
	ask("another key2=$-too +0", perYear(20, both))
	if v.xds {
		return all // there is no share_threshold in the original's resources
	}
	const shared, single = "basic.folder.file_files/*", "basic.folder.file_files_no_share/*"
	for i := range 10 {
		ask("basic folder=$,file=files/a.pdf", take(shared, 10, i+1))
	}
	ask("basic folder=$,file=files/b.csv", take(shared, 10, 11))
	ask("basic folder=$,file=files_no_share/a.pdf", take(single, 10, 1))
	ask("basic folder=$,file=files_no_share/b.csv", take(single, 10, 1))
	return all
}

// steps sends the requests of the steps with that value, and returns the results.
func (r *ratelimit) steps(t *testing.T, all []step, value string) (got []step) {
	t.Helper()
	c := dial(t, r.GRPC)
	// counted returns the growth of each rule's counters.
	counted := func(since map[string]hits) map[string]hits {
		_, page := fetch(t, "http://"+r.Debug+"/stats")
		now := make(map[string]hits)
		for rule := range all[0].Counted {
			of := func(name string) int { return sum(t, page, "ratelimit.service.rate_limit."+rule+"."+name+":") }
			b := since[rule]
			now[rule] = hits{of("total_hits") - b.Total, of("within_limit") - b.Within, of("near_limit") - b.Near, of("over_limit") - b.Over}
		}
		return now
	}
	before := counted(nil)
	for _, s := range all {
		answer := c.answer(t, strings.ReplaceAll(s.Asked, "$", value))
		got = append(got, step{s.Asked, answer, counted(before)})
	}
	return got
}

// resetDecreases checks that the time until a limit starts afresh gets less.
func (r *ratelimit) resetDecreases(t *testing.T) {
	t.Helper()
	c := dial(t, r.GRPC)
	reset := func() time.Duration {
		answer, err := c.service.ShouldRateLimit(parts.Soon(t), parseRequest(t, "another key2=reset +0"))
		if err != nil {
			t.Fatal(err)
		}
		return answer.GetStatuses()[0].GetDurationUntilReset().AsDuration()
	}
	first := reset()
	parts.Eventually(t, func() string {
		if now := reset(); now >= first {
			return fmt.Sprintf("the reset was %s and is %s", first, now)
		}
		return ""
	})
}

// basicByXDS is basic.yaml and another.yaml as resources.
func basicByXDS() []*confv3.RateLimitConfig {
	const year confv3.RateLimitUnit = 6 // which the released enumeration lacks
	rule := func(key string, unit confv3.RateLimitUnit, requests uint32) *confv3.RateLimitDescriptor {
		return &confv3.RateLimitDescriptor{Key: key, RateLimit: &confv3.RateLimitPolicy{Unit: unit, RequestsPerUnit: requests}}
	}
	return []*confv3.RateLimitConfig{
		{Name: "basic", Domain: "basic", Descriptors: []*confv3.RateLimitDescriptor{rule("key1", confv3.RateLimitUnit_SECOND, 50)}},
		{Name: "another", Domain: "another", Descriptors: []*confv3.RateLimitDescriptor{
			rule("key2", year, 20), rule("key3", year, 10),
		}},
	}
}
