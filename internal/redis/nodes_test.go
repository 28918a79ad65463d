package redis

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

func TestNodesSayThePrimaryOfEachSlot(t *testing.T) {
	t.Parallel()
	cluster := steadyCluster(t, parts.RedisOptions{})
	c, _ := connectedTo(t, Options{URLs: urlOf("redis-cluster", cluster.Addresses()...)})
	first := c.Nodes()
	if first == nil {
		t.Fatal("the nodes are unknown once the cluster is connected")
	}
	const slotCount = 16384
	var ends []int // slots after which another node follows
	for slot := range slotCount - 1 {
		if first[slot] != first[slot+1] {
			ends = append(ends, slot)
		}
	}
	if want := []int{slotCount/3 - 1, 2*slotCount/3 - 1}; !slices.Equal(ends, want) {
		t.Errorf("other nodes follow after slots %d; want %d", ends, want)
	}
	learn := func() *Nodes {
		t.Helper()
		answer := must.Get(cluster.Nodes[0].Do(soon(t), "CLUSTER", "SLOTS"))(t)
		ranges := must.Get(answer.ToArray())(t)
		must.Do(t, c.nodes.learn(ranges))
		return c.Nodes()
	}
	if learn() != first {
		t.Error("the nodes are another pointer though no slot has another node")
	}
	must.Do(t, cluster.MigrateSlot(soon(t), 0, cluster.Nodes[2]))
	want := *first
	want[0] = first[slotCount-1]
	if got := learn(); *got != want {
		t.Errorf("slot 0 has node %d after its migration, and slot 1 has node %d; want %d and %d", got[0], got[1], want[0], want[1])
	}
}

// A hostile Redis must not cost Weir a worker of each queue for each slot, nor time for slots that
// it repeats.
func TestMoreNodesOrSlotsThanAClusterHasAreRefused(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	for _, test := range []struct {
		name, ranges string // a loop in Lua that appends to t
		refused      bool
	}{
		{"1000 primaries", "for i = 0, 999 do t[#t+1] = {i, i, {'host', 1, 'id' .. i}} end", false},
		{"1001 primaries", "for i = 0, 1000 do t[#t+1] = {i, i, {'host', 1, 'id' .. i}} end", true},
		{"all slots twice", "for i = 0, 1 do t[#t+1] = {0, 16383, {'host', 1, 'id' .. i}} end", true},
		{"a range that ends before it begins", "t[1] = {100, 0, {'host', 1, 'id'}}", true},
	} {
		answer := must.Get(r.Do(soon(t), "EVAL", "local t = {} "+test.ranges+" return t", "0"))(t)
		ranges := must.Get(answer.ToArray())(t)
		var c Conn
		if err := c.nodes.learn(ranges); (err != nil) != test.refused || (c.Nodes() == nil) != test.refused {
			t.Errorf("%s: %v; want refused: %v", test.name, err, test.refused)
		}
	}
}

func TestNumbersOfNodesStaySmallAndTheSame(t *testing.T) {
	for _, test := range []struct {
		before, now []string
		want        []string
	}{
		{nil, []string{"b", "a"}, []string{"a", "b"}},
		{[]string{"b", "a"}, []string{"a", "b", "c"}, []string{"b", "a", "c"}},
		{[]string{"a", "b", "c"}, []string{"a", "d", "c"}, []string{"a", "d", "c"}},
		{[]string{"a", "b", "c"}, []string{"c"}, []string{"", "", "c"}},
		{[]string{"", "", "c"}, []string{"c", "x", "y", "z"}, []string{"x", "y", "c", "z"}},
	} {
		if got := number(test.before, test.now); !slices.Equal(got, test.want) {
			t.Errorf("from %q, with %q: %q; want %q", test.before, test.now, got, test.want)
		}
	}
}

// alone is a client of a cluster that has no node.
type alone struct{ rueidis.Client }

func (alone) Nodes() map[string]rueidis.Client { return nil }

// rueidis dials the names of a cluster anew when all nodes have left. Commands that fail meanwhile
// must not keep a name from the next dial.
func TestANameThatFailsAgainIsDialedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConn(Target{topology: topologyCluster, network: "unix"}, slog.New(slog.DiscardHandler))
		s := &session{conn: c, client: alone{}, endpoints: map[string]*endpoint{}, inUse: true}
		s.ctx, s.stop = context.WithCancel(t.Context())
		defer s.running.Wait()
		defer s.stop()
		address := t.TempDir() + "/nobody"
		s.endpointLocked(address).err = errors.New("the dial failed")
		for range 10 {
			if _, _, err := s.tryFetch(address, true, true); err == nil {
				t.Fatal("the name is dialed at each command")
			}
			time.Sleep(minBackoff / 20)
		}
		time.Sleep(time.Second)
		if n := s.making.Load(); n != 0 {
			t.Errorf("%d reconnects are under way, want 0", n)
		}
		if _, dial, err := s.tryFetch(address, true, true); err != nil || dial == nil {
			t.Errorf("after a second: %v, want a dial", err)
		}
	})
}
