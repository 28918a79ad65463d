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

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/test/parts"
)

// servers are the Redis processes that tests share. They start when first needed.
var servers struct {
	single  *parts.Redis
	cluster *parts.Cluster
}

func TestMain(m *testing.M) {
	code := m.Run()
	if servers.single != nil {
		servers.single.Kill()
	}
	if servers.cluster != nil {
		servers.cluster.Kill()
	}
	os.Exit(code)
}

// redisBinary returns a redis-server, or skips the test where there is none and none is required.
func redisBinary(t testing.TB) string {
	t.Helper()
	path, err := parts.FindRedis(t.Context(), filepath.Join("..", "..", ".."))
	if err != nil && parts.Required("redis") {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip(err)
	}
	return path
}

// shared returns the Redis that tests share; each uses a prefix of its own.
func shared(t testing.TB) *parts.Redis {
	t.Helper()
	if servers.single == nil {
		binary := redisBinary(t)
		dir, err := os.MkdirTemp("", "redis")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if servers.single, err = parts.StartRedis(ctx, binary, dir, parts.RedisOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return servers.single
}

// sharedCluster returns the cluster that tests share.
func sharedCluster(t testing.TB) *parts.Cluster {
	t.Helper()
	if servers.cluster == nil {
		binary := redisBinary(t)
		dir, err := os.MkdirTemp("", "cluster")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if servers.cluster, err = parts.StartCluster(ctx, binary, dir, parts.RedisOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return servers.cluster
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

// open returns a store, closed with the test, that is connected. Its keys begin with a prefix of its own.
func open(t testing.TB, urls []string, o Options) *Store {
	t.Helper()
	var err error
	if o.Target, err = ParseTarget(TargetOptions{URLs: urls}); err != nil {
		t.Fatal(err)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Prefix == "" {
		o.Prefix = fmt.Sprintf("%s %d:", t.Name(), time.Now().UnixNano())
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second // of a machine that has other things to do
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.Await(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}
