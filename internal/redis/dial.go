package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/weirproxy/weir/internal/rawio"
)

const (
	timeout       = time.Second            // of a dial, of TLS, of a login and of an inquiry
	maxWait       = 100 * time.Millisecond // of a fetch: commands with less time may wait for the same fetch
	fetchInterval = 500 * time.Millisecond // between connections that rueidis fetches to one address
	fetchBurst    = 3                      // connections that rueidis may fetch at once
	maxReady      = 10 * time.Second       // age of a connection that rueidis does not fetch
	forgetAfter   = 30 * time.Second       // of an address that does not answer, and that rueidis no longer asks for
)

// endpoint is the state of one address. session.mu guards all fields.
type endpoint struct {
	dialing *dialing // nil when no dial runs
	ready   *checked // dialed, and not yet fetched; may be nil
	expiry  *time.Timer
	fetched map[*fetched]struct{} // and still open
	err     error                 // of the last dial
	asked   time.Time             // when rueidis last fetched, or tried to
	next    time.Time             // when rueidis may fetch; a token bucket of fetchBurst

	reconnecting bool // a reconnectLoop runs
	failedAgain  bool // since the loop's last inquiry began
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
func (s *session) fetch(ctx context.Context, address string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
	s.mu.Lock()
	inUse := s.inUse
	s.endpointLocked(address).asked = time.Now()
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
			conn.sentinel = dialer.LocalAddr == toSentinel{}
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
	case e.ready != nil:
		e.next = e.next.Add(fetchInterval)
		c := &fetched{checked: e.ready, session: s}
		e.expiry.Stop()
		e.ready = nil
		e.fetched[c] = struct{}{}
		return c, nil, nil
	case e.err != nil && failed:
		s.reconnectLocked(address)
		return nil, nil, fmt.Errorf("%w: %w", ErrUnavailable, e.err)
	}
	return nil, s.dialLocked(address, e), nil
}

// mayFetchLocked reports whether rueidis may fetch now. While Sentinels name a dead primary,
// rueidis fetches in a loop.
func (e *endpoint) mayFetchLocked() bool {
	now := time.Now()
	if first := now.Add(-fetchBurst * fetchInterval); e.next.Before(first) {
		e.next = first
	}
	return !e.next.After(now)
}

// prepare returns nil when there is a connection to the address. Otherwise prepare dials one for
// fetch.
func (s *session) prepare(address string) error {
	s.mu.Lock()
	e := s.endpointLocked(address)
	if s.closed || e.ready != nil || len(e.fetched) > 0 {
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

// dialLocked returns the dial in progress, or begins one.
func (s *session) dialLocked(address string, e *endpoint) *dialing {
	if e.dialing != nil {
		return e.dialing
	}
	d := &dialing{done: make(chan struct{})}
	e.dialing = d
	s.running.Go(func() {
		conn, err := s.dial(address)
		s.mu.Lock()
		defer s.mu.Unlock()
		e.dialing, e.err, d.err = nil, err, err
		close(d.done)
		switch {
		case err != nil:
			s.reconnectLocked(address)
		case s.closed:
			conn.Close()
		default:
			e.ready = conn
			e.expiry = time.AfterFunc(maxReady, func() { s.expire(e, conn) })
		}
	})
	return d
}

// expire closes a connection that rueidis did not fetch.
func (s *session) expire(e *endpoint, conn *checked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.ready == conn {
		e.ready = nil
		conn.Close()
	}
}

// wanted reports whether rueidis lacks a connection to the address. wanted forgets an address that
// rueidis no longer asks for.
func (s *session) wanted(address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.endpoints[address]
	if e == nil || e.err == nil {
		return false
	}
	if e.dialing == nil && time.Since(e.asked) > forgetAfter {
		delete(s.endpoints, address)
		return false
	}
	return true
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

// disconnect closes all connections and refuses new ones.
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
			e.expiry.Stop()
			e.ready = nil
		}
	}
	s.mu.Unlock()
	for _, conn := range open { // unlocked: TLS may wait for a full buffer
		conn.Close()
	}
}

// dial returns a connection on which the server has answered a PING: the kernel accepts connections
// for a stopped server, too.
func (s *session) dial(address string) (_ *checked, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, 2*timeout)
	defer cancel()
	target := &s.conn.target
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialContext(ctx, target.network, address)
	if err != nil {
		return nil, err
	}
	conn = rawio.Wrap(conn)
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	if target.security != nil {
		config, err := target.security.config(address)
		if err != nil {
			return nil, err
		}
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("TLS with %s: %w", address, err)
		}
		conn = secure
	}
	opened := &checked{Conn: conn, address: address, invalid: s.conn.invalidReply}
	defer context.AfterFunc(ctx, func() { opened.Close() })()
	if err := opened.ping(); err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return opened, nil
}
