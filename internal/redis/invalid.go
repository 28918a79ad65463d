package redis

import (
	"log/slog"
	"sync"
	"time"
)

// invalidInterval is the time between two log lines about one node.
const invalidInterval = time.Minute

// invalidReplies counts and logs the connections that ended because of an invalid reply.
type invalidReplies struct {
	mu     sync.Mutex // guards the fields below
	total  uint64
	logged map[string]time.Time // the last log line of each node
}

// InvalidReplies returns how many connections ended because of a reply that cannot be one. Each may
// have answered several commands.
func (c *Conn) InvalidReplies() uint64 {
	c.invalid.mu.Lock()
	defer c.invalid.mu.Unlock()
	return c.invalid.total
}

// invalidReply counts an invalid reply of a node, and logs it unless the last line about the node
// is younger than invalidInterval.
func (c *Conn) invalidReply(node string, err error) {
	if !c.invalid.add(node, time.Now()) {
		return
	}
	c.logger.LogAttrs(c.ctx, slog.LevelWarn, "redis sent an invalid reply, so the connection ends", slog.String("node", node), slog.String("error", err.Error()))
}

// add counts, and reports whether to log.
func (i *invalidReplies) add(node string, now time.Time) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.total++
	for other, last := range i.logged { // forgets nodes that are gone
		if now.Sub(last) >= invalidInterval {
			delete(i.logged, other)
		}
	}
	if _, recent := i.logged[node]; recent {
		return false
	}
	if i.logged == nil {
		i.logged = map[string]time.Time{}
	}
	i.logged[node] = now
	return true
}
