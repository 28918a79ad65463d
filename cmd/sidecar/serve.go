package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/reload"
	"github.com/weirproxy/weir/pkg/server"
	"github.com/weirproxy/weir/pkg/tracing"
)

// newServe returns the command that serves.
func newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve rate limits (also when no command is given)",
		Long: `Serve rate limits to Envoy until SIGTERM or SIGINT. SIGHUP reads the rules again, as a change of their files does.

SIGTERM drains: health says NOT_SERVING and /readyz 503 at once, requests are answered until none has come for a second or
most of --drain-timeout is over, then what is in flight is finished, and at --drain-timeout broken. A second signal stops at
once.`,
		Args: arguments(0, 0, "none; rules are named with --rules"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := readConfig(cmd.Flags())
			if err != nil {
				return err
			}
			return serve(cmd.Context(), c, cmd.ErrOrStderr())
		},
	}
	addSettings(cmd.Flags())
	return cmd
}

// instance is a running sidecar.
type instance struct {
	config    config
	logger    *slog.Logger
	traces    *tracing.Tracing // nil when there are none
	reloader  *reload.Reloader
	feed      *feed // nil when no rules come by xDS
	server    *server.Server
	http      *http.Server
	listeners []listener
}

// serve runs a sidecar until ctx ends or a signal says so. Rules with mistakes end it before it listens.
func serve(ctx context.Context, c config, stderr io.Writer) error {
	failed, fail := context.WithCancelCause(context.WithoutCancel(ctx))
	defer fail(nil)
	stop, hurry := newStops(ctx, failed)
	stops := make(chan os.Signal, 8)
	signal.Notify(stops, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(stops)
	go heed(failed, stops, stop, hurry)
	reloads := make(chan os.Signal, 1) // one that waits is as good as many
	signal.Notify(reloads, syscall.SIGHUP)
	defer signal.Stop(reloads)
	logger := newLogger(stderr, c.LogLevel, c.LogFormat)
	limitMemory(ctx, logger)

	traces, err := newTracing(ctx, &c, logger)
	if err != nil {
		return err
	}
	defer traces.Close(hurriedly())
	secure, release, err := c.GRPCTLS.keep(logger)
	if err != nil {
		return err
	}
	defer release()
	counts, err := newStores(&c, logger, traces)
	if err != nil {
		return err
	}
	defer counts.close()
	lim, err := limiter.New(counts.store, limiter.Options{
		MaxDescriptors: c.MaxDescriptors,
		MaxLogEntries:  uint32(c.MaxLogEntries),
		DetailedValues: c.DetailedMetricValues,
		OnStoreError:   c.onStoreError(),
	})
	if err != nil {
		return err
	}
	i := &instance{config: c, logger: logger, traces: traces}
	i.reloader, err = reload.New(reload.Options{
		Limiter:       lim,
		Paths:         c.Rules,
		Settings:      c.File,
		Pushed:        c.XDS.Address != "",
		MaxLogEntries: uint32(c.MaxLogEntries),
		Granularity:   granularity(c.Store),
		Debounce:      c.ReloadDebounce,
		Poll:          c.ReloadPoll,
		Logger:        logger,
	})
	if err != nil {
		return err
	}
	err = unlessOver(stop, i.reloader.Load)
	if stop.Err() != nil {
		logger.LogAttrs(ctx, slog.LevelInfo, "stopped", slog.String("cause", context.Cause(stop).Error()))
		return nil
	}
	if err != nil {
		return bad(err, exitBad)
	}
	if err := counts.unfit(stop); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	if i.feed, err = newFeed(&c, i.reloader, lim, registry, logger); err != nil {
		return err
	}
	i.server, err = server.New(server.Options{
		Limiter:         lim,
		Logger:          logger,
		Registry:        registry,
		Stats:           counts.stats,
		Remote:          counts.remote(),
		Ready:           i.feed.ready(counts.ready(&c)),
		Sources:         c.sources(),
		Reload:          i.reloader.Reload,
		MaxRequestBytes: c.MaxRequestBytes,
		Reflection:      c.Reflection,
		Pprof:           c.Pprof,
		TLS:             secure,
		Tracer:          traces.Tracer(),
		Propagator:      traces.Propagator(),
		Headers:         c.headers(),
		DynamicMetadata: c.DynamicMetadata,
	})
	if err != nil {
		return err
	}
	defer i.server.Close()
	if i.listeners, err = i.listen(ctx); err != nil {
		return err
	}
	return i.run(failed, fail, reloads, stop, hurry)
}

// sources returns where rules come from, as the operator named it.
func (c *config) sources() []string {
	all := slices.Concat(c.Rules, c.XDS.source())
	if c.File == "" {
		return all
	}
	return append(all, c.File)
}

// headers returns the response headers that were asked for.
func (c *config) headers() server.Headers {
	return server.Headers{
		RateLimit:  slices.Contains(c.ResponseHeaders, "ratelimit"),
		IETF:       slices.Contains(c.ResponseHeaders, "ietf"),
		RetryAfter: slices.Contains(c.ResponseHeaders, "retry-after"),
		Limit:      c.LimitHeader,
		Remaining:  c.RemainingHeader,
		Reset:      c.ResetHeader,
	}
}

// run serves on all listeners until stop ends; when one of them fails it calls fail, which ends stop and hurry. It returns
// when all that it started has ended, but for a reload: what that reads may never end.
func (i *instance) run(ctx context.Context, fail context.CancelCauseFunc, reloads <-chan os.Signal, stop, hurry stopper) error {
	i.http = &http.Server{
		Handler:           i.server.HTTP(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      2 * time.Minute, // a profile takes 30 seconds unless asked for longer
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(i.logger.Handler(), slog.LevelWarn),
	}
	all, failed := errgroup.WithContext(ctx)
	context.AfterFunc(failed, func() { fail(context.Cause(failed)) })
	background, end := context.WithCancel(failed)
	go heedReloads(background, reloads, i.reloader.Reload)
	go func() { _ = i.reloader.Run(background) }() // nil
	all.Go(func() error { keepHeadroom(background); return nil })
	all.Go(func() error { return i.feed.run(background) })
	for _, l := range i.listeners {
		all.Go(func() error { return i.serveOn(l) })
	}
	i.logger.LogAttrs(ctx, slog.LevelInfo, "ready", slog.Int("gomaxprocs", runtime.GOMAXPROCS(0)))

	all.Go(func() error {
		defer end()
		<-stop.Done()
		i.shutdown(stop, hurry)
		return nil
	})
	return all.Wait()
}

// serveOn serves on a listener until it is closed.
func (i *instance) serveOn(l listener) error {
	var err error
	switch l.server {
	case grpcServer:
		err = i.server.GRPC().Serve(l.Listener)
	case adminServer:
		err = i.server.Admin().Serve(l.Listener)
	default:
		err = i.http.Serve(l.Listener)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// newLogger returns the logger of --log-level and --log-format, which are valid.
func newLogger(w io.Writer, level, format string) *slog.Logger {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		least = slog.LevelInfo
	}
	o := &slog.HandlerOptions{Level: least}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
