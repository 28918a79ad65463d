package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/rueidis"
)

// ErrUnavailable says that there is no connection to Redis; what wraps it says why.
var ErrUnavailable = errors.New("redis is not reachable")

var (
	errClosed     = errors.New("closed")
	errConnecting = fmt.Errorf("%w: still connecting", ErrUnavailable)
)

// Attempts to connect come minBackoff after a failure, then ever later, up to maxBackoff, each up to half of that earlier, so
// that a fleet does not come as one.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second

	allFailing = 10 * time.Second       // after so long of nothing but errors the client is made anew
	checkEvery = 500 * time.Millisecond // how often, at most, errors of commands have all nodes looked at
)

// connection keeps a rueidis client for a target: it makes one as soon as the servers can be reached and are new enough, and
// makes it anew when it has long had nothing but errors. All methods are safe for concurrent use.
//
// rueidis reconnects by itself when a command wants a connection that is gone. What it does not do is done here: reconnecting
// without commands, and without making them wait (dialer, mend); closing connections whose server does not answer (mend);
// refusing servers that are too old.
type connection struct {
	target Target
	logger *slog.Logger
	state  atomic.Pointer[connectionState]

	failing atomic.Int64  // when the errors began after which nothing succeeded, in Unix nanoseconds; 0: there are none
	nudges  chan struct{} // of failed; holds one

	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	ended   chan struct{} // closed when the first attempt to connect has ended
	outcome error         // of that; set when ended is closed
	warned  atomic.Bool   // that INFO is refused
}

// connectionState is a client, or why there is none.
type connectionState struct {
	client rueidis.Client
	err    error
}

// dial returns a connection that begins to connect. It never waits. Target must come from ParseTarget.
func dial(target Target, logger *slog.Logger) *connection {
	c := &connection{target: target, logger: logger, nudges: make(chan struct{}, 1), ended: make(chan struct{})}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.state.Store(&connectionState{err: errConnecting})
	c.running.Go(c.run)
	return c
}

// client returns the client, or an error that wraps ErrUnavailable and says why there is none. It takes no lock. A client that
// is returned may have lost its connection: its commands then fail, at once, until there is one again.
func (c *connection) client() (rueidis.Client, error) {
	s := c.state.Load()
	return s.client, s.err
}

// cluster reports whether the target is a cluster.
func (c *connection) cluster() bool { return c.target.topology == topologyCluster }

// first waits until the first attempt to connect has ended, and returns why it failed, if it did.
func (c *connection) first(ctx context.Context) error {
	select {
	case <-c.ended:
		return c.outcome
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failed says that a command has failed, recovered that one has succeeded. Errors that say nothing about the connection or
// the role of a server count as success: it has answered. Neither waits.
func (c *connection) failed(err error) {
	if code := errorCode(err); code != "" {
		switch code {
		case "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN", "NOAUTH":
		default:
			c.recovered()
			return
		}
	}
	c.failing.CompareAndSwap(0, time.Now().UnixNano())
	select {
	case c.nudges <- struct{}{}:
	default:
	}
}

func (c *connection) recovered() {
	if c.failing.Load() != 0 {
		c.failing.Store(0)
	}
}

// close ends all that dial started and closes the connections.
func (c *connection) close() {
	c.stop()
	c.running.Wait()
	c.state.Store(&connectionState{err: fmt.Errorf("%w: %w", ErrUnavailable, errClosed)})
}

// run connects and stays connected. That Redis is away as a whole is said once by who goes on without it, with the reason, so
// here it is for those who look closer.
func (c *connection) run() {
	said := map[string]bool{} // kinds of failures that were logged since it was connected
	for attempt := 0; c.ctx.Err() == nil; attempt++ {
		l, err := c.connect()
		if err == nil {
			attempt = 0
			clear(said)
			c.logger.LogAttrs(c.ctx, slog.LevelInfo, "redis connected", slog.Any("target", c.target),
				slog.String("topology", string(c.target.topology)), slog.String("version", l.version.String()))
			end := c.serve(l)
			if err = end.err; end.logged {
				said[kindOf(err)] = true
			}
			if c.ctx.Err() != nil {
				return
			}
		}
		c.state.Store(&connectionState{err: err})
		if kind := kindOf(err); !said[kind] && c.ctx.Err() == nil {
			said[kind] = true
			c.logger.LogAttrs(c.ctx, slog.LevelDebug, "redis is not reachable", slog.Any("target", c.target), slog.String("error", err.Error()))
		}
		c.endFirst(err)
		wait := backoff(attempt)
		if errors.Is(err, ErrVersion) || errors.Is(err, ErrTopology) {
			wait = maxBackoff // however often it is asked, somebody must act
		}
		pause(c.ctx, wait)
	}
	c.endFirst(c.ctx.Err())
}

// kindOf tells reasons apart that are worth a log line each: without addresses, ports and times.
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
		var inner error
		switch e := err.(type) { //nolint:errorlint // it walks the chain
		case interface{ Unwrap() error }:
			inner = e.Unwrap()
		case interface{ Unwrap() []error }:
			if all := e.Unwrap(); len(all) > 0 {
				inner = all[len(all)-1]
			}
		case syscall.Errno:
			return e.Error()
		}
		if inner == nil {
			return fmt.Sprintf("%T", err)
		}
		err = inner
	}
}

// errorCode is the first word of what Redis said, as READONLY; "" for an error that is not Redis's.
func errorCode(err error) string {
	var said *rueidis.RedisError
	if !errors.As(err, &said) || said.IsNil() {
		return ""
	}
	code, _, _ := strings.Cut(said.Error(), " ")
	return code
}

// endFirst says how the first attempt ended. Later calls do nothing.
func (c *connection) endFirst(err error) {
	select {
	case <-c.ended:
	default:
		c.outcome = err
		close(c.ended)
	}
}

// serve lets the link be used until it must not be any more, or the connection is closed.
func (c *connection) serve(l *link) ended {
	defer func() { l.close() }()
	c.use(l)
	c.endFirst(nil)
	var looked time.Time
	for {
		select {
		case <-c.ctx.Done():
			return ended{c.ctx.Err(), true}
		case why := <-l.ended:
			c.state.Store(&connectionState{err: why.err})
			return why
		case <-c.nudges:
		}
		since := c.failing.Load()
		switch {
		case since == 0:
		case time.Since(time.Unix(0, since)) > allFailing:
			c.failing.Store(0)
			if fresh, err := c.connect(); err != nil {
				c.logger.LogAttrs(c.ctx, slog.LevelDebug, "redis could not be connected anew", slog.String("error", err.Error()))
			} else {
				c.logger.LogAttrs(c.ctx, slog.LevelDebug, "redis connected anew, as commands kept failing")
				c.use(fresh)
				l.close()
				l = fresh
			}
		case time.Since(looked) > checkEvery:
			looked = time.Now()
			for address := range l.client.Nodes() {
				c.mend(l, address)
			}
		}
	}
}

// unavailable makes err wrap ErrUnavailable.
func unavailable(err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// lost makes what a command failed with wrap ErrUnavailable when its connection was lost. What Redis said, and that its
// context was done, stay as they are.
func lost(err error) error {
	if errorCode(err) != "" || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	return unavailable(err)
}

// backoff is how long to wait after a number of failures.
func backoff(failures int) time.Duration {
	d := maxBackoff
	if failures < 6 {
		d = min(d, minBackoff<<failures)
	}
	return d/2 + rand.N(d/2)
}

// pause waits, or less when ctx is done.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
