package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// awaitCopies waits until replicas have all that a primary has done up to now.
func awaitCopies(t *testing.T, primary *parts.Redis, replicas []*parts.Redis) {
	t.Helper()
	offset := func(r *parts.Redis, name string) int {
		state, err := r.Info(parts.Soon(t), "replication")
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(state[name])
		if err != nil {
			t.Fatalf("%s of %s: %v", name, r.Address(), err)
		}
		return n
	}
	done := offset(primary, "master_repl_offset")
	for _, replica := range replicas {
		parts.Eventually(t, func() string {
			if got := offset(replica, "slave_repl_offset"); got < done {
				return fmt.Sprintf("%s has a copy up to %d of %d", replica.Address(), got, done)
			}
			return ""
		})
	}
}

func TestAFailoverBySentinelsCostsNoErrorAndNoCount(t *testing.T) {
	t.Parallel()
	s := startSentinels(t, parts.SentinelOptions{
		Data: parts.RedisOptions{Password: "data"}, Username: "watcher", Password: "sentinel",
	})
	f := startFleet(t, "redis-sentinel://:data@"+strings.Join(s.Addresses(), ",")+"/"+parts.SentinelName+
		"?sentinel_username=watcher&sentinel_password=sentinel")
	f.awaitState(t, "closed")
	f.holds(t)
	f.begin(t)
	user := f.use(t, 12, "window", "bucket")
	old, err := s.Primary(parts.Soon(t))
	if err != nil {
		t.Fatal(err)
	}
	awaitCopies(t, old, slices.DeleteFunc(slices.Clone(s.Data), func(r *parts.Redis) bool { return r == old }))

	before := f.opened(t)
	old.Kill()
	f.awaitOpened(t, before)
	if _, err := s.AwaitNewPrimary(parts.Soon(t), old); err != nil {
		t.Fatal(err)
	}
	f.awaitQuiet(t)
	f.left(t, few-12, "window", user)
	f.holds(t)

	// The old one comes back empty and thinks that it is a primary until the Sentinels tell it.
	if err := old.Restart(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}
	f.left(t, few-12, "bucket", user)
	f.holds(t)
	f.finish(t)
}

// startCluster starts a cluster for the test.
func startCluster(t *testing.T, options parts.RedisOptions) *parts.Cluster {
	t.Helper()
	once(t)
	return parts.ClusterFor(t, options)
}

// clusterURL is the --redis-url of a cluster, of which some nodes may be away.
func clusterURL(c *parts.Cluster) string {
	return "redis-cluster://" + strings.Join(c.Addresses(), ",")
}

// slotOf returns the slot of a key that Redis has, by the prefix of its name and by key and value
// of its descriptor.
func slotOf(t *testing.T, c *parts.Cluster, prefix, key, value string) int {
	t.Helper()
	for _, node := range c.Nodes {
		message, err := node.Do(parts.Soon(t), "KEYS", prefix+"*"+key+"*"+value+"[}#]*")
		if err != nil {
			t.Fatal(err)
		}
		names, err := message.AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		if len(names) > 1 {
			t.Fatalf("keys of %s=%s: got %q, want one", key, value, names)
		}
		if len(names) == 0 {
			continue
		}
		slot, err := c.Slot(parts.Soon(t), names[0])
		if err != nil {
			t.Fatal(err)
		}
		return slot
	}
	t.Fatalf("no node has a key of %s=%s", key, value)
	return 0
}

