package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

// startSentinels returns Sentinels, and a Conn to their primary.
func startSentinels(t *testing.T) (*parts.Sentinels, *Conn, *logLines) {
	t.Helper()
	s := started(t, parts.StartSentinels, parts.SentinelOptions{Data: parts.RedisOptions{Password: "secret"}, Password: "hidden"})
	c, lines := connectedTo(t, Options{
		URLs: []string{"redis-sentinel://:secret@" + strings.Join(s.Addresses(), ",") + "/" + parts.SentinelName + "?sentinel_password=hidden"},
	})
	must.Do(t, c.patiently())
	return s, c, lines
}

func TestFailoverBySentinelIsFollowed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		fault func(t *testing.T, s *parts.Sentinels, primary *parts.Redis)
	}{
		{"primary_killed", func(_ *testing.T, _ *parts.Sentinels, primary *parts.Redis) { primary.Kill() }},
		{"primary_and_a_sentinel_killed", func(_ *testing.T, s *parts.Sentinels, primary *parts.Redis) {
			s.Sentinels[0].Kill()
			primary.Kill()
		}},
		{"primary_stopped", func(t *testing.T, _ *parts.Sentinels, primary *parts.Redis) {
			t.Helper()
			must.Do(t, primary.Pause(soon(t)))
		}},
		{"primary_lives_on_as_replica", func(t *testing.T, s *parts.Sentinels, _ *parts.Redis) {
			t.Helper()
			must.Get(s.Sentinels[1].Do(soon(t), "SENTINEL", "FAILOVER", parts.SentinelName))(t)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, c, lines := startSentinels(t)
			old := must.Get(s.Primary(soon(t)))(t)
			begun := time.Now()
			test.fault(t, s, old)
			timed := newPace(t)
			await(t, "a command at another primary", func() error {
				err := timed.works(c)
				if err == nil && worksAt(c, old) == nil {
					return errors.New("it is at the old one")
				}
				return err
			})
			outage := time.Since(begun)
			t.Logf("commands succeed after %v", outage)
			primary := must.Get(s.AwaitNewPrimary(soon(t), old))(t)
			if err := worksAt(c, primary); err != nil {
				t.Error(err)
			}
			if test.name == "primary_lives_on_as_replica" {
				return // the outage may be too short for a log line
			}
			await(t, "the log", func() error {
				// On a busy machine another node may be slow. Sentinels can take so long to agree that Conn
				// makes a new client.
				away, gone := lines.about(old, "redis is not reachable"), lines.about(old, "redis goes on without an unreachable node")
				if away != 1 || gone != 1 && outage <= remakeAfter {
					return fmt.Errorf("%d lines say that the old primary is not reachable, and %d that redis goes on without it; want 1 and 1:\n%s", away, gone, lines)
				}
				return nil
			})
		})
	}
}

func TestSentinelsThatNameADeadPrimaryAreNotHammered(t *testing.T) {
	t.Parallel()
	running := goroutines(t)
	s, c, lines := startSentinels(t)
	for _, r := range s.Data {
		r.Kill()
	}
	most := 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if err := c.works(); !errors.Is(err, ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		n, _ := running()
		most = max(most, n)
	}
	last, _ := running()
	t.Logf("%d goroutines at most, %d in the end", most, last)
	if most > 60 {
		t.Errorf("%d goroutines", most)
	}
	for _, sentinel := range s.Sentinels {
		list := must.Get(sentinel.Do(soon(t), "CLIENT", "LIST"))(t)
		if text, _ := list.ToString(); strings.Count(text, "name=weir ") > 1 {
			t.Errorf("several connections to a Sentinel:\n%s", text)
		}
	}
	must.Do(t, s.Data[0].Restart(soon(t)))
	begun := time.Now()
	await(t, "a command", c.works)
	t.Logf("commands succeed %v after the restart", time.Since(begun))
	await(t, "the log", func() error {
		return lines.has("redis connected", "redis is not reachable", "redis is reachable again")
	})
}

// worksAt returns nil when the server answers commands.
func worksAt(c *Conn, r *parts.Redis) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	for address := range client.Nodes() {
		if address != r.Address() {
			return fmt.Errorf("they go to %s", address)
		}
	}
	return c.patiently()
}

func TestFailoverOfAClusterIsFollowed(t *testing.T) {
	t.Parallel()
	cluster := started(t, parts.StartCluster, parts.RedisOptions{})
	c, _ := connectedTo(t, Options{URLs: urlOf("redis-cluster", cluster.Addresses()[0])})
	slot := must.Get(cluster.Slot(soon(t), "{connection}"))(t)
	old := must.Get(cluster.PrimaryOf(soon(t), slot))(t)
	must.Do(t, c.patiently())
	begun := time.Now()
	old.Kill()
	timed := newPace(t)
	await(t, "a command", func() error { return timed.works(c) })
	t.Logf("commands succeed %v after the primary's death", time.Since(begun))
	must.Do(t, old.Restart(soon(t)))
	must.Do(t, cluster.AwaitWhole(soon(t)))
	must.Get(cluster.FailOver(soon(t), slot))(t)
	begun = time.Now()
	await(t, "a command", c.works)
	t.Logf("commands succeed %v after a failover that was asked for", time.Since(begun))
}

// The test runs beside no other test: a live node must answer within a second.
func TestStoppedNodeOfAClusterStopsNoOther(t *testing.T) {
	cluster := started(t, parts.StartCluster, parts.RedisOptions{})
	c, _ := connectedTo(t, Options{URLs: urlOf("redis-cluster", cluster.Addresses()...)})
	slot := must.Get(cluster.Slot(soon(t), "{connection}"))(t)
	stopped := must.Get(cluster.PrimaryOf(soon(t), slot))(t)
	other := "" // a key of another node
	for i := 0; other == ""; i++ {
		key := fmt.Sprint("key ", i)
		slot := must.Get(cluster.Slot(soon(t), key))(t)
		if primary, err := cluster.PrimaryOf(soon(t), slot); err != nil {
			t.Fatal(err)
		} else if primary != stopped {
			other = key
		}
	}
	must.Do(t, stopped.Pause(soon(t)))
	begun := time.Now()
	var slowest time.Duration
	await(t, "a command to a new primary", func() error {
		err := c.works()
		at := time.Now()
		// By default a cluster without one of its primaries refuses all commands.
		if _, err := c.command(time.Second, "INCR", other); err != nil && errorCode(err) != "CLUSTERDOWN" {
			t.Errorf("a command to another node: %v", err)
		}
		slowest = max(slowest, time.Since(at))
		return err
	})
	t.Logf("commands succeed again after %v; those to another node took %v at most", time.Since(begun), slowest)
}
