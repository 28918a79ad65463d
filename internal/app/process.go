package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirproxy/weir/internal/version"
	"github.com/weirproxy/weir/internal/wire"
)

// serve listens, serves until signals say stop or a part fails, and drains. Everything that serve
// started has ended when it returns, except for a reload: reading files may never end.
func (p *process) serve(ctx context.Context) error {
	signals := p.signals
	listeners, err := p.listen(ctx)
	if err != nil {
		return err
	}
	all, failed := errgroup.WithContext(signals.failed)
	context.AfterFunc(failed, func() { signals.fail(context.Cause(failed)) })
	background, end := context.WithCancel(failed)
	go notifyReloads(background, signals.reloads, p.reloader.Reload)
	go func() { _ = p.reloader.Run(background) }() // nil
	for _, run := range p.background {
		all.Go(func() error { return run(background) })
	}
	var pages []*wire.HTTP
	for _, l := range listeners {
		if l.of.grpc != nil {
			all.Go(func() error { return l.of.grpc(l.Listener) })
			continue
		}
		page := p.newHTTP(l.of.http)
		pages = append(pages, page)
		all.Go(func() error {
			if err := page.Serve(l.Listener); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
	build := version.Read()
	p.Logger.LogAttrs(ctx, slog.LevelInfo, "ready", slog.Int("gomaxprocs", runtime.GOMAXPROCS(0)),
		slog.String("version", build.Version), slog.String("revision", build.Revision))

	all.Go(func() error {
		defer end()
		<-signals.stop.Done()
		p.shutdown(signals.stop, signals.forceStop, pages)
		return nil
	})
	return all.Wait()
}

// shutdown drains and stops. At the drain timeout, or forceStop, it cancels requests in flight.
func (p *process) shutdown(stop, forceStop context.Context, pages []*wire.HTTP) {
	timeout, logger := p.DrainTimeout, p.Logger
	ctx, cancel := context.WithTimeoutCause(forceStop, timeout, errors.New("the drain timeout is over"))
	defer cancel()
	log := context.WithoutCancel(forceStop)
	p.server.Drain()
	p.pages.Drain()
	logger.LogAttrs(log, slog.LevelInfo, "draining",
		slog.String("cause", context.Cause(stop).Error()), slog.String("drain_timeout", timeout.String()))

	// Envoy gets most of the time to notice. The rest is for requests in flight.
	noticing, noticed := context.WithTimeout(ctx, timeout*4/5)
	awaitQuiet(noticing, p.server.LastRequest)
	noticed()
	p.finish(ctx, pages)
	if ctx.Err() != nil {
		logger.LogAttrs(log, slog.LevelWarn, "requests in flight were canceled", slog.String("cause", context.Cause(ctx).Error()))
	}
	if p.state != nil { // no decision is made any more
		_ = p.state.Save(log) // logged
	}
	p.traces.Close(ctx) // sends the spans in the queue in the time that is left
	logger.LogAttrs(log, slog.LevelInfo, "stopped")
}

// quiet is the time without a request after which a drain ends: by then Envoy has noticed.
const quiet = time.Second

// awaitQuiet returns after a second without a request from now on, or when ctx ends.
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

// finish stops every server when its requests in flight are done, or when ctx ends.
func (p *process) finish(ctx context.Context, pages []*wire.HTTP) {
	var finishing sync.WaitGroup
	finishing.Go(p.server.GracefulStop)
	finishing.Go(p.pages.GracefulStop)
	for _, page := range pages {
		finishing.Go(func() {
			if page.Shutdown(ctx) != nil {
				_ = page.Close() // the connections report their own errors
			}
		})
	}
	closed := context.AfterFunc(ctx, func() {
		p.server.Close()
		p.pages.Close()
	})
	finishing.Wait()
	closed()
}
