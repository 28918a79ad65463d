package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"time"
)

const (
	timeout       = time.Second            // of a dial, of TLS, of a login and of an inquiry
	maxWait       = 100 * time.Millisecond // of a fetch: commands with less time may wait for the same fetch
	fetchInterval = 500 * time.Millisecond // between connections that rueidis fetches to one address
	fetchBurst    = 3                      // connections that rueidis may fetch at once
	maxReady      = 10 * time.Second       // age of a connection that rueidis does not fetch
)

// endpoint is the state of one address. session.mu guards all fields.
type endpoint struct {
	dialing *dialing              // nil when no dial runs
	ready   *checked              // dialed, and not yet fetched; may be nil
	made    time.Time             // when ready was dialed
	fetched map[*fetched]struct{} // and still open
	err     error                 // of the last dial
	next    time.Time             // when rueidis may fetch; a token bucket of fetchBurst

	reconnecting bool      // a reconnectLoop runs
	failedAgain  bool      // since the loop's last inquiry began
	outage       time.Time // the beginning of the logged outage; zero: no outage
}

// dialing is a dial in progress, for which callers can wait.
type dialing struct {
	done chan struct{}
	err  error // set before done is closed
}

func (s *session) endpointLocked(address string) *endpoint {
	e := s.endpoints[address]
	if e == nil {
		e = &endpoint{fetched: map[*fetched]struct{}{}}
		s.endpoints[address] = e
	}
	return e
}

// fetch is rueidis's ClientOption.DialCtxFn. fetch returns the ready connection to an address, or
// waits for a dial. After a failed dial fetch returns the error at once, until a reconnect
// succeeds. A session that is not in use yet waits for ctx alone, and dials once more after an
// error.
func (s *session) fetch(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
	s.mu.Lock()
	inUse := s.inUse
	s.mu.Unlock()
	if inUse {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, maxWait)
		defer cancel()
	}
	for failed := inUse; ; {
		conn, d, err := s.tryFetch(address, inUse, failed)
		switch {
		case err != nil:
			return nil, err
		case conn != nil:
			return conn, nil
		}
		select {
		case <-d.done:
			failed = failed || d.err != nil
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: still connecting to %s: %w", ErrUnavailable, address, ctx.Err())
		}
	}
}

// tryFetch returns a connection, an error, or a dial to wait for. After failed the error of the
// last dial counts.
func (s *session) tryFetch(address string, inUse, failed bool) (*fetched, *dialing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.endpointLocked(address)
	switch {
	case s.closed:
		return nil, nil, errClosed
	case inUse && !e.mayFetchLocked():
		return nil, nil, fmt.Errorf("%w: connections to %s do not last", ErrUnavailable, address)
	case e.isReadyLocked():
		e.next = e.next.Add(fetchInterval)
		c := &fetched{checked: e.ready, session: s}
		e.ready = nil
		e.fetched[c] = struct{}{}
		return c, nil, nil
	case e.err != nil && failed:
		s.reconnectLocked(address)
		return nil, nil, fmt.Errorf("%w: %w", ErrUnavailable, e.err)
	}
	return nil, s.dialLocked(address, e), nil
}

// mayFetchLocked reports whether rueidis may fetch now. When each login fails, rueidis fetches for
// each command.
func (e *endpoint) mayFetchLocked() bool {
	now := time.Now()
	if first := now.Add(-fetchBurst * fetchInterval); e.next.Before(first) {
		e.next = first
	}
	return !e.next.After(now)
}

// isReadyLocked reports whether a connection is ready. isReadyLocked closes one that is too old.
func (e *endpoint) isReadyLocked() bool {
	if e.ready != nil && time.Since(e.made) > maxReady {
		_ = e.ready.Close() // nobody has used the connection
		e.ready = nil
	}
	return e.ready != nil
}

