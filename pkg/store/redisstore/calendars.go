package redisstore

import (
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Numbers of windows for which the script needs no boundaries.
const (
	sinceEpoch = iota
	firstHit
	ofCalendars // the first calendar of a batch
)

// calendar returns the number of the windows of a calendar in the request of a batch.
func (b *batch) calendar(c *algorithms.Calendar) uint32 {
	switch {
	case c == nil:
		return sinceEpoch
	case c.FirstHit():
		return firstHit
	}
	n := slices.Index(b.windows, c)
	if n < 0 {
		n = len(b.windows)
		b.windows = append(b.windows, c)
	}
	return uint32(n) + ofCalendars
}

// appendCalendars appends the windows around an instant, see calendars.lua. The clock of Redis
// chooses among them.
func (b *batch) appendCalendars(dst []byte, now algorithms.Instant) []byte {
	for _, c := range b.windows {
		for _, start := range c.Around(now) {
			dst = appendInt(dst, max(0, int64(start))/int64(Granularity), 7)
		}
	}
	return dst
}
