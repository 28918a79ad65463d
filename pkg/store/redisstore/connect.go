package redisstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// link is a client and what belongs to it.
type link struct {
	client  rueidis.Client
	dialer  *dialer
	version version
	unfit   chan error      // holds one: why it must not be used any more
	settled atomic.Bool     // commands use it
	open    context.Context // until close
	shut    context.CancelFunc
	menders sync.WaitGroup

	mu      sync.Mutex          // guards mending
	mending map[string]*mending // nil after close
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

// run connects and stays connected.
func (c *connection) run() {
	said := "" // of the failure that was logged
	for attempt := 0; c.ctx.Err() == nil; attempt++ {
		l, err := c.connect()
		if err == nil {
			said, attempt = "", 0
			c.logger.LogAttrs(c.ctx, slog.LevelInfo, "redis connected", slog.Any("target", c.target),
				slog.String("topology", string(c.target.topology)), slog.String("version", l.version.String()))
			err = c.serve(l)
			if c.ctx.Err() != nil {
				return
			}
		}
		c.state.Store(&connectionState{err: err})
		c.endFirst(err)
		if kind := kindOf(err); kind != said && c.ctx.Err() == nil {
			said = kind
			c.logger.LogAttrs(c.ctx, slog.LevelWarn, "redis is not reachable", slog.Any("target", c.target), slog.String("error", err.Error()))
		}
		wait := backoff(attempt)
		if errors.Is(err, ErrVersion) || errors.Is(err, ErrTopology) {
			wait = maxBackoff // however often it is asked, somebody must act
		}
		pause(c.ctx, wait)
	}
	c.endFirst(c.ctx.Err())
}

// kindOf tells reasons apart that are worth a log line each: what Redis said, and all others as one.
func kindOf(err error) string {
	switch {
	case errors.Is(err, ErrVersion):
		return "version"
	case errors.Is(err, ErrTopology):
		return "topology"
	}
	return cmp.Or(errorCode(err), "network")
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

// serve lets the link be used until it must not be any more, which it returns, or the connection is closed.
func (c *connection) serve(l *link) error {
	defer func() { l.close() }()
	c.use(l)
	c.endFirst(nil)
	var looked time.Time
	for {
		select {
		case <-c.ctx.Done():
			return c.ctx.Err()
		case err := <-l.unfit:
			return err
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

// connect makes a client and looks at all servers that it reaches.
func (c *connection) connect() (*link, error) {
	l := &link{unfit: make(chan error, 1), mending: map[string]*mending{}}
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

// clientOption is how rueidis is to connect.
func (t *Target) clientOption(d *dialer) rueidis.ClientOption {
	// Timeout is for the login. A connection without an answer for KeepAlive is sent a PING, and closed when that has had none
	// for ConnWriteTimeout; mend is faster when commands fail.
	dialer := net.Dialer{Timeout: patience, KeepAlive: time.Second}
	o := rueidis.ClientOption{
		InitAddress:      slices.Clone(t.addresses), // ShuffleInit shuffles it
		DialCtxFn:        d.fetch,
		Dialer:           dialer,
		ConnWriteTimeout: patience,
		Username:         t.username,
		Password:         t.password,
		SelectDB:         t.database,
		ClientName:       "weir",
		ClientSetInfo:    rueidis.DisableClientSetInfo, // an unknown command before Redis 7.2; the name says it all

		// The store remembers denials by itself.
		DisableCache: true,

		// Commands are written and answers read by two goroutines for each connection. Without, a lone command reads its own
		// answer and, when its context ends before that, closes the connection.
		AlwaysPipelining: true,
		// One connection for each node: the store has few commands on their way at once, each of many requests.
		PipelineMultiplex: -1,
		// Never another one, as for long pipelines.
		BlockingPipeline: -1,
		// Commands on their way at once on a connection, 2^8; and bytes, where the default is 0.5 MiB each.
		RingScaleEachConn:   8,
		ReadBufferEachConn:  64 << 10,
		WriteBufferEachConn: 64 << 10,

		// rueidis sends again only commands that read. The script is none, but nobody waits for what is sent again.
		DisableRetry: true,
	}
	if t.certificates != nil {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12} // says which of a node's two ports to dial; the dialer does the rest
	}
	switch t.topology {
	case topologySingle:
		o.ForceSingleClient = true
	case topologySentinel:
		o.ShuffleInit = true
		o.Sentinel = rueidis.SentinelOption{
			Dialer:     dialer,
			TLSConfig:  o.TLSConfig,
			MasterSet:  t.primary,
			Username:   t.sentinelUsername,
			Password:   t.sentinelPassword,
			ClientName: o.ClientName,
			// A primary that was made a replica lives on and answers, so that a missed +switch-master would never be noticed.
			TopologyRefreshInterval: maxBackoff,
		}
	case topologyCluster:
		o.ShuffleInit = true
		// MOVED and lost connections have the slots asked for again; this finds what changes behind a slot without traffic.
		o.ClusterOption.ShardsRefreshInterval = 30 * time.Second
		// A MOVED, an ASK, and once more of each; the default is without end.
		o.ClusterOption.MaxMovedRedirections = 4
	}
	return o
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
