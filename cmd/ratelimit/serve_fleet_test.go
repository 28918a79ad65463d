package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

// The units are years, so that no window ends meanwhile.
const fleetRules = `
domain: edge
descriptors:
  - key: path
    value: /search
    rate_limit: {unit: year, requests_per_unit: 10}
    descriptors:
      - key: client
        rate_limit: {unit: year, requests_per_unit: 5}
  - {key: file, value: "f/*", share_threshold: true, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: bucket, rate_limit: {unit: year, requests_per_unit: 3, algorithm: token_bucket}}
  - key: two
    rate_limits: [{unit: year, requests_per_unit: 3}, {unit: day, requests_per_unit: 5}]
`

// asOriginal plays what envoyproxy/ratelimit does with a key, and returns the count after it.
func asOriginal(t *testing.T, redis *parts.Redis, key string, hits int) int64 {
	t.Helper()
	message := must.Get(redis.Do(t.Context(), "INCRBY", key, strconv.Itoa(hits)))(t)
	must.Get(redis.Do(t.Context(), "EXPIRE", key, strconv.Itoa(365*86400+7)))(t)
	count := must.Get(message.AsInt64())(t)
	return count
}

// keysOf returns the names of all keys of a server, with W for the start of this year's window.
// Keys of probes and of the fleet are left out.
func keysOf(t *testing.T, redis *parts.Redis, window string) []string {
	t.Helper()
	message := must.Get(redis.Do(t.Context(), "KEYS", "*"))(t)
	keys := must.Get(message.AsStrSlice())(t)
	keys = slices.DeleteFunc(keys, func(key string) bool {
		return strings.Contains(key, "weir:ping") || strings.HasSuffix(key, "weir:fleet")
	})
	for i := range keys {
		keys[i] = strings.ReplaceAll(keys[i], window, "W")
	}
	slices.Sort(keys)
	return keys
}

