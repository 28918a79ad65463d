// Package redis connects to Redis or Valkey and keeps the connection: a rueidis client. Topologies:
// one server, Sentinel, cluster; with or without TLS.
//
// rueidis dials in the time of a command, which may be 10 ms, and hands commands to a stopped
// server. So this package is rueidis's dial function. A session dials each address in the
// background, with a timeout of its own, and pings before rueidis gets the connection. The session
// reconnects with backoff, and meanwhile fails commands at once. docs/decisions/0024 has the
// reasons, and says when endpoint.go can go.
//
// rueidis also trusts the server: an invalid reply makes rueidis panic. Each connection checks all
// replies, see package resp and docs/decisions/0031.
package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/internal/loglimit"
)

// ErrUnavailable says that there is no connection to Redis. The error that wraps ErrUnavailable
// says why.
var ErrUnavailable = errors.New("redis is not reachable")

var (
	errClosed     = fmt.Errorf("%w: closed", ErrUnavailable)
	errConnecting = fmt.Errorf("%w: still connecting", ErrUnavailable)
)

const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 400 * time.Millisecond // so that Redis is used again half a second after it is back
	unfitWait  = 5 * time.Second        // after an error that only an operator can end

	remakeAfter   = 10 * time.Second       // of nothing but errors: then Conn makes a new client
	checkInterval = 500 * time.Millisecond // between checks of all nodes after failed commands
	askInterval   = 5 * time.Second        // between questions to Sentinels while nothing fails
	// unsettled is the time after a failure, or at a new primary, for which Sentinels that do not
	// agree may have several primaries. A Sentinel demotes a primary that the others do not name
	// after 8 s. Until then Conn asks each checkInterval.
	unsettled = 10 * time.Second
)

// Conn keeps a rueidis client for a target. Conn makes the client once servers answer that are new
// enough, and makes a new client after nothing but errors. All methods are safe for concurrent use.
type Conn struct {
	target    Target
	logger    *slog.Logger
	state     atomic.Pointer[state]
	login     credentials
	sentinels *sentinels // nil without Sentinels
	invalid   invalidReplies
	nodes     nodes
	met       met

	failing  atomic.Int64  // the first of the errors since the last success, in Unix nanoseconds; 0: no error
	failures chan struct{} // wakes serve after a failed command or connection; holds one

	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	tried   chan struct{} // closed after the first attempt
	outcome error         // of the first attempt; set before tried is closed
	warned  atomic.Bool   // of a server that refuses INFO

	connected, outages loglimit.Limiter // of lines that a server can cause
}

// state is a client, or the reason why there is no client.
type state struct {
	client  rueidis.Client
	session *session // of the client
	err     error
}

// Dial returns a Conn that begins to connect, and does not wait. target must come from
// Options.Parse.
func Dial(target Target, logger *slog.Logger) *Conn {
	c := newConn(target, logger)
	c.running.Go(c.run)
	return c
}

// newConn returns a Conn that does nothing yet.
func newConn(target Target, logger *slog.Logger) *Conn {
	c := &Conn{target: target, logger: logger, failures: make(chan struct{}, 1), tried: make(chan struct{})}
	c.login = credentials{of: "the servers", logger: logger, current: target.login}
	c.ctx, c.stop = context.WithCancel(context.Background())
	if target.topology == topologySentinel {
		c.sentinels = newSentinels(c)
	}
	c.state.Store(&state{err: errConnecting})
	return c
}

// Client returns the client, or an error that wraps ErrUnavailable. Client takes no lock. While a
// node is unreachable, commands to the node fail at once. A server that was unreachable serves no
// command before Restarts has counted whether it has restarted; a node of a cluster may.
func (c *Conn) Client() (rueidis.Client, error) {
	s := c.state.Load()
	if s.session != nil {
		if down := s.session.down.Load(); down != nil {
			return nil, unavailable(*down)
		}
	}
	return s.client, s.err
}

// Steady reports whether commands do not wait for a connection that is being made. Such a wait may
// take longer than the context of a command lasts, as rueidis has all commands wait for one dial
// and login. Steady takes no lock.
func (c *Conn) Steady() bool {
	s := c.state.Load()
	return s.session != nil && s.session.making.Load() == 0
}

// Cluster reports whether the target is a cluster.
func (c *Conn) Cluster() bool { return c.target.topology == topologyCluster }

