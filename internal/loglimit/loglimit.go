// Package loglimit keeps a program from logging one thing over and over.
package loglimit

import (
	"sync/atomic"
	"time"
)

// Limiter passes one log line per interval and counts the others. The zero value is ready, and
// passes the first line. Safe for concurrent use.
type Limiter struct {
	last   atomic.Int64 // Unix nanoseconds of the last line; 0: no line yet
	missed atomic.Uint64
}

// Due reports whether to log now, and the number of lines left out since the last one. A clock that
// has gone back does not keep a line back.
func (l *Limiter) Due(interval time.Duration) (missed uint64, ok bool) {
	now, last := time.Now().UnixNano(), l.last.Load()
	if last != 0 && now >= last && now-last < int64(interval) || !l.last.CompareAndSwap(last, now) {
		l.missed.Add(1)
		return 0, false
	}
	return l.missed.Swap(0), true
}
