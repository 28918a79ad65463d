package redis

import (
	"bytes"
	"fmt"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/test/parts"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/wire/certificates", "internal/rawio", "internal/redis/resp"},
		Third: []string{"github.com/redis/rueidis"},
	})
}

// redisBinary returns the path of a redis-server. Without one redisBinary skips the test, or fails
// it where Redis is required.
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

// goroutines labels the goroutine of a test, and so all goroutines that the test starts from then
// on. The function that it returns says how many of them run now, and where. Tests beside this one
// do not count.
func goroutines(t *testing.T) func() (running int, stacks []string) {
	t.Helper()
	labels := pprof.Labels("test", t.Name())
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), labels))
	mark := fmt.Sprintf("# labels: {%q:%q}", "test", t.Name())
	return func() (running int, stacks []string) {
		t.Helper()
		var profile bytes.Buffer
		if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
			t.Fatal(err)
		}
		for stack := range strings.SplitSeq(profile.String(), "\n\n") {
			if !strings.Contains(stack, mark) {
				continue
			}
			if first, rest, _ := strings.Cut(stack, "\n"); strings.HasPrefix(first, "goroutine profile:") {
				stack = rest
			}
			n := 0
			if _, err := fmt.Sscanf(stack, "%d @", &n); err != nil {
				t.Fatalf("%v in %s", err, stack)
			}
			running += n
			stacks = append(stacks, stack)
		}
		if running == 0 {
			t.Fatal("the goroutine of the test has no label")
		}
		return running, stacks
	}
}
