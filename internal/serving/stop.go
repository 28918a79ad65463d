package serving

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/weirproxy/weir/pkg/reload"
)

// Signals is what tells a process to stop, to hurry and to read its rules again: SIGTERM and SIGINT stop it, a second one
// hurries, SIGHUP reloads. All methods are safe for concurrent use.
type Signals struct {
	failed      context.Context //nolint:containedctx // ends when something failed, whoever asks
	fail        context.CancelCauseFunc
	stop, hurry stopper
	stops       chan os.Signal
	reloads     chan os.Signal
}

// Heed begins to heed signals, and the end of ctx, which is a stop. Until Close none of them ends the process by itself.
func Heed(ctx context.Context) *Signals {
	s := &Signals{
		stops:   make(chan os.Signal, 8),
		reloads: make(chan os.Signal, 1), // one that waits is as good as many
	}
	s.failed, s.fail = context.WithCancelCause(context.WithoutCancel(ctx))
	s.stop, s.hurry = newStops(ctx, s.failed)
	signal.Notify(s.stops, syscall.SIGTERM, syscall.SIGINT)
	go heed(s.failed, s.stops, s.stop, s.hurry)
	signal.Notify(s.reloads, syscall.SIGHUP)
	return s
}

// Stop returns a context that ends when it is time to stop. Its cause says why.
func (s *Signals) Stop() context.Context { return s.stop }

// Load loads the first rules, which may take as long as they like. When it is time to stop before that has ended, it leaves that
// alone, as there is nothing to lose, and returns true; the log says why.
func (s *Signals) Load(r *reload.Reloader, logger *slog.Logger) (over bool, err error) {
	done := make(chan error, 1)
	go func() { done <- r.Load(s.stop) }()
	select {
	case err = <-done:
	case <-s.stop.Done():
	}
	if s.stop.Err() == nil {
		return false, err
	}
	logger.LogAttrs(s.stop, slog.LevelInfo, "stopped", slog.String("cause", context.Cause(s.stop).Error()))
	return true, nil
}

// Close heeds signals no more.
func (s *Signals) Close() {
	signal.Stop(s.reloads)
	signal.Stop(s.stops)
	s.fail(nil)
}

// quiet is how long no request must have come for a drain to be over: Envoy has noticed then.
const quiet = time.Second

// stopper ends when it is time to stop, or when there is no more time. Its cause says why.
type stopper struct {
	context.Context
	cancel context.CancelCauseFunc
}

// newStops returns a stop that ends with ctx, or at once when something failed, and a hurry that ends when something failed.
func newStops(ctx, failed context.Context) (stop, hurry stopper) {
	newStopper := func(parent context.Context) stopper {
		c, cancel := context.WithCancelCause(parent)
		return stopper{c, cancel}
	}
	hurry = newStopper(failed)
	stop = newStopper(failed)
	context.AfterFunc(ctx, func() { stop.cancel(context.Cause(ctx)) })
	return stop, hurry
}

// echo is how long after a signal to stop another one is taken for the same: `timeout`, and others that send it to a process
// and to its group, send it twice.
const echo = 200 * time.Millisecond

// heed acts on signals to stop until background ends: the first one stops, the next one hurries. It waits for nothing else,
// so that none is lost.
func heed(background context.Context, signals <-chan os.Signal, stop, hurry stopper) {
	var first time.Time
	for {
		select {
		case <-background.Done():
			return
		case s := <-signals:
			switch {
			case first.IsZero():
				first = time.Now()
				stop.cancel(fmt.Errorf("signal: %s", s))
			case time.Since(first) > echo:
				hurry.cancel(fmt.Errorf("second signal: %s", s))
			}
		}
	}
}

// heedReloads reloads at each signal until background ends. Signals that come while it does are one when the channel holds one.
func heedReloads(background context.Context, signals <-chan os.Signal, reload func(context.Context) error) {
	for {
		select {
		case <-background.Done():
			return
		case <-signals:
			_ = reload(background) // logged
		}
	}
}

// shutdown drains and stops everything that serves, within the drain timeout. It breaks what is in flight when that is over,
// or when hurry ends.
func (p *Process) shutdown(stop, hurry context.Context, pages []*http.Server) {
	patience := p.DrainTimeout
	ctx, cancel := context.WithTimeoutCause(hurry, patience, errors.New("the drain timeout is over"))
	defer cancel()
	log := context.WithoutCancel(hurry)
	p.Server.Drain()
	p.Logger.LogAttrs(log, slog.LevelInfo, "draining",
		slog.String("cause", context.Cause(stop).Error()), slog.String("drain_timeout", patience.String()))

	// Most of the time is for Envoy to notice, the rest to finish what is in flight.
	noticing, enough := context.WithTimeout(ctx, patience*4/5)
	awaitQuiet(noticing, p.Server.LastRequest)
	enough()
	p.finish(ctx, pages)
	if ctx.Err() != nil {
		p.Logger.LogAttrs(log, slog.LevelWarn, "broke what was in flight", slog.String("cause", context.Cause(ctx).Error()))
	}
	p.Traces.Close(ctx) // what is left of the time is for spans that wait
	p.Logger.LogAttrs(log, slog.LevelInfo, "stopped")
}

// awaitQuiet returns when no request has come for the time of quiet, counted from now at the earliest, or when ctx ends.
func awaitQuiet(ctx context.Context, last func() time.Time) {
	start := time.Now()
	for {
		latest := last()
		if latest.Before(start) {
			latest = start
		}
		left := quiet - time.Since(latest)
		if left <= 0 {
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// finish stops all servers when what is in flight is finished, or when ctx ends.
func (p *Process) finish(ctx context.Context, pages []*http.Server) {
	var finishing sync.WaitGroup
	finishing.Go(p.Server.GracefulStop)
	for _, page := range pages {
		finishing.Go(func() {
			if page.Shutdown(ctx) != nil {
				_ = page.Close() // breaking connections is what it is for
			}
		})
	}
	broken := context.AfterFunc(ctx, p.Server.Close)
	finishing.Wait()
	broken()
}
