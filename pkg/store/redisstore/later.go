package redisstore

import (
	"context"
	"time"
)

// Calls that nobody waits for: what is given back when a request could not be settled, and the hits of requests that were
// denied from memory.
const (
	laterCalls = 10_000                 // most that wait; beyond that they are lost
	laterPause = 100 * time.Millisecond // between two attempts while Redis is away
	laterTries = 50                     // attempts before a call is lost
)

// later has a call made in the background. What cannot be made, or may have been made without an answer, is lost: hits are
// rather counted too long than given back twice.
func (s *Store) later(c *call) {
	select {
	case s.latest <- c:
	default:
		s.counts.lostHits.Add(c.size())
	}
}

// runLater makes the calls of later until ctx ends. Then it makes those that wait, once.
func (s *Store) runLater(ctx context.Context) {
	for {
		select {
		case c := <-s.latest:
			s.makeLater(ctx, c)
		case <-ctx.Done():
			for {
				select {
				case c := <-s.latest:
					s.makeLater(ctx, c)
				default:
					return
				}
			}
		}
	}
}

func (s *Store) makeLater(ctx context.Context, c *call) {
	hits := c.size()
	for range laterTries {
		err := s.do(context.WithoutCancel(ctx), c, 4*s.timeout)
		if err == nil {
			s.counts.deferredHits.Add(hits)
			return
		}
		if !c.unsent() {
			break
		}
		c = c.copy()
		select {
		case <-ctx.Done():
		case <-time.After(laterPause):
			continue
		}
		break
	}
	s.counts.lostHits.Add(hits)
}
