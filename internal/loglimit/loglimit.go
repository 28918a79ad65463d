// Package loglimit keeps a program from logging one thing over and over.
package loglimit

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// Limiter passes one log line per interval, or some lines at once, and counts the others. The zero
// value is ready, and passes the first line. Safe for concurrent use.
type Limiter struct {
	next   atomic.Int64 // Unix nanoseconds from which on a line is due, were there no lines at once; 0: now
	missed atomic.Uint64
}

// Due reports whether to log now, and the number of lines left out since the last one. A clock that
// has gone back does not keep a line back.
func (l *Limiter) Due(interval time.Duration) (missed uint64, ok bool) { return l.DueOf(1, interval) }

// DueOf is Due for that many lines at once, and then one per interval. All calls on a Limiter must
// have the same arguments.
func (l *Limiter) DueOf(atOnce int, interval time.Duration) (missed uint64, ok bool) {
	now, was := time.Now().UnixNano(), l.next.Load()
	earlier := int64(atOnce-1) * int64(interval)
	next := max(was, now-earlier)
	if next > now+int64(interval) { // the clock has gone back
		next = now - earlier
	}
	if next > now || !l.next.CompareAndSwap(was, next+int64(interval)) {
		l.missed.Add(1)
		return 0, false
	}
	return l.missed.Swap(0), true
}

// Handler passes the lines of a library whose texts others can cause: at most one each second.
func Handler(h slog.Handler) slog.Handler { return &handler{Handler: h, limiter: new(Limiter)} }

type handler struct {
	slog.Handler
	limiter *Limiter
}

// Handle implements [slog.Handler].
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	missed, due := h.limiter.Due(time.Second)
	if !due {
		return nil
	}
	r = r.Clone()
	r.AddAttrs(slog.Uint64("not_logged", missed))
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(attrs), h.limiter}
}

// WithGroup implements [slog.Handler].
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.limiter}
}
