package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/redis"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/test/parts"
)

// redises are the Redis processes that tests share. The first test that needs a process starts it.
var redises struct {
	single  *parts.Redis
	cluster *parts.Cluster
}

func TestMain(m *testing.M) {
	code := m.Run()
	if redises.single != nil {
		redises.single.Kill()
	}
	if redises.cluster != nil {
		redises.cluster.Kill()
	}
	os.Exit(code)
}

// redisBinary returns the path of redis-server. Without one it skips the test, or fails if
// WEIR_REQUIRE demands Redis.
func redisBinary(tb testing.TB) string {
	tb.Helper()
	return parts.NeedRedis(tb, filepath.Join("..", "..", ".."))
}

// shared returns the Redis that tests share; each uses a prefix of its own.
func shared(tb testing.TB) *parts.Redis {
	tb.Helper()
	if redises.single == nil {
		binary := redisBinary(tb)
		dir, err := os.MkdirTemp("", "redis") //nolint:usetesting // outlives the test
		if err != nil {
			tb.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
		defer cancel()
		if redises.single, err = parts.StartRedis(ctx, binary, dir, parts.RedisOptions{}); err != nil {
			tb.Fatal(err)
		}
	}
	return redises.single
}

// sharedCluster returns the cluster that tests share.
func sharedCluster(tb testing.TB) *parts.Cluster {
	tb.Helper()
	if redises.cluster == nil {
		binary := redisBinary(tb)
		dir, err := os.MkdirTemp("", "cluster") //nolint:usetesting // outlives the test
		if err != nil {
			tb.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
		defer cancel()
		if redises.cluster, err = parts.StartCluster(ctx, binary, dir, parts.RedisOptions{}); err != nil {
			tb.Fatal(err)
		}
		if err := redises.cluster.DisableFailover(ctx); err != nil {
			tb.Fatal(err)
		}
	}
	return redises.cluster
}

// urlOf returns the URL of one Redis, or of a cluster.
func urlOf(scheme string, addresses ...string) []string {
	return []string{scheme + "://" + strings.Join(addresses, ",")}
}

// clock is a clock that only its owner moves, by whole microseconds, as Redis has no others.
type clock struct{ at atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.at.Store(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC).UnixNano())
	return c
}

func (c *clock) now() algorithms.Instant { return algorithms.Instant(c.at.Load()) }
func (c *clock) sleep(d time.Duration) {
	c.at.Add(int64((d + Granularity - 1).Truncate(Granularity)))
}

// drives gives a store this clock.
func (c *clock) drives(s *Store) {
	s.given = c.now
}

// open returns a connected store with a prefix of its own, and closes the store with the test.
func open(tb testing.TB, urls []string, o Options) *Store {
	tb.Helper()
	o.Target.URLs = urls
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Prefix == "" {
		o.Prefix = fmt.Sprintf("%s %d:", tb.Name(), time.Now().UnixNano())
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second // of a machine that has other things to do
	}
	s, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	for server := range s.all() {
		eventually(tb, "a connection to Redis", func() bool { // on a busy machine the first attempt may fail
			_, err := server.connection.Client()
			return err == nil
		})
	}
	return s
}

// unconnected returns a store with a server to which nobody connects, and an outbox that does not
// run: for tests of names and formats.
func unconnected(n names) *Store {
	var c connection = &far{}
	if n.cluster {
		c = &farCluster{}
	}
	b := &base{timeout: DefaultTimeout, logger: slog.New(slog.DiscardHandler), hasCounters: n.counters.Name != nil}
	return newStoreOf(&servers{base: b, main: newServer(b, n, redis.Target{}, c)})
}
