package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

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

// unlessOver does what reads files, which may take as long as it likes, and returns its error; or that of ctx as soon as ctx
// ends, and leaves it alone then: there is nothing to lose.
func unlessOver(ctx context.Context, do func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// shutdown drains and stops everything that serves, within the drain timeout. It breaks what is in flight when that is over,
// or when hurry ends.
func (i *instance) shutdown(stop, hurry context.Context) {
	patience := i.config.DrainTimeout
	ctx, cancel := context.WithTimeoutCause(hurry, patience, errors.New("the drain timeout is over"))
	defer cancel()
	log := context.WithoutCancel(hurry)
	i.server.Drain()
	i.logger.LogAttrs(log, slog.LevelInfo, "draining",
		slog.String("cause", context.Cause(stop).Error()), slog.String("drain_timeout", patience.String()))

	// Most of the time is for Envoy to notice, the rest to finish what is in flight.
	noticing, enough := context.WithTimeout(ctx, patience*4/5)
	awaitQuiet(noticing, i.server.LastRequest)
	enough()
	i.finish(ctx)
	if ctx.Err() != nil {
		i.logger.LogAttrs(log, slog.LevelWarn, "broke what was in flight", slog.String("cause", context.Cause(ctx).Error()))
	}
	i.traces.Close(ctx) // what is left of the time is for spans that wait
	i.logger.LogAttrs(log, slog.LevelInfo, "stopped")
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
func (i *instance) finish(ctx context.Context) {
	var finishing sync.WaitGroup
	finishing.Go(i.server.GracefulStop)
	finishing.Go(func() {
		if i.http.Shutdown(ctx) != nil {
			_ = i.http.Close() // breaking connections is what it is for
		}
	})
	broken := context.AfterFunc(ctx, i.server.Close)
	finishing.Wait()
	broken()
}
