package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// link is a client and what belongs to it.
type link struct {
	client  rueidis.Client
	dialer  *dialer
	version version
	ended   chan ended      // holds one: it must not be used any more
	settled atomic.Bool     // commands use it
	open    context.Context // until close
	shut    context.CancelFunc
	menders sync.WaitGroup

	mu      sync.Mutex          // guards mending
	mending map[string]*mending // nil after close
}

// ended is why a link must not be used any more.
type ended struct {
	err    error
	logged bool
}

// end has the link closed by who serves it.
func (l *link) end(err error, logged bool) {
	select {
	case l.ended <- ended{err, logged}:
	default:
	}
}

// connect makes a client and looks at all servers that it reaches.
func (c *connection) connect() (*link, error) {
	l := &link{ended: make(chan ended, 1), mending: map[string]*mending{}}
	l.open, l.shut = context.WithCancel(c.ctx)
	l.dialer = newDialer(l.open, &c.target, func(address string) { c.mend(l, address) })
	end := context.AfterFunc(l.open, l.dialer.close) // rueidis makes some first steps without a time limit
	defer end()
	client, err := rueidis.NewClient(c.target.clientOption(l.dialer))
	if client != nil { // a single one is there even if it could not connect
		l.client = client
	}
	if errorCode(err) != "" && strings.Contains(err.Error(), "cluster support disabled") {
		err = c.noCluster()
	}
	if err == nil {
		err = c.inquireAll(l)
	}
	if err != nil {
		l.close()
		return nil, unavailable(err)
	}
	return l, nil
}

// use has client return the link's.
func (c *connection) use(l *link) {
	l.dialer.settle()
	l.settled.Store(true)
	c.failing.Store(0)
	c.state.Store(&connectionState{client: l.client})
	// What had trouble while it connected was nobody's business until now.
	for address := range l.client.Nodes() {
		if l.dialer.wanted(address) {
			c.mend(l, address)
		}
	}
}

// close closes the client and all connections.
func (l *link) close() {
	l.shut()
	l.dialer.close() // first, so that Close waits for no answers
	if l.client != nil {
		l.client.Close()
	}
	l.mu.Lock()
	l.mending = nil
	l.mu.Unlock()
	l.menders.Wait()
}

// noCluster is what is wrong with a cluster that is none.
func (c *connection) noCluster() error {
	return &unfitError{fmt.Sprintf("no cluster at %s: write redis://host", strings.Join(c.target.addresses, ",")), ErrTopology}
}

// inquireAll asks all nodes what they are. Those that do not answer count only when none does.
func (c *connection) inquireAll(l *link) error {
	if c.cluster() && l.client.Mode() != rueidis.ClientModeCluster {
		return c.noCluster()
	}
	type answer struct {
		version version
		err     error
	}
	nodes := l.client.Nodes()
	answers := make(chan answer, len(nodes))
	for address, node := range nodes {
		go func() {
			v, err := c.examine(l, node, address)
			answers <- answer{v, err}
		}()
	}
	var unfit, failure error
	answered := false
	for range nodes {
		a := <-answers
		switch {
		case errors.Is(a.err, ErrVersion), errors.Is(a.err, ErrTopology):
			unfit = a.err
		case a.err != nil:
			failure = a.err
		default:
			answered = true
			l.version = a.version
		}
	}
	if unfit != nil || answered {
		return unfit
	}
	return failure
}

// examine asks a node what it is. When it does not answer, its connections are closed: what waits for answers on them would
// wait until rueidis finds out, and a server that comes to itself would be sent more that nobody waits for.
func (c *connection) examine(l *link, node rueidis.Client, address string) (version, error) {
	if err := l.dialer.prepare(l.open, address); err != nil {
		return version{}, err
	}
	ctx, cancel := context.WithTimeout(l.open, patience)
	defer cancel()
	v, err := inquire(ctx, node, address, c.target.topology)
	switch {
	case errors.Is(err, errNoInfo):
		if !c.warned.Swap(true) {
			c.logger.LogAttrs(c.ctx, slog.LevelWarn, "redis does not say its version, it is taken to be new enough",
				slog.String("node", address), slog.String("error", err.Error()))
		}
		return v, nil
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		l.dialer.drop(address)
		return v, fmt.Errorf("%s: no answer within %v", address, patience)
	}
	return v, err
}
