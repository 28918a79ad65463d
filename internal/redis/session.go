package redis

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

// session is one rueidis client, and the connections that the session dials for the client.
type session struct {
	conn    *Conn
	client  rueidis.Client
	version version         // of one of the servers
	failed  chan failure    // holds one: the reason to give the session up
	ctx     context.Context // until close
	stop    context.CancelFunc
	running sync.WaitGroup // dials and reconnects
	making  atomic.Int64   // reconnects under way

	mu        sync.Mutex // guards the fields below, and all endpoints
	endpoints map[string]*endpoint
	inUse     bool // commands use the client
	closed    bool
}

// failure is why a session ended.
type failure struct {
	err    error
	logged bool
}

// newSession makes a client, and inquires of all servers that the client knows.
func (c *Conn) newSession() (*session, error) {
	s := &session{conn: c, failed: make(chan failure, 1), endpoints: map[string]*endpoint{}}
	s.ctx, s.stop = context.WithCancel(c.ctx)
	defer context.AfterFunc(s.ctx, s.disconnect)() // NewClient has no time limit
	client, err := rueidis.NewClient(c.clientOption(s.fetch))
	if client != nil { // rueidis may return a client and an error
		s.client = client
	}
	if errorCode(err) != "" && strings.Contains(err.Error(), "cluster support disabled") {
		err = c.noCluster()
	}
	if err == nil {
		err = s.inquireAll()
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

// use makes Conn.Client return the client of the session.
func (s *session) use() {
	s.mu.Lock()
	s.inUse = true
	s.mu.Unlock()
	s.conn.failing.Store(0)
	s.conn.state.Store(&state{client: s.client, session: s})
	for address := range s.client.Nodes() {
		if s.wanted(address) { // the dial failed during newSession
			s.reconnect(address)
		}
	}
	s.running.Go(s.keepOrder)
	if s.conn.Cluster() {
		s.running.Go(s.keepNodes)
	}
}

// fail makes Conn close the session.
func (s *session) fail(err error, logged bool) {
	select {
	case s.failed <- failure{err, logged}:
	default:
	}
}

// close closes the client and all connections.
func (s *session) close() {
	s.stop()
	s.disconnect() // first, or the client waits for answers
	if s.client != nil {
		s.client.Close()
	}
	s.running.Wait()
}

func (c *Conn) noCluster() error {
	return &unfitError{fmt.Sprintf("no cluster at %s: write redis://host", strings.Join(c.target.addresses, ",")), ErrTopology}
}

// inquireAll inquires of all nodes. A server that is too old or of another topology is an error.
// Otherwise one answer is enough.
func (s *session) inquireAll() error {
	if s.conn.Cluster() && s.client.Mode() != rueidis.ClientModeCluster {
		return s.conn.noCluster()
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
	v, err := askVersion(ctx, node, address, s.conn.target.topology)
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
