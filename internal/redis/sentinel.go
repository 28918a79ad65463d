package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"

	"github.com/redis/rueidis"
)

// maxSentinels bounds the Sentinels that others name.
const maxSentinels = 100

// sentinels asks the Sentinels of a target where the primary is: the same Sentinel as before, or
// after an error the next one. Sentinels close the connections to a primary that they demote, so
// that Conn asks at once. But Sentinels that do not agree may have two primaries for some seconds,
// see unsettled. sentinels subscribes to nothing.
type sentinels struct {
	conn  *Conn
	login credentials

	mu        sync.Mutex     // held while a Sentinel is asked; guards the fields below
	addresses []string       // the first is the next one to be asked
	client    rueidis.Client // of the first address; nil: not connected
}

func newSentinels(c *Conn) *sentinels {
	s := &sentinels{conn: c, login: credentials{of: "the Sentinels", logger: c.logger, current: c.target.sentinelLogin}}
	s.addresses = slices.Clone(c.target.addresses)
	rand.Shuffle(len(s.addresses), func(i, j int) { s.addresses[i], s.addresses[j] = s.addresses[j], s.addresses[i] })
	return s
}

// primary returns the address of the primary. An answer of Redis is the error to return before a
// lost connection.
func (s *sentinels) primary() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first error
	for range len(s.addresses) {
		address, err := s.askLocked()
		if err == nil {
			return address, nil
		}
		err = fmt.Errorf("the Sentinel %s: %w", s.addresses[0], err)
		if first == nil || errorCode(first) == "" && errorCode(err) != "" {
			first = err
		}
		s.passLocked()
	}
	return "", first
}

func (s *sentinels) pass() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passLocked()
}

func (s *sentinels) passLocked() {
	s.closeLocked()
	s.addresses = append(s.addresses[1:], s.addresses[0])
}

func (s *sentinels) close() {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closeLocked()
	}
}

func (s *sentinels) closeLocked() {
	if s.client != nil {
		s.client.Close()
		s.client = nil
	}
}

func (s *sentinels) askLocked() (primary string, err error) {
	ctx, cancel := context.WithTimeout(s.conn.ctx, timeout)
	defer cancel()
	if s.client == nil {
		o := s.conn.clientOption(s.addresses[:1], func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			return s.conn.dial(s.conn.ctx, s.addresses[0])
		}, &s.login)
		o.ForceSingleClient, o.SelectDB = true, 0
		if s.client, err = rueidis.NewClient(o); err != nil {
			s.closeLocked()
			return "", err
		}
	}
	b, name := s.client.B(), s.conn.target.primary
	answers := s.client.DoMulti(ctx, b.SentinelSentinels().Master(name).Build(), b.SentinelGetMasterAddrByName().Master(name).Build())
	others, err := answers[0].ToArray()
	if err != nil {
		return "", err
	}
	address, err := answers[1].AsStrSlice()
	if err != nil {
		return "", err
	}
	if len(address) != 2 {
		return "", errors.New("an address of a primary that is not a host and a port")
	}
	known := append(s.addresses[:1:1], s.conn.target.addresses...)
	for _, other := range others[:min(len(others), maxSentinels)] {
		fields, err := other.AsStrMap()
		if err != nil {
			return "", err
		}
		known = append(known, net.JoinHostPort(fields["ip"], fields["port"]))
	}
	s.addresses = s.addresses[:1]
	for _, address := range known {
		if !slices.Contains(s.addresses, address) {
			s.addresses = append(s.addresses, address)
		}
	}
	return net.JoinHostPort(address[0], address[1]), nil
}

// confirm returns an error if the Sentinels name another primary than the server of the session. A
// primary that was away may have come back without data after a failover. If no Sentinel answers,
// the server stays in use.
func (s *session) confirm() error {
	if s.conn.sentinels == nil {
		return nil
	}
	primary, err := s.conn.sentinels.primary()
	if err != nil || primary == s.first[0] {
		return nil //nolint:nilerr // the last known primary is better than none
	}
	s.conn.wake() // Conn.serve then has commands use that one
	return fmt.Errorf("the Sentinels name %s, and no longer %s", primary, s.first[0])
}
