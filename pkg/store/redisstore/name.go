package redisstore

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// appendName appends the name of the state of a charge at an instant, and reports whether the state
// is a counter. In a cluster a text in braces chooses the slot, so a client could choose with
// braces in a request. Empty braces in front prevent that: the whole name counts then, as without
// braces. Names of counters are as other programs write them.
func (s *server) appendName(dst []byte, c *store.Charge, at algorithms.Instant) (name []byte, counter bool) {
	if !s.cluster || c.Hold == nil { // see appendBook
		if dst, counter = s.store.appendCounter(dst, c, at); counter {
			return dst, true
		}
	}
	dst = append(dst, s.store.prefix...)
	if s.cluster {
		switch {
		case strings.Contains(s.store.prefix, "{"):
		case s.store.hashTag != nil:
			tag := len(dst) + 1
			dst = append(append(dst, '{'), s.store.hashTag(c.Key)...)
			for i, b := range dst[tag:] {
				if b == '}' {
					dst[tag+i] = ')' // a brace would end the tag; any slot will do if it is always the same
				}
			}
			dst = append(dst, '}', ':')
		case slices.Contains(c.Key, '{'):
			dst = append(dst, '{', '}', ':')
		}
	}
	return appendKey(dst, c), false
}

// location is the home of a key.
type location struct {
	server *server
	slot   uint16 // 0 without a cluster
}

// locate returns the location of the key of a charge at an instant.
func (s *Store) locate(c *store.Charge, at algorithms.Instant) location {
	return s.serverOf(c).locate(c, at)
}

// locate returns the location that the key would have on this server.
func (s *server) locate(c *store.Charge, at algorithms.Instant) location {
	if !s.cluster {
		return location{server: s}
	}
	name, _ := s.appendName(nil, c, at)
	return location{s, slotOf(string(name))}
}

// serverOf returns the server that keeps a charge's limit.
func (s *Store) serverOf(c *store.Charge) *server {
	if s.seconds != nil && c.Limit.Period == time.Second {
		return s.seconds
	}
	return s.main
}

// queue returns the queue of the call.
func (c *call) queue() *queue { return c.server.queueFor(c.slot, c.charges[0].Key) }

// queueBefore returns the queue in which a call about charge i comes before a request of charges;
// nil means the queue of its key.
func (s *Store) queueBefore(charges []store.Charge, i int) *queue {
	server := s.serverOf(&charges[i])
	if server.cluster {
		return nil
	}
	first := slices.IndexFunc(charges, func(c store.Charge) bool { return s.serverOf(&c) == server })
	return server.queueFor(0, charges[first].Key)
}

// appendKey appends a charge's key, algorithm, and period in microseconds. The last two fields are
// digits only, so no two states have the same name.
func appendKey(dst []byte, c *store.Charge) []byte {
	dst = append(append(dst, c.Key...), ';')
	dst = strconv.AppendUint(dst, uint64(c.Limit.Algorithm), 10)
	return strconv.AppendInt(append(dst, ';'), int64(c.Limit.Period/Granularity), 10)
}

// appendBook appends the name of the key beside the state of a charge, which says something about
// all holders. The name of a holder goes on from there. Both lie in the slot of the state. In a
// cluster a window has no counter then, as each window would have another slot.
func (s *server) appendBook(dst []byte, c *store.Charge) []byte {
	const book = ";h"
	if !s.cluster {
		return append(appendKey(append(dst, s.store.prefix...), c), book...)
	}
	from := len(dst)
	dst, _ = s.appendName(dst, c, 0)
	name := string(dst[from:])
	if tagOf(name) != "" {
		return append(dst, book...)
	}
	slot := slotOf(name)
	dst = append(append(append(append(dst[:from], s.store.prefix...), '{'), s.tags()[slot][:]...), "}:"...)
	if strings.Contains(s.store.prefix, "{") { // a tag that only some keys end
		dst = append(append(append(append(dst[:from], '{'), s.tags()[slot][:]...), "}:"...), s.store.prefix...)
	}
	return append(appendKey(dst, c), book...)
}

// appendHolder appends the name of a holder to the name of a book.
func appendHolder(dst []byte, h store.Holder) []byte {
	return base64.RawURLEncoding.AppendEncode(dst, h[:])
}
