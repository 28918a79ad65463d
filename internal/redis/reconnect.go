package redis

import (
	"log/slog"
	"time"
)

// reconnect dials a node in the background until the node answers, so that commands find a
// connection. reconnect inquires of the node, which another server may have replaced, and logs the
// outage. Before use, reconnect does nothing.
func (s *session) reconnect(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reconnectLocked(address)
}

func (s *session) reconnectLocked(address string) {
	if !s.inUse || s.closed {
		return
	}
	e := s.endpointLocked(address)
	e.failedAgain = true
	if !e.reconnecting {
		e.reconnecting = true
		s.making.Add(1)
		s.running.Go(func() { s.reconnectLoop(address, e) })
	}
}

func (s *session) reconnectLoop(address string, e *endpoint) {
	var outage time.Time // the beginning of the logged outage; zero: no outage
	for failures := 0; s.ctx.Err() == nil; failures++ {
		s.mu.Lock()
		e.failedAgain = false
		s.mu.Unlock()
		node, known := s.client.Nodes()[address]
		if !known && !outage.IsZero() {
			s.logGone(address, outage)
			outage = time.Time{}
		}
		var err error
		switch {
		case known:
			_, err = s.inquire(node, address)
		case s.wanted(address): // a Sentinel, the name of a cluster, or a node that rueidis is about to know
			err = s.prepare(address)
		}
		switch {
		case s.ctx.Err() != nil:
			return
		case isUnfit(err):
			s.fail(err, false)
			return
		case err == nil:
			if !outage.IsZero() {
				s.conn.logger.LogAttrs(s.ctx, s.nodeLevel(slog.LevelInfo), "redis is reachable again", slog.String("node", address), slog.Duration("after", time.Since(outage)))
				outage = time.Time{}
			}
			if s.reconnected(e) {
				return
			}
			failures = -1
		case known:
			if outage.IsZero() {
				outage = time.Now()
				s.conn.logger.LogAttrs(s.ctx, s.nodeLevel(slog.LevelWarn), "redis is not reachable", slog.String("node", address), slog.String("error", err.Error()))
			}
			if s.conn.target.topology == topologySentinel && time.Since(outage) > remakeAfter {
				// While Sentinels name a dead primary, rueidis asks them in more and more goroutines.
				s.fail(unavailable(err), true)
				return
			}
		}
		pause(s.ctx, backoff(max(failures, 0)))
	}
}

// reconnected ends the loop of an endpoint, unless a connection failed during the last inquiry.
func (s *session) reconnected(e *endpoint) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.reconnecting = e.failedAgain; !e.reconnecting {
		s.making.Add(-1)
	}
	return !e.reconnecting
}

// logGone logs that an unreachable address is no longer a node's. Behind Sentinels another node
// became the primary, and logGone has the new primary inquired.
func (s *session) logGone(address string, outage time.Time) {
	s.conn.logger.LogAttrs(s.ctx, slog.LevelInfo, "redis goes on without an unreachable node", slog.String("node", address),
		slog.Duration("after", time.Since(outage)))
	if s.conn.target.topology == topologySentinel {
		for primary := range s.client.Nodes() {
			s.reconnect(primary)
		}
	}
}

// nodeLevel returns the level of a line about one node. A cluster goes on without the node: level
// l. Otherwise fallback logs the outage once at WARN, and the line is DEBUG.
func (s *session) nodeLevel(l slog.Level) slog.Level {
	if s.conn.Cluster() {
		return l
	}
	return slog.LevelDebug
}
