package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// session is one rueidis client, and the connections that the session dials for the client.
type session struct {
	conn    *Conn
	first   []string // addresses, for the client
	client  rueidis.Client
	version version         // of one of the servers
	failed  chan error      // holds one: the reason to give the session up
	ctx     context.Context // until close
	stop    context.CancelFunc
	running sync.WaitGroup // dials and reconnects
	making  atomic.Int64   // reconnects under way

	// down is why the server cannot be dialed, until the server has said whether it is still the same;
	// nil: it can be. A cluster has none, as its other nodes go on.
	down atomic.Pointer[error]

	mu        sync.Mutex // guards the fields below, and all endpoints
	endpoints map[string]*endpoint
	infos     map[string]map[string]string // of servers, by address, until use
	inUse     bool                         // commands use the client
	closed    bool
}

// newSession makes a client, and inquires of all servers that the client knows.
func (c *Conn) newSession(addresses []string) (*session, error) {
	s := &session{conn: c, first: addresses, failed: make(chan error, 1), endpoints: map[string]*endpoint{}, infos: map[string]map[string]string{}}
	s.ctx, s.stop = context.WithCancel(c.ctx)
	defer context.AfterFunc(s.ctx, s.disconnect)() // NewClient has no time limit
	client, err := rueidis.NewClient(c.clientOption(addresses, s.fetch, &c.login))
	if client != nil { // rueidis may return a client and an error
		s.client = client
	}
	if errorCode(err) != "" && strings.Contains(err.Error(), "cluster support disabled") {
		err = s.noCluster()
	}
	if err == nil {
		err = s.inquireAll()
	}
	if err == nil && c.sentinels != nil {
		err = s.checkRole()
	}
	if err != nil {
		s.close()
		return nil, unavailable(err)
	}
	if c.Cluster() {
		_ = s.askNodes() // keepNodes asks again
	}
	return s, nil
}

func (c *Conn) clientOption(
	addresses []string, dial func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error), login *credentials,
) rueidis.ClientOption {
	o := rueidis.ClientOption{
		InitAddress:       slices.Clone(addresses), // ShuffleInit shuffles the slice
		DialCtxFn:         dial,
		AuthCredentialsFn: login.read,
		// Timeout bounds the login. After KeepAlive without an answer rueidis sends a PING on a
		// connection, and closes the connection ConnWriteTimeout later. reconnect is faster when
		// commands fail.
		Dialer:           net.Dialer{Timeout: timeout, KeepAlive: time.Second},
		ConnWriteTimeout: timeout,
		SelectDB:         c.target.database,
		ClientName:       "weir",
		ClientSetInfo:    rueidis.DisableClientSetInfo, // Redis before 7.2 does not know the command

		DisableCache: true, // no client-side caching

		// Two goroutines for each connection write commands and read answers. Otherwise a lone command
		// closes the connection when its context ends before the answer.
		AlwaysPipelining: true,
		// One connection for each node: redisstore has few commands in flight, each with many requests.
		PipelineMultiplex: -1,
		BlockingPipeline:  -1, // not another connection for a long pipeline
		// 2^8 commands in flight on a connection. The buffers are in bytes, by default 0.5 MiB each.
		RingScaleEachConn:   8,
		ReadBufferEachConn:  64 << 10,
		WriteBufferEachConn: 64 << 10,

		// rueidis would retry only commands that read, and no caller waits for the retry.
		DisableRetry: true,
	}
	if c.target.security != nil {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12} // selects the TLS port of a cluster's node; dial does the handshake
	}
	if !c.Cluster() {
		o.ForceSingleClient = true
		return o
	}
	o.ShuffleInit = true
	// MOVED and lost connections make rueidis ask for the slots. The interval is for slots without
	// traffic.
	o.ClusterOption.ShardsRefreshInterval = 30 * time.Second
	// Two MOVED and two ASK; the default has no limit.
	o.ClusterOption.MaxMovedRedirections = 4
	return o
}

