package redisstore

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// reach says whether hits can be sent to a server.
type reach uint8

const (
	answering reach = iota
	silent          // there is a connection, and no answer
	nobody          // there is no connection
)

// reaches looks at each server once. The zero value with a store is ready.
type reaches struct {
	store *Store
	known [2]bool // of the main server and of the one of limits of a second
	looks [2]reach
}

// of returns the reach of the server, or the cluster's node, of a charge at an instant.
func (r *reaches) of(c *store.Charge, at algorithms.Instant) reach {
	server, i := r.store.serverOf(c), 0
	if server != r.store.main {
		i = 1
	}
	if !r.known[i] {
		r.known[i] = true
		if _, err := server.connection.Client(); err != nil {
			r.looks[i] = nobody
		} else if r.store.Health(nil).Silent > 0 || !server.cluster && server.silent(0, c.Key) {
			r.looks[i] = silent
		}
	}
	if r.looks[i] == answering && server.cluster && server.silent(server.locate(c, at).slot, c.Key) {
		return silent
	}
	return r.looks[i]
}

// noneConnected reports whether no server has a connection.
func (s *Store) noneConnected() bool {
	for _, server := range []*server{s.main, s.seconds} {
		if server == nil {
			continue
		}
		if _, err := server.connection.Client(); err == nil {
			return false
		}
	}
	return true
}

// silent reports whether the last flight to the node of a slot ended without an answer.
func (s *server) silent(slot uint16, key []byte) bool {
	q := s.queueFor(slot, key)
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.nodeQueueLocked(slot).lost > 0
}
