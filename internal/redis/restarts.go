package redis

import (
	"context"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// met is the servers as Conn last met them.
type met struct {
	restarts atomic.Uint64
	evicted  atomic.Uint64 // keys, by all nodes that were met, since their starts

	mu    sync.Mutex // guards nodes
	nodes map[string]node
}

// node is one server. Without a cluster all servers are one: another one has taken its place.
type node struct {
	run     string // changes with each start
	policy  string // of evictions; "" while none can happen
	evicted uint64 // keys since the start
}

const memoryInterval = time.Minute // between two looks for evictions

// Restarts returns how often a server has come back as another one: after a start, or as a replica
// that has taken over. Such a server may have lost data. Restarts changes a moment before Client
// returns a client of the server. Restarts takes no lock.
func (c *Conn) Restarts() uint64 { return c.met.restarts.Load() }

// EvictedKeys returns how many keys the servers have evicted since their starts, as far as Conn has
// asked: once a minute. The number never goes back, also if a server starts anew or leaves.
func (c *Conn) EvictedKeys() uint64 { return c.met.evicted.Load() }

func (c *Conn) meet(address string, info map[string]string) {
	at := address
	if !c.Cluster() {
		at = ""
	}
	now := node{run: info["run_id"]}
	if most := info["maxmemory"]; most != "" && most != "0" && info["maxmemory_policy"] != "noeviction" {
		now.policy = info["maxmemory_policy"]
	}
	now.evicted, _ = strconv.ParseUint(info["evicted_keys"], 10, 64) // 0 if the server does not say
	c.met.mu.Lock()
	was, known := c.met.nodes[at]
	if c.met.nodes == nil {
		c.met.nodes = make(map[string]node)
	}
	c.met.nodes[at] = now
	c.met.mu.Unlock()
	if known && was.run != now.run {
		c.met.restarts.Add(1)
		was.evicted = 0
	}
	if now.evicted < was.evicted { // somebody has reset the server's statistics
		was.evicted = 0
	}
	c.met.evicted.Add(now.evicted - was.evicted)
	if now.policy != "" && now.policy != was.policy {
		c.logger.LogAttrs(c.ctx, slog.LevelWarn, "redis may evict counts when it is full, and limits then admit too much",
			slog.String("node", address), slog.String("maxmemory_policy", now.policy), slog.String("want", "noeviction"))
	}
	if now.evicted > was.evicted {
		c.logger.LogAttrs(c.ctx, slog.LevelWarn, "redis has evicted keys, which may be counts",
			slog.String("node", address), slog.Uint64("keys", now.evicted-was.evicted))
	}
}

// forget forgets the nodes that have left a cluster.
func (c *Conn) forget(remain map[string]rueidis.Client) {
	if !c.Cluster() {
		return
	}
	c.met.mu.Lock()
	defer c.met.mu.Unlock()
	maps.DeleteFunc(c.met.nodes, func(at string, _ node) bool {
		_, remains := remain[at]
		return !remains
	})
}

// watchMemory looks for evictions until the session ends.
func (s *session) watchMemory() {
	s.each(memoryInterval, func() {
		nodes := s.client.Nodes()
		s.conn.forget(nodes)
		for address, node := range nodes {
			s.running.Go(func() { s.lookAtMemory(node, address) })
		}
	})
}

func (s *session) lookAtMemory(node rueidis.Client, address string) {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	if text, err := node.Do(ctx, node.B().Info().Build()).ToString(); err == nil {
		s.conn.meet(address, fieldsOf(text))
	}
}
