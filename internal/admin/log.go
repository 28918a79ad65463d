package admin

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/internal/admin/watch"
	"github.com/weirproxy/weir/internal/printable"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// MaxLogDenials is the largest rate of Options.LogDenials.
const MaxLogDenials = 1000

// denials logs requests that were answered OVER_LIMIT, so many per second. The log is written
// beside the requests: a log that is slow loses lines, and slows no request. Safe for concurrent
// use.
type denials struct {
	hub    *watch.Hub
	logger *slog.Logger

	mu        sync.Mutex // guards the rest
	perSecond float64    // 0: none
	end       func()     // ends the goroutine that logs; nil without one
	closed    bool
}

// validRate reports whether so many denials per second may be logged.
func validRate(perSecond float64) bool {
	return perSecond >= 0 && perSecond <= MaxLogDenials && !math.IsNaN(perSecond)
}

// set changes the rate, which must be valid; 0 logs none.
func (d *denials) set(perSecond float64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || perSecond == d.perSecond {
		return nil
	}
	var w *watch.Watcher
	if perSecond > 0 {
		var err error
		if w, err = d.hub.SubscribeDenied(perSecond); err != nil {
			return err
		}
	}
	d.endLocked()
	d.perSecond = perSecond
	if w != nil {
		ctx, cancel := context.WithCancel(context.Background())
		go d.log(ctx, w)
		d.end = cancel
	}
	return nil
}

func (d *denials) rate() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.perSecond
}

// close ends the log of denials for good.
func (d *denials) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endLocked()
	d.closed = true
}

func (d *denials) endLocked() {
	if d.end != nil {
		d.end()
		d.end = nil
	}
}

// log logs the requests of a watcher until ctx ends.
func (d *denials) log(ctx context.Context, w *watch.Watcher) {
	defer w.Close()
	missed := uint64(0) // since the last line
	for {
		m, err := w.Next(ctx)
		if err != nil {
			return
		}
		missed += m.GetLeftOut() + m.GetLost()
		for _, r := range m.GetRequests() {
			d.line(ctx, r, missed)
			missed = 0
		}
	}
}

// line logs a denied request, by the first descriptor that a limit denied. The level is WARN,
// because ratelimit logs nothing below by default.
func (d *denials) line(ctx context.Context, r *adminv1.WatchedRequest, missed uint64) {
	for _, one := range r.GetDescriptors() {
		if one.GetOutcome() != adminv1.Outcome_OUTCOME_OVER_LIMIT {
			continue
		}
		attrs := []slog.Attr{
			slog.String("domain", printable.Text(r.GetDomain())), slog.String("descriptor", render.EntriesText(one.GetEntries())),
			slog.String("rule", one.GetRule()), slog.String("place", render.Place(one.GetFile(), one.GetLine())), slog.Int64("hits", one.GetHits()),
		}
		if _, l := render.Deciding(one); l != nil {
			attrs = append(attrs, slog.String("limit", render.LimitText(l.GetLimit())), waitAttr(one, l))
		}
		d.logger.LogAttrs(ctx, slog.LevelWarn, "a request was denied", append(attrs, slog.Uint64("not_logged", missed))...)
		return
	}
}

// waitAttr says when denied hits would pass.
func waitAttr(d *adminv1.WatchedDescriptor, l *adminv1.WatchedLimit) slog.Attr {
	if render.Never(d, l) {
		return slog.Bool("never", true)
	}
	return slog.String("retry_after", l.GetRetryAfter().AsDuration().Round(time.Millisecond).String())
}

// levelOf returns the level of a name in any case.
func levelOf(name string) (slog.Level, error) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if strings.EqualFold(name, level.String()) {
			return level, nil
		}
	}
	return 0, fmt.Errorf("level: %.40q: must be debug, info, warn or error", name)
}

// SetLogLevel implements the AdminService. A request with a mistake changes nothing. No level
// suppresses the line about a change.
func (a *service) SetLogLevel(ctx context.Context, in *adminv1.SetLogLevelRequest) (*adminv1.SetLogLevelResponse, error) {
	var level *slog.Level
	if in.GetLevel() != "" {
		to, err := levelOf(in.GetLevel())
		switch {
		case err != nil:
			return nil, status.Error(codes.InvalidArgument, err.Error())
		case a.options.LogLevel == nil:
			return nil, status.Error(codes.Unimplemented, "the level of this server's log cannot change")
		}
		level = &to
	}
	if in.DenialsPerSecond != nil {
		rate := in.GetDenialsPerSecond()
		if !validRate(rate) {
			return nil, status.Errorf(codes.InvalidArgument, "denials_per_second: %v: must be a number from 0 to %d", rate, MaxLogDenials)
		}
		if err := a.denials.set(rate); err != nil {
			return nil, status.Error(codes.ResourceExhausted, err.Error())
		}
	}
	if level != nil {
		a.options.LogLevel.Set(*level)
	}
	out := &adminv1.SetLogLevelResponse{DenialsPerSecond: a.denials.rate()}
	lowest := slog.LevelInfo
	if a.options.LogLevel != nil {
		lowest = a.options.LogLevel.Level()
		out.Level = strings.ToLower(lowest.String())
	}
	if level != nil || in.DenialsPerSecond != nil {
		a.options.Logger.LogAttrs(ctx, max(slog.LevelWarn, lowest), "an operator changed the log",
			slog.String("level", out.GetLevel()), slog.Float64("denials_per_second", out.GetDenialsPerSecond()))
	}
	return out, nil
}
