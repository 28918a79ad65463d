// Package serving is what the programs of this project have in common once their settings are read: the store, listeners,
// signals, the memory of the process, and an end that loses no request. What to serve and where is theirs to say.
package serving

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirproxy/weir/pkg/reload"
	"github.com/weirproxy/weir/pkg/server"
	"github.com/weirproxy/weir/pkg/tracing"
)

// Process is what a program serves with. All but Traces and Background must be given.
type Process struct {
	Logger       *slog.Logger
	Server       *server.Server
	Reloader     *reload.Reloader
	Endpoints    []Endpoint       // those without an address are off
	Traces       *tracing.Tracing // nil when there are none
	DrainTimeout time.Duration    // most time from the stop to the end; 0 breaks what is in flight

	// Background runs beside the servers, until they have ended. What returns an error ends the process.
	Background []func(context.Context) error
}

// Serve listens, and serves until signals say stop or something fails. It returns when all that it started has ended, but for a
// reload: what that reads may never end.
func (p *Process) Serve(ctx context.Context, signals *Signals) error {
	listeners, err := p.listen(ctx)
	if err != nil {
		return err
	}
	all, failed := errgroup.WithContext(signals.failed)
	context.AfterFunc(failed, func() { signals.fail(context.Cause(failed)) })
	background, end := context.WithCancel(failed)
	go heedReloads(background, signals.reloads, p.Reloader.Reload)
	go func() { _ = p.Reloader.Run(background) }() // nil
	all.Go(func() error { keepHeadroom(background); return nil })
	for _, run := range p.Background {
		all.Go(func() error { return run(background) })
	}
	var pages []*http.Server
	for _, l := range listeners {
		if l.of.GRPC != nil {
			all.Go(func() error { return l.of.GRPC.Serve(l.Listener) })
			continue
		}
		page := p.newHTTP(l.of.HTTP)
		pages = append(pages, page)
		all.Go(func() error {
			if err := page.Serve(l.Listener); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
	p.Logger.LogAttrs(ctx, slog.LevelInfo, "ready", slog.Int("gomaxprocs", runtime.GOMAXPROCS(0)))

	all.Go(func() error {
		defer end()
		<-signals.stop.Done()
		p.shutdown(signals.stop, signals.hurry, pages)
		return nil
	})
	return all.Wait()
}

// newHTTP returns a server of pages.
func (p *Process) newHTTP(pages http.Handler) *http.Server {
	return &http.Server{
		Handler:           pages,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      2 * time.Minute, // a profile takes 30 seconds unless asked for longer
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(p.Logger.Handler(), slog.LevelWarn),
	}
}

// Hurriedly returns a context that is over, for what is closed once there is nothing left to wait for.
func Hurriedly() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
