package redisstore

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// name returns the name of a charge's state in Redis, now.
func (s *Store) name(c *store.Charge) string {
	name, _ := s.appendName(nil, c, s.now())
	return string(name)
}

// appendName appends the name of the state of a charge of that instant, and reports whether it is a counter's. In a cluster a
// text in braces says where a name lies, so one that came with a request must not be found there: empty braces before it make the
// whole name count, as it does without any. Names of counters are another's, and lie where they lie.
func (s *Store) appendName(dst []byte, c *store.Charge, at algorithms.Instant) (name []byte, counter bool) {
	if dst, counter = s.appendCounter(dst, c, at); counter {
		return dst, true
	}
	dst = append(dst, s.prefix...)
	if s.cluster {
		switch {
		case strings.Contains(s.prefix, "{"):
		case s.hashTag != nil:
			dst = append(dst, '{')
			for _, b := range s.hashTag(c.Key) {
				if b == '}' {
					b = ')' // would end it; which slot it is does not matter, only that it is the same
				}
				dst = append(dst, b)
			}
			dst = append(dst, '}', ':')
		default:
			if slices.Contains(c.Key, '{') {
				dst = append(dst, '{', '}', ':')
			}
		}
	}
	return appendKey(dst, c), false
}

// location is where a key lies.
type location struct {
	server *Store
	slot   uint16 // 0 where there are no slots
}

// locate returns where the key of a charge of that instant lies.
func (s *Store) locate(c *store.Charge, at algorithms.Instant) location {
	if s = s.serverOf(c); !s.cluster {
		return location{server: s}
	}
	name, _ := s.appendName(nil, c, at)
	return location{s, slotOf(string(name))}
}

// serverOf returns the store that asks the server of a charge.
func (s *Store) serverOf(c *store.Charge) *Store {
	if s.seconds != nil && c.Limit.Period == time.Second {
		return s.seconds
	}
	return s
}

// appendKey appends a charge's key and what else belongs to the name of its state: algorithm and period in microseconds. As
// these are the last two fields and hold digits only, no two different states have one name.
func appendKey(dst []byte, c *store.Charge) []byte {
	dst = append(append(dst, c.Key...), ';')
	dst = strconv.AppendUint(dst, uint64(c.Limit.Algorithm), 10)
	return strconv.AppendInt(append(dst, ';'), int64(c.Limit.Period/Granularity), 10)
}
