package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	patience    = time.Second            // for a connection, and for an answer on it, before it is given up
	joinTime    = 100 * time.Millisecond // longest wait of rueidis's own for a connection, as commands with less time may wait with it
	spacing     = 500 * time.Millisecond // between connections to one address, but for a first few
	spaced      = 3                      // those few
	unfetched   = 10 * time.Second       // how long a connection is kept that nobody has fetched
	forgottenIn = 30 * time.Second       // after this an address that does not answer and nobody has asked for is forgotten
)

// dialer opens the connections of one rueidis client. Left alone, rueidis dials with the context of whichever command comes
// first and lets all others wait for that: with a Redis some milliseconds away behind TLS, commands that have 10 ms would
// begin connections for ever and finish none; and one that is stopped takes connections as long as its kernel does.
//
// So an address is dialed apart from who asks, by one attempt at a time, which ends when the server has answered a PING on
// the new connection. Who asks waits for it as long as he may; later ones find it ready. Once an attempt has failed everybody
// is told so at once, without another, until prepare, which the connection calls again and again, has succeeded. And an address
// is given to rueidis only so often: while Sentinels name a primary that is away, it comes back to them in a loop for each
// connection that it was given before.
//
// All methods are safe for concurrent use. close ends all.
type dialer struct {
	target  *Target
	trouble func(address string) // called without locks: an attempt has failed, or a connection was closed
	ctx     context.Context      // of the attempts
	stop    context.CancelFunc
	running sync.WaitGroup // attempts

	mu      sync.Mutex // guards what follows and all lines
	lines   map[string]*line
	patient bool // a new client is connecting: no command waits, so that all attempts may take their time
	closed  bool
}

// line is what is known of an address.
type line struct {
	attempt *attempt // that runs
	ready   net.Conn // opened, and not fetched yet
	expiry  *time.Timer
	open    map[*fetched]struct{}
	err     error     // of the last attempt
	asked   time.Time // last, by rueidis
	next    time.Time // rueidis can be given another, as a token bucket: spaced more at once when this is long past
}

// attempt opens a connection, which is then the line's ready one.
type attempt struct {
	ended chan struct{}
	err   error // set when ended is closed
}

func newDialer(ctx context.Context, target *Target, trouble func(address string)) *dialer {
	d := &dialer{target: target, trouble: trouble, lines: map[string]*line{}, patient: true}
	d.ctx, d.stop = context.WithCancel(ctx)
	return d
}

// settle says that commands use the client from now on.
func (d *dialer) settle() {
	d.mu.Lock()
	d.patient = false
	d.mu.Unlock()
}

// lineLocked returns what is known of an address.
func (d *dialer) lineLocked(address string) *line {
	l := d.lines[address]
	if l == nil {
		l = &line{open: map[*fetched]struct{}{}}
		d.lines[address] = l
	}
	return l
}

// fetch returns a connection. It is rueidis's ClientOption.DialCtxFn.
func (d *dialer) fetch(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
	d.mu.Lock()
	patient := d.patient
	d.lineLocked(address).asked = time.Now()
	d.mu.Unlock()
	if !patient {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, joinTime)
		defer cancel()
	}
	for failed := false; ; {
		d.mu.Lock()
		l := d.lineLocked(address)
		switch {
		case d.closed:
			d.mu.Unlock()
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, errClosed)
		case !patient && !l.spareLocked():
			d.mu.Unlock()
			return nil, fmt.Errorf("%w: connections to %s do not last", ErrUnavailable, address)
		case l.ready != nil:
			l.next = l.next.Add(spacing)
			c := &fetched{Conn: l.ready, dialer: d, address: address}
			l.expiry.Stop()
			l.ready, l.expiry = nil, nil
			l.open[c] = struct{}{}
			d.mu.Unlock()
			return c, nil
		case l.err != nil && (failed || !patient):
			err := l.err
			d.mu.Unlock()
			d.trouble(address) // somebody sees to it already, or begins to
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		a := d.attemptLocked(address, l)
		d.mu.Unlock()
		select {
		case <-a.ended:
			failed = a.err != nil
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: still connecting to %s: %w", ErrUnavailable, address, ctx.Err())
		}
	}
}

// spareLocked reports whether rueidis can be given another connection now.
func (l *line) spareLocked() bool {
	now := time.Now()
	if first := now.Add(-spaced * spacing); l.next.Before(first) {
		l.next = first
	}
	return !l.next.After(now)
}

