package redisstore

import (
	"bytes"
	"encoding/base64"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Counters makes the store keep fixed windows as envoyproxy/ratelimit keeps them, so that both
// count together: as a decimal number for each window. The name of the key ends with the start of
// the window, in Unix seconds by this process's clock. The key lives for a period and a jitter from
// its last hit on. In a window of a calendar it lives until the end of the window and a jitter. Two
// promises of package store do not hold for counters. If this process's clock goes back, hits count
// in the window of that clock. Limits of two periods share a count if their names are the same. The
// zero value makes no counters.
type Counters struct {
	// Name appends the name of the counter for a Charge.Key, with a prefix, without the start of the
	// window. With false the store keeps the window as any other. So it does if the period is not a
	// whole number of seconds, or if windows begin with first hits. Name must depend on key only,
	// and must be safe for concurrent use.
	Name func(dst, key []byte) (name []byte, counted bool)

	Jitter time.Duration // 0 to MaxJitter; a key lives longer than a period by a random whole number of seconds below
}

// MaxJitter is the largest Counters.Jitter.
const MaxJitter = math.MaxInt32 * time.Second

// counterNumber stands for counters where the script has the number of an algorithm.
const counterNumber = 0

type names struct {
	prefix   string                  // of every key
	hashTag  func(key []byte) []byte // see Options.HashTag
	counters Counters
	cluster  bool
	tags     func() *[slots][3]byte // see tagsOfSlots
}

// appendName appends the name of the state of a charge at an instant, and reports whether the state
// is a counter. In a cluster a text in braces chooses the slot, so a client could choose with
// braces in a request. Empty braces in front prevent that: the whole name counts then, as without
// braces. A tag that is the beginning of the key gets the braces where it stands, unless a brace in
// it would end the tag. Names of counters are as other programs write them.
func (n *names) appendName(dst []byte, c *store.Charge, at algorithms.Instant) (name []byte, counter bool) {
	if !n.cluster || c.Hold == nil { // see appendBook
		if dst, counter = n.appendCounter(dst, c, at); counter {
			return dst, true
		}
	}
	dst = append(dst, n.prefix...)
	if n.cluster {
		switch {
		case strings.Contains(n.prefix, "{"):
		case n.hashTag != nil:
			tag, text := len(dst)+1, n.hashTag(c.Key)
			dst = append(append(dst, '{'), text...)
			if len(text) > 0 && bytes.HasPrefix(c.Key, text) && !slices.Contains(text, '}') {
				return appendEnd(append(append(dst, '}'), c.Key[len(text):]...), c), false
			}
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

// appendKey appends a charge's key, algorithm, and period in microseconds. The last two fields are
// digits only, so no two states have the same name.
func appendKey(dst []byte, c *store.Charge) []byte { return appendEnd(append(dst, c.Key...), c) }

// appendEnd is appendKey without the key.
func appendEnd(dst []byte, c *store.Charge) []byte {
	dst = append(dst, ';')
	dst = strconv.AppendUint(dst, uint64(c.Limit.Algorithm), 10)
	return strconv.AppendInt(append(dst, ';'), int64(c.Limit.Period/Granularity), 10)
}

// appendBook appends the name of the key beside the state of a charge, which says something about
// all holders. The name of a holder goes on from there. Both lie in the slot of the state. In a
// cluster a window has no counter then, as each window would have another slot.
func (n *names) appendBook(dst []byte, c *store.Charge) []byte {
	const book = ";h"
	if !n.cluster {
		return append(appendKey(append(dst, n.prefix...), c), book...)
	}
	from := len(dst)
	dst, _ = n.appendName(dst, c, 0)
	name := string(dst[from:])
	if tagOf(name) != "" {
		return append(dst, book...)
	}
	slot := slotOf(name)
	dst = append(append(append(append(dst[:from], n.prefix...), '{'), n.tags()[slot][:]...), "}:"...)
	if strings.Contains(n.prefix, "{") { // a tag that only some keys end
		dst = append(append(append(append(dst[:from], '{'), n.tags()[slot][:]...), "}:"...), n.prefix...)
	}
	return append(appendKey(dst, c), book...)
}

func appendHolder(dst []byte, h store.Holder) []byte {
	return base64.RawURLEncoding.AppendEncode(dst, h[:])
}

// appendCounter appends the name of the counter of a charge at an instant, and reports whether the
// charge has one.
func (n *names) appendCounter(dst []byte, c *store.Charge, at algorithms.Instant) (name []byte, counted bool) {
	if dst, counted = n.appendCounted(dst, c); !counted {
		return dst, false
	}
	start, _ := c.Limit.WindowOf(at)
	return strconv.AppendInt(dst, int64(start)/int64(time.Second), 10), true
}

// appendCounted is appendCounter without the start of the window.
func (n *names) appendCounted(dst []byte, c *store.Charge) (name []byte, counted bool) {
	if n.counters.Name == nil || !countable(c.Limit) {
		return dst, false
	}
	before := len(dst)
	if dst, counted = n.counters.Name(dst, c.Key); !counted {
		return dst[:before], false
	}
	return dst, true
}

func (n *names) isCounter(c *store.Charge) bool {
	if c.Hold != nil && n.cluster {
		return false
	}
	_, counter := n.appendCounted(nil, c)
	return counter
}

// countable reports whether windows of a limit can have counters: their starts are known, and are
// whole seconds.
func countable(l algorithms.Limit) bool {
	switch l.Algorithm {
	case algorithms.FixedWindow:
		return l.Period%time.Second == 0
	case algorithms.CalendarWindow:
		return l.Calendar != nil && !l.Calendar.FirstHit()
	default:
		return false
	}
}

func window(period time.Duration, at algorithms.Instant) algorithms.Instant {
	return at - at%algorithms.Instant(period)
}

// jitter returns the seconds that a counter lives after its period.
func (n *names) jitter() uint32 {
	if seconds := uint32(n.counters.Jitter / time.Second); seconds > 0 {
		return rand.Uint32N(seconds)
	}
	return 0
}

const slots = 16384

// slotOf returns the slot of a Redis key: of the text between the first { and the next }, or
// without such a text of the whole key. See the Redis cluster specification.
func slotOf(key string) uint16 {
	if tag := tagOf(key); tag != "" {
		key = tag
	}
	return crc16(key) % slots
}

// tagOf returns the text of a Redis key that decides its slot; empty: the whole key does.
func tagOf(key string) string {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, closed := strings.Cut(rest, "}"); closed {
			return tag
		}
	}
	return ""
}

// crc16 is CRC-16/XMODEM: polynomial 0x1021, initially 0.
func crc16(s string) uint16 {
	var crc uint16
	for i := range len(s) {
		x := crc>>8 ^ uint16(s[i])
		x ^= x >> 4
		crc = crc<<8 ^ x<<12 ^ x<<5 ^ x // the eight bits of x at once
	}
	return crc
}

// tagsOfSlots returns for each slot of a cluster a text that lies in the slot.
func tagsOfSlots() *[slots][3]byte {
	var tags [slots][3]byte
	for n := range 1 << 18 { // six bits of each letter from 0 to o
		tag := [3]byte{'0' + byte(n>>12), '0' + byte(n>>6&63), '0' + byte(n&63)}
		tags[slotOf(string(tag[:]))] = tag
	}
	return &tags
}
