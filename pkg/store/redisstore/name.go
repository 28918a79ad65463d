package redisstore

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weirproxy/weir/pkg/store"
)

// name returns the name of a charge's state in Redis.
func (s *Store) name(c *store.Charge) string { return string(s.appendName(nil, c)) }

// appendName appends the name of a charge's state. In a cluster a text in braces says where a name lies, so one that came with
// a request must not be found there: empty braces before it make the whole name count, as it does without any.
func (s *Store) appendName(dst []byte, c *store.Charge) []byte {
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
	return appendKey(dst, c)
}

// slot returns the slot of a charge's key; 0 where there are no slots.
func (s *Store) slot(c *store.Charge) uint16 {
	if !s.cluster {
		return 0
	}
	return slotOf(s.name(c))
}

// appendKey appends a charge's key and what else belongs to the name of its state: algorithm and period in microseconds. As
// these are the last two fields and hold digits only, no two different states have one name.
func appendKey(dst []byte, c *store.Charge) []byte {
	dst = append(append(dst, c.Key...), ';')
	dst = strconv.AppendUint(dst, uint64(c.Limit.Algorithm), 10)
	return strconv.AppendInt(append(dst, ';'), int64(c.Limit.Period/Granularity), 10)
}