// A pod of the original and one of ours, in front of one Redis, keep one count.
func TestOldAndNewPodsCountTogether(t *testing.T) {
	t.Parallel()
	redis := startRedis(t, parts.RedisOptions{})
	const year = 365 * 86400
	window := strconv.FormatInt(time.Now().Unix()/year*year, 10)
	with := func(more ...string) *running {
		r := start(t, fleetRules, append(more, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis.Address(),
			"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true", "CACHE_KEY_PREFIX=p:", "EXPIRATION_JITTER_MAX_SECONDS=10")...)
		r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
		return r
	}
	wants := func(of *running, request, want string) {
		t.Helper()
		answer, err := of.ask(t, parseRequest(t, request))
		if got := show(t, answer, err); got != want {
			t.Errorf("%s: got %s, want %s", request, got, want)
		}
	}
	a, b, cached := with(), with(), with("LOCAL_CACHE_SIZE_IN_BYTES=1000")

	search := "p:edge_path_/search_" + window
	wants(a, "edge +2 | path=/search", "OK | OK 10/6 left 8 reset")
	if got := asOriginal(t, redis, search, 3); got != 5 {
		t.Errorf("the original counts %d; want 5", got)
	}
	wants(b, "edge | path=/search", "OK | OK 10/6 left 4 reset")
	wants(cached, "edge +5 | path=/search", "OVER_LIMIT | OVER_LIMIT 10/6 reset")
	wants(cached, "edge +5 | path=/search", "OVER_LIMIT | OVER_LIMIT 10/6 reset")
	for end, got := time.Now().Add(within), int64(0); got != 16; { // what is denied counts, from memory a little later
		if got = asOriginal(t, redis, search, 0); got != 16 && time.Now().After(end) {
			t.Fatalf("the original counts %d; want 16", got)
		}
	}

	// An override is counted with the rule, a shared pattern under the pattern, and a probe creates
	// nothing.
	wants(a, "edge | path=/search @20/6", "OK | OK 20/6 left 3 reset")
	wants(a, "edge | path=/search,client=c1 | file=f/a", "OK | OK 5/6 left 4 reset | OK 3/6 left 2 reset")
	wants(b, "edge | file=f/b", "OK | OK 3/6 left 1 reset")
	wants(b, "edge | path=/search,client=c2 +0", "OK | OK 5/6 left 5 reset")
	if got := asOriginal(t, redis, "p:edge_path_/search_client_c1_"+window, 4); got != 5 {
		t.Errorf("the original counts %d; want 5", got)
	}
	wants(b, "edge | path=/search,client=c1", "OVER_LIMIT | OVER_LIMIT 5/6 reset")

	// What the original does not have has keys of ours.
	wants(a, "edge | bucket=x", "OK | OK 3/6 left 2 reset")
	wants(b, "edge | bucket=x", "OK | OK 3/6 left 1 reset")
	wants(a, "edge | two=x", "OK | OK 3/6 left 2 reset")
	want := []string{
		"p:edge_file_f/*_W", "p:edge_path_/search_W", "p:edge_path_/search_client_c1_W",
		fmt.Sprintf("p:weir:4:edge|3:two=1:x#fixed_window/1d.2;1;%d", 86400_000_000),
		fmt.Sprintf("p:weir:4:edge|3:two=1:x#fixed_window/365d.2;1;%d", year*1_000_000),
		fmt.Sprintf("p:weir:4:edge|6:bucket=1:x#token_bucket/365d;2;%d", year*1_000_000),
	}
	if got := keysOf(t, redis, window); !slices.Equal(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	for _, key := range []string{search, "p:edge_file_f/*_" + window} {
		left := must.Get(redis.Do(t.Context(), "TTL", key))(t)
		if n, _ := left.AsInt64(); n < year-60 || n > year+10 {
			t.Errorf("%s lives for %d s; want a year and at most 10 s", key, n)
		}
	}

	// The switch: nothing is shared with the original any more.
	ours := with("REDIS_KEY_FORMAT=weir")
	wants(ours, "edge | path=/search", "OK | OK 10/6 left 9 reset")
	wants(ours, "edge | two=x", "OK | OK 3/6 left 2 reset")
	if got := asOriginal(t, redis, search, 0); got != 17 {
		t.Errorf("the original counts %d after a hit with REDIS_KEY_FORMAT=weir; want 17", got)
	}
}

// With USE_CALENDAR_MONTH_RATE_LIMIT the key names the first of the month in UTC. The key lives for
// the rest of the month, which is the reset, too.
func TestOldAndNewPodsCountMonthsOfTheCalendarTogether(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	begun := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	rest := int64(begun.AddDate(0, 1, 0).Sub(now).Seconds())
	if rest < 60 {
		t.Skip("the month ends meanwhile")
	}
	redis := startRedis(t, parts.RedisOptions{})
	rules := strings.ReplaceAll(fleetRules, "unit: year", "unit: month")
	r := start(t, rules, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis.Address(), "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true",
		"CACHE_KEY_PREFIX=p:", "EXPIRATION_JITTER_MAX_SECONDS=10", "USE_CALENDAR_MONTH_RATE_LIMIT=true")
	r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")

	window := strconv.FormatInt(begun.Unix(), 10)
	key := "p:edge_path_/search_" + window
	if got := asOriginal(t, redis, key, 3); got != 3 {
		t.Errorf("the original counts %d; want 3", got)
	}
	answer, err := r.ask(t, parseRequest(t, "edge +2 | path=/search | file=f/a"))
	if got, want := show(t, answer, err), "OK | OK 10/5 left 5 reset | OK 3/5 left 1 reset"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	for _, status := range answer.GetStatuses() {
		if got := status.GetDurationUntilReset().GetSeconds(); got > rest+1 || got < rest-60 {
			t.Errorf("the reset is after %d s; want %d, the rest of the month", got, rest)
		}
	}
	if got := asOriginal(t, redis, key, 1); got != 6 {
		t.Errorf("the original counts %d; want 6", got)
	}
	answer, err = r.ask(t, parseRequest(t, "edge | path=/search @20/5 | other=x @20/5")) // limits of the request, with a rule and without one
	if got, want := show(t, answer, err), "OK | OK 20/5 left 13 reset | OK 20/5 left 19 reset"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// Limits of two windows, or of an algorithm of ours, have keys of ours.
	answer, err = r.ask(t, parseRequest(t, "edge | two=x | bucket=x"))
	if got, want := show(t, answer, err), "OK | OK 3/5 left 2 reset | OK 3/5 left 2 reset"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	want := []string{
		"p:edge_file_f/*_W", "p:edge_other_x_W", "p:edge_path_/search_W",
		fmt.Sprintf("p:weir:4:edge|3:two=1:x#fixed_window/1d.2;1;%d", 86400_000_000),
		fmt.Sprintf("p:weir:4:edge|3:two=1:x#fixed_window/30d@month,UTC.2;7;%d", 30*86400_000_000),
		fmt.Sprintf("p:weir:4:edge|6:bucket=1:x#token_bucket/30d;2;%d", 30*86400_000_000),
	}
	if got := keysOf(t, redis, window); !slices.Equal(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	left := must.Get(redis.Do(t.Context(), "TTL", "p:edge_file_f/*_"+window))(t)
	if n, _ := left.AsInt64(); n < rest-60 || n > rest+10 {
		t.Errorf("the key lives for %d s; want %d and at most 10 s", n, rest)
	}
}

// In a cluster the original's keys lie where they may, each in a slot of its own, and a request is
// one transaction all the same.
func TestOldAndNewPodsCountTogetherInACluster(t *testing.T) {
	t.Parallel()
	cluster := must.Get(parts.StartCluster(t.Context(), parts.NeedRedis(t, "../.."), t.TempDir(), parts.RedisOptions{}))(t)
	t.Cleanup(cluster.Kill)
	must.Do(t, cluster.DisableFailover(t.Context()))
	r := start(t, fleetRules, "REDIS_SOCKET_TYPE=tcp", "REDIS_TYPE=CLUSTER", "REDIS_URL="+strings.Join(cluster.Addresses(), ","),
		"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true", "CACHE_KEY_PREFIX={fleet}")
	r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
	answer, err := r.ask(t, parseRequest(t, "edge | path=/search | path=/search,client=c1 | bucket=x"))
	if got, want := show(t, answer, err), "OK | OK 10/6 left 9 reset | OK 5/6 left 4 reset | OK 3/6 left 2 reset"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	key := fmt.Sprintf("{fleet}edge_path_/search_%d", time.Now().Unix()/(365*86400)*(365*86400))
	slot := must.Get(cluster.Slot(t.Context(), key))(t)
	primary := must.Get(cluster.PrimaryOf(t.Context(), slot))(t)
	if got := asOriginal(t, primary, key, 9); got != 10 {
		t.Errorf("the original counts %d; want 10", got)
	}
	answer, err = r.ask(t, parseRequest(t, "edge | path=/search,client=c1 | path=/search"))
	if got, want := show(t, answer, err), "OVER_LIMIT | OK 5/6 left 3 reset | OVER_LIMIT 10/6 reset"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestLimitsOfASecondAreInTheRedisOfTheirOwn(t *testing.T) {
	t.Parallel()
	redis, seconds := startRedis(t, parts.RedisOptions{}), startRedis(t, parts.RedisOptions{})
	r := start(t, `
domain: edge
descriptors:
  - {key: fast, rate_limit: {unit: second, requests_per_unit: 1000}}
  - {key: bucket, rate_limit: {unit: second, requests_per_unit: 1000, algorithm: token_bucket}}
  - {key: slow, rate_limit: {unit: year, requests_per_unit: 3}}
`, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis.Address(), "REDIS_PERSECOND=true", "REDIS_PERSECOND_SOCKET_TYPE=tcp",
		"REDIS_PERSECOND_URL="+seconds.Address(), "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true", "EXPIRATION_JITTER_MAX_SECONDS=3600")
	r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
	for n := range 4 {
		answer, err := r.ask(t, parseRequest(t, "edge | fast=x | slow=x | bucket=x"))
		if err != nil || answer.GetOverallCode().String() != map[bool]string{true: "OK", false: "OVER_LIMIT"}[n < 3] {
			t.Errorf("request %d: %v, %v", n, answer, err)
		}
	}
	window := strconv.FormatInt(time.Now().Unix()/(365*86400)*(365*86400), 10)
	if got, want := keysOf(t, redis, window), []string{"edge_slow_x_W"}; !slices.Equal(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	hits := int64(0)
	for _, key := range keysOf(t, seconds, window) {
		if strings.HasPrefix(key, "edge_fast_x_") {
			hits += asOriginal(t, seconds, key, 0)
		} else if !strings.HasPrefix(key, "weir:4:edge|6:bucket=1:x#token_bucket/1s;") {
			t.Errorf("key %q is in the Redis of limits of a second", key)
		}
	}
	if hits != 4 {
		t.Errorf("%d hits are counted in the Redis of limits of a second; want 4", hits)
	}
}