// prepare returns nil when there is a connection to the address, and opens one, for others to fetch, when there is none.
func (d *dialer) prepare(ctx context.Context, address string) error {
	d.mu.Lock()
	l := d.lineLocked(address)
	if d.closed || l.ready != nil || len(l.open) > 0 {
		d.mu.Unlock()
		return nil
	}
	a := d.attemptLocked(address, l)
	d.mu.Unlock()
	select {
	case <-a.ended:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// attemptLocked returns the attempt that runs, or a new one.
func (d *dialer) attemptLocked(address string, l *line) *attempt {
	if l.attempt != nil {
		return l.attempt
	}
	a := &attempt{ended: make(chan struct{})}
	l.attempt = a
	d.running.Go(func() {
		conn, err := d.open(address)
		d.mu.Lock()
		l.attempt, l.err, a.err = nil, err, err
		switch {
		case err == nil && d.closed:
			conn.Close()
		case err == nil:
			l.ready = conn
			l.expiry = time.AfterFunc(unfetched, func() { d.expire(l, conn) })
		}
		d.mu.Unlock()
		close(a.ended)
		if err != nil {
			d.trouble(address)
		}
	})
	return a
}

// expire closes a connection that nobody has fetched.
func (d *dialer) expire(l *line, conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.ready == conn {
		l.ready, l.expiry = nil, nil
		conn.Close()
	}
}

// wanted reports whether rueidis asks for the address and does not get it. It forgets those that nobody asks for any more.
func (d *dialer) wanted(address string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lines[address]
	if l == nil || l.err == nil {
		return false
	}
	if l.attempt == nil && time.Since(l.asked) > forgottenIn {
		delete(d.lines, address)
		return false
	}
	return true
}

// drop closes the connections to an address: rueidis then gives an error to all commands that wait for answers on them.
func (d *dialer) drop(address string) {
	d.mu.Lock()
	var open []*fetched
	if l := d.lines[address]; l != nil {
		for c := range l.open {
			open = append(open, c)
		}
	}
	d.mu.Unlock()
	for _, c := range open {
		_ = c.Close() // it is given up
	}
}

// close ends all attempts, closes all connections and refuses new ones.
func (d *dialer) close() {
	d.mu.Lock()
	d.closed = true
	var open []net.Conn
	for _, l := range d.lines {
		for c := range l.open {
			open = append(open, c.Conn)
		}
		if l.ready != nil {
			open = append(open, l.ready)
			l.expiry.Stop()
			l.ready, l.expiry = nil, nil
		}
	}
	d.mu.Unlock()
	d.stop()
	for _, c := range open {
		c.Close()
	}
	d.running.Wait()
}

// open makes a connection on which the server has answered.
func (d *dialer) open(address string) (conn net.Conn, err error) {
	ctx, cancel := context.WithTimeout(d.ctx, 2*patience)
	defer cancel()
	dialer := net.Dialer{Timeout: patience}
	conn, err = dialer.DialContext(ctx, d.target.network, address)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	if d.target.security != nil {
		config, err := d.target.security.config(address)
		if err != nil {
			return conn, err
		}
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return conn, fmt.Errorf("TLS with %s: %w", address, err)
		}
		conn = secure
	}
	undo := context.AfterFunc(ctx, func() { conn.Close() })
	defer undo()
	if err := knock(conn); err != nil {
		return conn, fmt.Errorf("%s: %w", address, err)
	}
	return conn, nil
}

// knock returns nil once the server has answered something: also that it wants a password first.
func knock(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		return err
	}
	var answer []byte
	for buffer := make([]byte, 256); len(answer) < 1024; {
		n, err := conn.Read(buffer)
		answer = append(answer, buffer[:n]...)
		if text, found := strings.CutSuffix(string(answer), "\r\n"); found {
			// After these the server hangs up.
			if strings.HasPrefix(text, "-DENIED") || strings.HasPrefix(text, "-ERR max number of clients") {
				return errors.New(text[1:])
			}
			return conn.SetDeadline(time.Time{})
		}
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			return fmt.Errorf("no answer within %v", patience)
		}
		if err != nil {
			return fmt.Errorf("no answer: %w", err)
		}
	}
	return errors.New("the answer is not Redis's")
}

// fetched is a connection that rueidis has.
type fetched struct {
	net.Conn
	dialer  *dialer
	address string
}

// SetDeadline gives the login the time it needs: rueidis sets one only for that, when it has AlwaysPipelining, and takes it
// from the command that came first.
func (c *fetched) SetDeadline(t time.Time) error {
	if !t.IsZero() {
		t = time.Now().Add(patience)
	}
	return c.Conn.SetDeadline(t)
}

// Close closes it.
func (c *fetched) Close() error {
	d := c.dialer
	d.mu.Lock()
	l := d.lines[c.address]
	open := false
	if l != nil {
		_, open = l.open[c]
		delete(l.open, c)
	}
	closed := d.closed
	d.mu.Unlock()
	err := c.Conn.Close()
	if open && !closed {
		d.trouble(c.address)
	}
	return err
}