// use has commands use the session. Only then other servers than before count as met: see Restarts.
func (s *session) use() {
	s.mu.Lock()
	s.inUse = true
	infos := s.infos
	for address := range s.client.Nodes() {
		if e := s.endpoints[address]; e != nil && e.err != nil { // the dial failed during newSession
			s.reconnectLocked(address)
		}
	}
	s.mu.Unlock()
	for address, info := range infos {
		s.conn.meet(address, info)
	}
	s.conn.failing.Store(0)
	s.conn.state.Store(&state{client: s.client, session: s})
	s.running.Go(s.keepOrder)
	s.running.Go(s.watchMemory)
	if s.conn.Cluster() {
		s.running.Go(s.keepNodes)
	}
}

func (s *session) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

func (s *session) close() {
	s.stop()
	s.disconnect() // first, or the client waits for answers
	if s.client != nil {
		s.client.Close()
	}
	s.running.Wait()
}

// keepOrder pings the nodes, with a number that the checker of the connection keeps, until the
// session ends. A reply too many shifts all replies after it, and package resp would notice that
// only on an idle connection. rueidis then sends no PING of its own.
func (s *session) keepOrder() {
	s.each(time.Second, func() {
		for _, node := range s.client.Nodes() {
			s.running.Go(func() { s.pingInOrder(node) })
		}
	})
}

// each calls do in each interval until the session ends.
func (s *session) each(interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// pingInOrder sends a PING with a random number. The checker of the connection closes the
// connection unless the number comes back.
func (s *session) pingInOrder(node rueidis.Client) {
	ctx, cancel := context.WithTimeout(s.ctx, time.Second)
	defer cancel()
	number := strconv.FormatUint(rand.Uint64(), 36)
	_ = node.Do(ctx, node.B().Ping().Message(number).Build()).Error() // other commands find out, too
}

func (s *session) noCluster() error {
	return &unfitError{fmt.Sprintf("no cluster at %s: write redis://host", strings.Join(s.first, ",")), ErrTopology}
}

// checkRole returns an error unless the server is a primary. A Sentinel may name a replica that is
// about to become the primary, or an old primary.
func (s *session) checkRole() error {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	role, err := s.client.Do(ctx, s.client.B().Role().Build()).ToArray()
	if err != nil {
		return err
	}
	if len(role) > 0 {
		if text, err := role[0].ToString(); err == nil && text == "master" {
			return nil
		}
	}
	return fmt.Errorf("the Sentinels name %s, which is no primary", s.first[0])
}

// inquireAll inquires of all nodes. A server that is too old or of another topology is an error.
// Otherwise one answer is enough.
func (s *session) inquireAll() error {
	if s.conn.Cluster() && s.client.Mode() != rueidis.ClientModeCluster {
		return s.noCluster()
	}
	type answer struct {
		version version
		err     error
	}
	nodes := s.client.Nodes()
	answers := make(chan answer, len(nodes))
	for address, node := range nodes {
		go func() {
			v, err := s.inquire(node, address)
			answers <- answer{v, err}
		}()
	}
	var unfit, lost error
	answered := false
	for range nodes {
		a := <-answers
		switch {
		case isUnfit(a.err):
			unfit = a.err
		case a.err != nil:
			lost = a.err
		default:
			answered = true
			s.version = a.version
		}
	}
	if unfit != nil || answered {
		return unfit
	}
	return lost
}

// inquire asks a node for its version. When the node does not answer, inquire closes its
// connections, and commands that wait on them fail at once. So a stopped server that resumes
// receives fewer commands without a waiting caller.
func (s *session) inquire(node rueidis.Client, address string) (version, error) {
	if err := s.prepare(address); err != nil {
		return version{}, err
	}
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	v, err := askVersion(ctx, node, address, s.conn.target.topology, func(info map[string]string) { s.meet(address, info) })
	switch {
	case errors.Is(err, errNoInfo):
		if !s.conn.warned.Swap(true) {
			s.conn.logger.LogAttrs(s.ctx, slog.LevelWarn, "redis does not say its version, and is taken to be new enough",
				slog.String("node", address), slog.String("error", err.Error()))
		}
		return v, nil
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		s.drop(address)
		return v, fmt.Errorf("%s: no answer within %v", address, timeout)
	}
	return v, err
}

// meet is meet of Conn for a session in use; else use does that.
func (s *session) meet(address string, info map[string]string) {
	s.mu.Lock()
	inUse := s.inUse
	if !inUse {
		s.infos[address] = info
	}
	s.mu.Unlock()
	if inUse {
		s.conn.meet(address, info)
	}
}