// Await waits for the end of the first attempt to connect, and returns its error.
func (c *Conn) Await(ctx context.Context) error {
	select {
	case <-c.tried:
		return c.outcome
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Report takes the result of a command: nil after a success. Report returns err, wrapped in
// ErrUnavailable when the command lost its connection. Errors of Redis and of the command's context
// stay as they are. An error of Redis counts as a success, unless the error is about the role or
// the state of the server. Report never waits.
func (c *Conn) Report(err error) error {
	code := errorCode(err)
	switch code {
	case "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN", "NOAUTH", "WRONGPASS":
	default:
		if err != nil && code == "" {
			break // not an error of Redis
		}
		if c.failing.Load() != 0 {
			c.failing.Store(0)
		}
		return err
	}
	c.failing.CompareAndSwap(0, time.Now().UnixNano())
	c.wake()
	if code != "" || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	return unavailable(err)
}

func (c *Conn) wake() {
	select {
	case c.failures <- struct{}{}:
	default:
	}
}

// Close ends all goroutines and closes all connections.
func (c *Conn) Close() {
	c.stop()
	c.running.Wait()
	c.state.Store(&state{err: errClosed})
}

// A server may accept connections and close them, and a node of a cluster may come and go. Both
// cause so many lines at once, and then one in that time.
const (
	linesAtOnce = 20
	lineEvery   = 10 * time.Second
)

// run connects, and reconnects until Close. The store logs an outage of Redis once at WARN: here
// lines are DEBUG, one for each kind of error.
func (c *Conn) run() {
	logged := map[string]bool{} // kinds of errors since the last success
	for attempt := 0; c.ctx.Err() == nil; attempt++ {
		s, err := c.connect(nil)
		if err == nil {
			attempt = 0
			clear(logged)
			if missed, due := c.connected.DueOf(linesAtOnce, lineEvery); due {
				c.logger.LogAttrs(c.ctx, slog.LevelInfo, "redis connected", slog.Any("target", c.target),
					slog.String("topology", string(c.target.topology)), slog.String("version", s.version.String()), slog.Uint64("not_logged", missed))
			}
			err = c.serve(s)
		}
		c.state.Store(&state{err: err})
		if kind := kindOf(err); !logged[kind] && c.ctx.Err() == nil {
			logged[kind] = true
			c.logger.LogAttrs(c.ctx, slog.LevelDebug, "redis is not reachable", slog.Any("target", c.target), slog.String("error", err.Error()))
		}
		c.endFirst(err)
		wait := backoff(attempt)
		if isUnfit(err) {
			wait = unfitWait
		}
		pause(c.ctx, wait)
	}
	c.endFirst(c.ctx.Err())
	c.sentinels.close()
}

// endFirst sets the outcome of the first attempt. Later calls do nothing.
func (c *Conn) endFirst(err error) {
	select {
	case <-c.tried:
	default:
		c.outcome = err
		close(c.tried)
	}
}

// connect makes a session. Behind Sentinels its server is the primary that they name. If kept has
// that primary, connect returns kept, which may be nil. After an error another Sentinel is the next
// to name a primary.
func (c *Conn) connect(kept *session) (*session, error) {
	if c.sentinels == nil {
		return c.newSession(c.target.addresses)
	}
	primary, err := c.sentinels.primary()
	if err != nil {
		return nil, unavailable(err)
	}
	if kept != nil && kept.first[0] == primary {
		return kept, nil
	}
	s, err := c.newSession([]string{primary})
	if err != nil {
		c.sentinels.pass()
	}
	return s, err
}

// serve has commands use the session, and its successors, until one of them cannot be used, or
// until Close.
func (c *Conn) serve(s *session) error {
	defer func() { s.close() }()
	s.use()
	c.endFirst(nil)
	ask := time.NewTicker(checkInterval)
	defer ask.Stop()
	unsure, checked := time.Now(), time.Time{}
	for {
		select {
		case <-c.ctx.Done():
			return errClosed
		case err := <-s.failed:
			return err
		case <-ask.C:
			if time.Since(checked) < askInterval && (c.sentinels == nil || time.Since(unsure) > unsettled) {
				continue
			}
		case <-c.failures:
			unsure = time.Now()
			if time.Since(checked) < checkInterval {
				continue
			}
		}
		checked = time.Now()
		since := c.failing.Load()
		broken := since != 0 && time.Since(time.Unix(0, since)) > remakeAfter
		switch {
		case broken:
			c.failing.Store(0)
		case since != 0:
			for address := range s.client.Nodes() {
				s.reconnect(address)
			}
		}
		if next := c.renew(s, broken); next != s {
			next.use()
			s.close()
			s, unsure = next, time.Now()
		}
	}
}

// renew returns a session in place of s: a new one if s is broken. Behind Sentinels it has the
// primary that they name now. Otherwise, and after an error, renew returns s.
func (c *Conn) renew(s *session, broken bool) *session {
	kept := s
	if broken {
		kept = nil
	} else if c.sentinels == nil {
		return s
	}
	next, err := c.connect(kept)
	switch {
	case err != nil:
		c.logger.LogAttrs(c.ctx, slog.LevelDebug, "redis could not be connected anew", slog.String("error", err.Error()))
		return s
	case broken:
		c.logger.LogAttrs(c.ctx, slog.LevelDebug, "redis connected anew, as commands kept failing")
	case next != s:
		c.logger.LogAttrs(c.ctx, slog.LevelDebug, "redis connected anew, as the Sentinels name another primary",
			slog.String("node", next.first[0]))
		s.logOutage(s.first[0], nil, true)
	}
	return next
}

// backoff returns the wait after a number of failures. The wait is random, so that a fleet does not
// dial at once.
func backoff(failures int) time.Duration {
	d := maxBackoff
	if failures < 2 {
		d = minBackoff << failures
	}
	return d/2 + rand.N(d/2)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func unavailable(err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// kindOf returns the kind of an error, without addresses, ports and times. Each kind is worth a log
// line.
func kindOf(err error) string {
	switch {
	case errors.Is(err, ErrVersion):
		return "version"
	case errors.Is(err, ErrTopology):
		return "topology"
	}
	if code := errorCode(err); code != "" {
		return code
	}
	for {
		switch e := err.(type) { //nolint:errorlint // the loop walks the chain
		case syscall.Errno:
			return e.Error()
		case interface{ Unwrap() []error }:
			all := e.Unwrap()
			err = all[len(all)-1]
		default:
			inner := errors.Unwrap(err)
			if inner == nil {
				return fmt.Sprintf("%T", err)
			}
			err = inner
		}
	}
}