// prepare returns nil when there is a connection to the address. Otherwise prepare dials one for
// fetch.
func (s *session) prepare(address string) error {
	s.mu.Lock()
	e := s.endpointLocked(address)
	if s.closed || e.isReadyLocked() || len(e.fetched) > 0 {
		s.mu.Unlock()
		return nil
	}
	d := s.dialLocked(address, e)
	s.mu.Unlock()
	select {
	case <-d.done:
		return d.err
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *session) dialLocked(address string, e *endpoint) *dialing {
	if e.dialing != nil {
		return e.dialing
	}
	d := &dialing{done: make(chan struct{})}
	e.dialing = d
	s.running.Go(func() {
		conn, err := s.conn.dial(s.ctx, address)
		s.mu.Lock()
		defer s.mu.Unlock()
		e.dialing, e.err, d.err = nil, err, err
		close(d.done)
		switch {
		case err != nil:
			if s.inUse && !s.conn.Cluster() {
				s.down.Store(&err)
			}
			s.reconnectLocked(address)
		case s.closed:
			conn.Close()
		default:
			e.ready, e.made = conn, time.Now()
		}
	})
	return d
}

// drop closes the connections to an address. rueidis then fails all commands that wait on them.
func (s *session) drop(address string) {
	s.mu.Lock()
	var open []*fetched
	if e := s.endpoints[address]; e != nil {
		open = slices.Collect(maps.Keys(e.fetched))
	}
	s.mu.Unlock()
	for _, c := range open {
		_ = c.Close() // the connection is given up
	}
}

func (s *session) disconnect() {
	s.mu.Lock()
	s.closed = true
	var open []net.Conn
	for _, e := range s.endpoints {
		for c := range e.fetched {
			open = append(open, c.checked)
		}
		if e.ready != nil {
			open = append(open, e.ready)
			e.ready = nil
		}
	}
	s.mu.Unlock()
	for _, conn := range open { // unlocked: TLS may wait for a full buffer
		conn.Close()
	}
}

// reconnect dials a node in the background until the node answers, so that commands find a
// connection. reconnect inquires of the node, which another server may have replaced, or which may
// be the primary no longer, and logs the outage. Before use, reconnect does nothing.
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
	for failures := 0; s.ctx.Err() == nil; failures++ {
		s.mu.Lock()
		e.failedAgain = false
		s.mu.Unlock()
		node, known := s.client.Nodes()[address]
		if !known { // the name of a cluster, or a node that has left: rueidis dials it if need be
			s.logOutage(address, nil, true)
			pause(s.ctx, backoff(failures))
			s.mu.Lock()
			s.endReconnectLocked(e) // also if a dial has failed again
			s.mu.Unlock()
			return
		}
		_, err := s.inquire(node, address)
		switch {
		case s.ctx.Err() != nil:
			return
		case isUnfit(err):
			s.fail(err)
			return
		case err == nil:
			err = s.confirm()
		}
		s.logOutage(address, err, false)
		if err == nil {
			if s.reconnected(e) {
				return
			}
			failures = -1
		}
		pause(s.ctx, backoff(max(failures, 0)))
	}
}

// reconnected ends the loop of an endpoint, unless a connection failed during the last inquiry.
func (s *session) reconnected(e *endpoint) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.failedAgain {
		return false
	}
	s.endReconnectLocked(e)
	return true
}

// endReconnectLocked ends the loop of an endpoint. Then rueidis may dial.
func (s *session) endReconnectLocked(e *endpoint) {
	e.reconnecting = false
	s.making.Add(-1)
	e.err = nil
	s.down.Store(nil)
}

// logOutage logs the beginning of an outage of a node, and its end: the node answers, or is gone. A
// line about one node of a cluster is for operators. Otherwise the store logs the outage once at
// WARN, and the lines are DEBUG.
func (s *session) logOutage(address string, err error, gone bool) {
	s.mu.Lock()
	e := s.endpointLocked(address)
	begun := e.outage
	switch {
	case err == nil:
		e.outage = time.Time{}
	case begun.IsZero():
		e.outage = time.Now()
	}
	s.mu.Unlock()
	warn, info := slog.LevelDebug, slog.LevelDebug
	if s.conn.Cluster() {
		warn, info = slog.LevelWarn, slog.LevelInfo
	}
	if changes := (err != nil) == begun.IsZero(); !changes {
		return // as before
	}
	if _, due := s.conn.outages.DueOf(linesAtOnce, lineEvery); !due {
		return
	}
	log, node, after := s.conn.logger, slog.String("node", address), slog.Duration("after", time.Since(begun))
	switch {
	case err != nil:
		log.LogAttrs(s.ctx, warn, "redis is not reachable", node, slog.String("error", err.Error()))
	case gone:
		log.LogAttrs(s.ctx, slog.LevelInfo, "redis goes on without an unreachable node", node, after)
	default:
		log.LogAttrs(s.ctx, info, "redis is reachable again", node, after)
	}
}