func TestAPrimaryOfAClusterThatIsKilledCostsNoErrorAndNoCount(t *testing.T) {
	t.Parallel()
	c := startCluster(t, parts.RedisOptions{})
	f := startFleet(t, clusterURL(c))
	f.slots = true
	f.awaitState(t, "closed")
	f.holds(t)
	traffic := f.begin(t)
	user := f.use(t, 12, "window")
	slot := slotOf(t, c, "weir:", "window", user)
	old, err := c.PrimaryOf(parts.Soon(t), slot)
	if err != nil {
		t.Fatal(err)
	}
	replica := c.Nodes[(slices.Index(c.Nodes, old)+3)%6]
	awaitCopies(t, old, []*parts.Redis{replica})

	away := f.away(t)
	old.Kill()
	traffic.awaitMore(t, 100)
	if f.away(t) == away {
		t.Error("all charges were decided by Redis, of which a part was away")
	}
	if _, err := c.AwaitNewPrimary(parts.Soon(t), slot, old); err != nil {
		t.Fatal(err)
	}
	f.awaitQuiet(t)
	f.left(t, few-12, "window", user)
	for range 3 {
		f.holds(t) // in other slots each time
	}
	if err := old.Restart(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}
	f.holds(t)
	f.finish(t)
}

func TestASlotThatMovesUnderTrafficCostsNoErrorAndNoCount(t *testing.T) {
	c := startCluster(t, parts.RedisOptions{NodeTimeout: time.Minute})
	for _, tag := range []string{"none", "domain"} {
		t.Run("hash tag "+tag, func(t *testing.T) {
			f := startFleet(t, clusterURL(c), patientFleet, "--redis-hash-tag="+tag, "--redis-prefix="+tag+":")
			f.slots = tag == "none"
			f.awaitState(t, "closed")
			f.begin(t)
			user := f.use(t, 12, "many")
			slot := slotOf(t, c, tag+":", "many", user)
			// For a while, the keys of one request may lie on both sides, and neither side can decide such a
			// request. Requests of one key have no such moment.
			var labels []string
			if tag == "domain" {
				labels = []string{`policy="deny"`} // which requests of one key have alone, many among them
			}
			away := f.away(t, labels...)
			asking := newTraffic(t, 2*len(f.clients), 20*time.Millisecond, func(ctx context.Context, worker int) string {
				asker := f.clients[worker%len(f.clients)]
				var others sync.WaitGroup // at once, so that some share a call with it
				for i := range 5 {
					others.Go(func() { asker.outcome(ctx, questions("deny", fmt.Sprintf("other-%d-%d", worker, i))) })
				}
				outcome := asker.outcome(ctx, questions("many", user))
				others.Wait()
				return outcome
			})
			moveSlot(t, c, slot, asking, 4, 20)
			parts.Eventually(t, func() string {
				if asking.outcomes()["OVER_LIMIT"] < 10 {
					return fmt.Sprintf("the limit is not reached: %v", asking.outcomes())
				}
				return ""
			})
			if more := f.away(t, labels...) - away; more > 0 {
				t.Errorf("%d charges %v were decided without Redis, which was always there", more, labels)
			}
			if outcomes := asking.stop(); len(outcomes) != 2 || outcomes["OK"] != 200-12 {
				t.Errorf("outcomes: got %v, want 188 times OK and then OVER_LIMIT alone", outcomes)
			}
			f.awaitQuiet(t)
			f.holds(t)
			f.finish(t)
		})
	}
}

// moveSlot moves a slot of a cluster from node to node, that many times. Requests come before each
// move, after the move of the keys, and after the end. In between one node decides keys that are
// there, and the other one new keys.
func moveSlot(t *testing.T, c *parts.Cluster, slot int, asking *traffic, times, requests int) {
	t.Helper()
	for i := range times {
		from, err := c.PrimaryOf(parts.Soon(t), slot)
		if err != nil {
			t.Fatal(err)
		}
		m, err := c.BeginMigration(parts.Soon(t), slot, c.Nodes[(slices.Index(c.Nodes, from)+1)%3])
		if err != nil {
			t.Fatal(err)
		}
		asking.awaitMore(t, requests)
		if _, err := m.Move(parts.Soon(t), 150); err != nil {
			t.Fatal(err)
		}
		asking.awaitMore(t, requests)
		if err := m.Finish(parts.Soon(t)); err != nil {
			t.Fatalf("migration %d: %v", i, err)
		}
		asking.awaitMore(t, requests)
	}
}
