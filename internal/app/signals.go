package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/weirproxy/weir/internal/rules/reload"
)

// signals turns the signals of the process into contexts: SIGTERM and SIGINT end stop, a second
// signal ends forceStop. SIGHUP reloads the rules.
type signals struct {
	failed          context.Context //nolint:containedctx // ends when a part of the process fails
	fail            context.CancelCauseFunc
	stop, forceStop stopper
	stops           chan os.Signal
	reloads         chan os.Signal
}

// notify subscribes to the signals, and to the end of ctx, which is a stop. Until close, no signal
// ends the process by itself.
func notify(ctx context.Context) *signals {
	s := &signals{
		stops:   make(chan os.Signal, 8),
		reloads: make(chan os.Signal, 1), // one that waits is as good as many
	}
	s.failed, s.fail = context.WithCancelCause(context.WithoutCancel(ctx))
	s.stop, s.forceStop = newStops(ctx, s.failed)
	signal.Notify(s.stops, syscall.SIGTERM, syscall.SIGINT)
	go notifyStops(s.failed, s.stops, s.stop, s.forceStop)
	signal.Notify(s.reloads, syscall.SIGHUP)
	return s
}

func (s *signals) close() {
	signal.Stop(s.reloads)
	signal.Stop(s.stops)
	s.fail(nil)
}

// load loads the first rules. A stop abandons that: load logs the cause and returns errStopped.
func (s *signals) load(r *reload.Reloader, logger *slog.Logger) (err error) {
	done := make(chan error, 1)
	go func() { done <- r.Load(s.stop) }()
	select {
	case err = <-done:
	case <-s.stop.Done():
	}
	if s.stop.Err() == nil {
		return err
	}
	logger.LogAttrs(s.stop, slog.LevelInfo, "stopped", slog.String("cause", context.Cause(s.stop).Error()))
	return errStopped
}

// stopper is a context whose cause says why the process stops.
type stopper struct {
	context.Context
	cancel context.CancelCauseFunc
}

// newStops returns two contexts that end when failed ends. stop also ends with ctx.
func newStops(ctx, failed context.Context) (stop, forceStop stopper) {
	newStopper := func() stopper {
		c, cancel := context.WithCancelCause(failed)
		return stopper{c, cancel}
	}
	stop, forceStop = newStopper(), newStopper()
	context.AfterFunc(ctx, func() { stop.cancel(context.Cause(ctx)) })
	return stop, forceStop
}

// echo is the time in which a repeated signal is the same signal: `timeout` and other programs
// signal both a process and its group.
const echo = 200 * time.Millisecond

// notifyStops acts on signals until background ends: the first signal ends stop, the next one
// forceStop. The loop never blocks, so no signal is lost.
func notifyStops(background context.Context, signals <-chan os.Signal, stop, forceStop stopper) {
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
				forceStop.cancel(fmt.Errorf("second signal: %s", s))
			}
		}
	}
}

// notifyReloads reloads at each signal until background ends. The channel holds one signal, so
// signals during a reload cause one more.
func notifyReloads(background context.Context, signals <-chan os.Signal, reload func(context.Context) error) {
	for {
		select {
		case <-background.Done():
			return
		case <-signals:
			_ = reload(background) // logged
		}
	}
}
