package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// In the original a call of Redis ends with its caller only.
func TestACallWithoutADeadlineWaitsForASlowRedis(t *testing.T) {
	t.Parallel()
	redis := startRedis(t, parts.RedisOptions{})
	line := parts.ProxyFor(t, redis.Address())
	r := start(t, fleetRules, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+line.Address(), "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true")
	r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
	line.Latency(60*time.Millisecond, 0)
	const body = `{"domain": "edge", "descriptors": [{"entries": [{"key": "bucket", "value": "a"}]}]}`
	for i, want := range []int{200, 200, 200, 429} {
		if code, text := r.page(t, http.MethodPost, "http", "/json", body); code != want {
			t.Errorf("request %d: got %d %s, want %d", i+1, code, text, want)
		}
	}
	if _, stats := r.page(t, http.MethodGet, "debug", "/stats", ""); !strings.Contains(stats, "should_rate_limit.redis_error: 0\n") {
		t.Errorf("stats: got\n%s\nwant no decision without Redis", stats)
	}
}
