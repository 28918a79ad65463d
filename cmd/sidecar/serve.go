package main

import (
	"context"
	"io"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/serving"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/reload"
	"github.com/weirproxy/weir/pkg/server"
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

// serve runs a sidecar until ctx ends or a signal says so. Rules with mistakes end it before it listens.
func serve(ctx context.Context, c config, stderr io.Writer) error {
	signals := serving.Heed(ctx)
	defer signals.Close()
	logger := newLogger(stderr, c.LogLevel, c.LogFormat)
	serving.LimitMemory(ctx, logger)

	traces, err := newTracing(ctx, &c, logger)
	if err != nil {
		return err
	}
	defer traces.Close(serving.Hurriedly())
	secure, release, err := c.GRPCTLS.keep(logger)
	if err != nil {
		return err
	}
	defer release()
	counts, err := newStores(&c, logger, traces)
	if err != nil {
		return err
	}
	defer counts.Close()
	lim, err := limiter.New(counts.Store, limiter.Options{
		MaxDescriptors: c.MaxDescriptors,
		MaxLogEntries:  uint32(c.MaxLogEntries),
		DetailedValues: c.DetailedMetricValues,
		OnStoreError:   c.onStoreError(),
	})
	if err != nil {
		return err
	}
	reloader, err := reload.New(reload.Options{
		Limiter:       lim,
		Paths:         c.Rules,
		Settings:      c.File,
		Pushed:        c.XDS.Address != "",
		Hint:          "name a file or directory with --rules, or put a list domains into the settings file",
		MaxLogEntries: uint32(c.MaxLogEntries),
		Granularity:   counts.Granularity(),
		Debounce:      c.ReloadDebounce,
		Poll:          c.ReloadPoll,
		Logger:        logger,
	})
	if err != nil {
		return err
	}
	over, err := signals.Load(reloader, logger)
	if over {
		return nil
	}
	if err != nil {
		return bad(err, exitBad)
	}
	if err := counts.Unfit(signals.Stop()); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	feed, err := newFeed(&c, reloader, lim, registry, logger)
	if err != nil {
		return err
	}
	s, err := server.New(server.Options{
		Limiter:         lim,
		Logger:          logger,
		Registry:        registry,
		Stats:           counts.Stats,
		Remote:          counts.Remote(),
		Ready:           feed.Ready(c.ready(counts)),
		Sources:         c.sources(),
		Reload:          reloader.Reload,
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
	defer s.Close()
	p := serving.Process{
		Logger:       logger,
		Server:       s,
		Reloader:     reloader,
		Endpoints:    c.endpoints(s),
		Traces:       traces,
		DrainTimeout: c.DrainTimeout,
		Background:   []func(context.Context) error{feed.Run},
	}
	return p.Serve(ctx, signals)
}

// endpoints returns where everything is served.
func (c *config) endpoints(s *server.Server) []serving.Endpoint {
	return []serving.Endpoint{
		{
			Setting: "grpc-address", Name: "grpc", Network: "tcp", Address: c.GRPCAddress, GRPC: s.GRPC(),
			Shared: c.GRPCReusePort, TLS: c.GRPCTLS.CertFile != "",
		},
		{Setting: "grpc-socket", Name: "grpc", Network: "unix", Address: c.GRPCSocket, Mode: c.GRPCSocketMode, GRPC: s.GRPC()},
		{Setting: "http-address", Name: "http", Network: "tcp", Address: c.HTTPAddress, HTTP: s.HTTP()},
		{Setting: "admin-address", Name: "admin", Network: "tcp", Address: c.AdminAddress, GRPC: s.Admin()},
	}
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
