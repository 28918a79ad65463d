package redis

import (
	"log/slog"
	"strconv"
	"testing"

	"github.com/redis/rueidis"
)

// metConn returns a Conn that meets nodes, and does nothing else.
func metConn(o topology) *Conn {
	return newConn(Target{topology: o}, slog.New(slog.DiscardHandler))
}

func (c *Conn) meetAs(address, run string, evicted int) {
	c.meet(address, map[string]string{"run_id": run, "evicted_keys": strconv.Itoa(evicted)})
}

func TestEvictedKeysAreCountedOnceAndTheNumberNeverGoesBack(t *testing.T) {
	c := metConn(topologyCluster)
	for _, tt := range []struct {
		what, address, run string
		evicted            int
		want, restarts     uint64
	}{
		{"the first node", "a:1", "a", 5, 5, 0},
		{"another node", "b:1", "b", 3, 8, 0},
		{"more keys", "a:1", "a", 9, 12, 0},
		{"the same keys", "a:1", "a", 9, 12, 0},
		{"a start", "a:1", "a2", 0, 12, 1},
		{"keys after the start", "a:1", "a2", 2, 14, 1},
		{"statistics that were reset", "a:1", "a2", 1, 15, 1},
	} {
		c.meetAs(tt.address, tt.run, tt.evicted)
		if got, restarts := c.EvictedKeys(), c.Restarts(); got != tt.want || restarts != tt.restarts {
			t.Errorf("%s: %d keys and %d restarts; want %d and %d", tt.what, got, restarts, tt.want, tt.restarts)
		}
	}
	c.forget(nil)
	if got := c.EvictedKeys(); got != 15 {
		t.Errorf("%d keys after all nodes have left; want 15", got)
	}
}

// Nodes of a cluster can get other addresses with each start, so without an end the addresses of
// years would be kept.
func TestANodeThatHasLeftTheClusterIsForgotten(t *testing.T) {
	c := metConn(topologyCluster)
	for n := range 1000 {
		c.meetAs("node:"+strconv.Itoa(n), "run", 0)
		c.forget(map[string]rueidis.Client{"node:0": nil, "node:" + strconv.Itoa(n): nil})
	}
	if got := len(c.met.nodes); got != 2 {
		t.Errorf("%d nodes are kept; want the two of the cluster", got)
	}
	if c.meetAs("node:0", "again", 0); c.Restarts() != 1 {
		t.Errorf("%d restarts; want the one of a node that has stayed", c.Restarts())
	}
}

// The server of a single target is known under any address, as a replica can take its place.
func TestAnotherServerInPlaceOfTheOnlyOneIsARestart(t *testing.T) {
	c := metConn(topologySingle)
	c.meetAs("a:1", "a", 0)
	c.forget(nil)
	if c.meetAs("b:1", "b", 0); c.Restarts() != 1 {
		t.Errorf("%d restarts; want 1", c.Restarts())
	}
}
