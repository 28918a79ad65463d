package redisstore

import (
	"errors"
	"log/slog"
	"time"
)

// mending is a node that had trouble.
type mending struct {
	again bool      // there was more since; guarded by link.mu
	since time.Time // it is known, and logged, to be out of reach; zero: it is not
}

// mend looks after a node that had trouble until it answers again: it opens a connection, so that commands find one, asks what
// the server is, which may be another than before, and logs when it is out of reach and when it is back. It does not wait for
// that. While the link is not used it does nothing.
func (c *connection) mend(l *link, address string) {
	if !l.settled.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mending == nil {
		return
	}
	if m := l.mending[address]; m != nil {
		m.again = true
		return
	}
	m := &mending{}
	l.mending[address] = m
	l.menders.Go(func() { c.mendUntil(l, address, m) })
}

// mendUntil is the work of mend.
func (c *connection) mendUntil(l *link, address string, m *mending) {
	for failures := 0; l.open.Err() == nil; failures++ {
		l.mu.Lock()
		m.again = false
		l.mu.Unlock()
		node, known := l.client.Nodes()[address]
		if !known {
			c.left(l, address, m)
		}
		var err error
		switch {
		case known:
			_, err = c.examine(l, node, address)
		case l.dialer.wanted(address):
			err = l.dialer.prepare(l.open, address) // a Sentinel, or the name of a cluster, or a node that is about to be known
		}
		if l.open.Err() != nil {
			return
		}
		if errors.Is(err, ErrVersion) || errors.Is(err, ErrTopology) {
			l.end(err, false)
			return
		}
		if err == nil {
			if c.mended(l, address, m) {
				return
			}
			failures = -1
		}
		if err != nil && m.since.IsZero() && known {
			m.since = time.Now()
			c.logger.LogAttrs(c.ctx, c.nodeLevel(slog.LevelWarn), "redis is not reachable", slog.String("node", address), slog.String("error", err.Error()))
		}
		if known && err != nil && c.target.topology == topologySentinel && time.Since(m.since) > allFailing {
			// rueidis asks Sentinels for another primary in more and more goroutines until there is one.
			l.end(unavailable(err), true)
			return
		}
		pause(l.open, backoff(max(failures, 0)))
	}
}

// nodeLevel is the level at which is said what becomes of a node: of a cluster, which goes on without it, that level, else one
// for those who look closer, as for them that Redis is away is said anyway.
func (c *connection) nodeLevel(l slog.Level) slog.Level {
	if c.cluster() {
		return l
	}
	return slog.LevelDebug
}

// mended ends the mending, unless there was more trouble since it was examined.
func (c *connection) mended(l *link, address string, m *mending) bool {
	if !m.since.IsZero() {
		c.logger.LogAttrs(c.ctx, c.nodeLevel(slog.LevelInfo), "redis is reachable again", slog.String("node", address),
			slog.Duration("after", time.Since(m.since)))
		m.since = time.Time{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.again {
		return false
	}
	delete(l.mending, address)
	return true
}

// left notes that an address is no node's any more. Behind Sentinels it was the primary's, and the one that took its place is
// asked what it is.
func (c *connection) left(l *link, address string, m *mending) {
	if m.since.IsZero() {
		return
	}
	c.logger.LogAttrs(c.ctx, slog.LevelInfo, "redis goes on without a node that was not reachable", slog.String("node", address),
		slog.Duration("after", time.Since(m.since)))
	m.since = time.Time{}
	if c.target.topology == topologySentinel {
		for primary := range l.client.Nodes() {
			c.mend(l, primary)
		}
	}
}
