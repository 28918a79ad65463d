package redisconn

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/deptest"
	"github.com/weirproxy/weir/test/parts"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/certificates"},
		Third: []string{"github.com/redis/rueidis"},
	})
}

// redisBinary returns the path of a redis-server. Without one redisBinary skips the test, or fails it where Redis is required.
func redisBinary(tb testing.TB) string {
	tb.Helper()
	return parts.NeedRedis(tb, filepath.Join("..", ".."))
}

// startRedis starts a Redis for one test.
func startRedis(t *testing.T, o parts.RedisOptions) *parts.Redis {
	t.Helper()
	r, err := parts.StartRedis(soon(t), redisBinary(t), t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	return r
}

// startCluster starts a cluster for one test.
func startCluster(t *testing.T, o parts.RedisOptions) *parts.Cluster {
	t.Helper()
	c, err := parts.StartCluster(soon(t), redisBinary(t), t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	return c
}

// steadyCluster starts a cluster without failovers for one test.
func steadyCluster(t *testing.T, o parts.RedisOptions) *parts.Cluster {
	t.Helper()
	c := startCluster(t, o)
	if err := c.DisableFailover(soon(t)); err != nil {
		t.Fatal(err)
	}
	return c
}

// urlOf returns the URL of one Redis, or of a cluster.
func urlOf(scheme string, addresses ...string) []string {
	return []string{scheme + "://" + strings.Join(addresses, ",")}
}
