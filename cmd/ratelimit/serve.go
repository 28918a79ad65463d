package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/serving"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/reload"
	"github.com/weirproxy/weir/pkg/server"
)

// drainTimeout is the most time from a stop to the end. The original has none; Kubernetes kills after 30 seconds.
const drainTimeout = 10 * time.Second

// serve runs the service until ctx ends or a signal says so. Rule files with mistakes end it before it listens.
func serve(ctx context.Context, c *config, stderr io.Writer) error {
	signals := serving.Heed(ctx)
	defer signals.Close()
	logger := newLogger(stderr, c)
	serving.LimitMemory(ctx, logger)

	traces, err := c.Tracing.start(ctx, logger)
	if err != nil {
		return err
	}
	defer traces.Close(serving.Hurriedly())
	secure, release, err := c.GRPCTLS.keep(logger)
	if err != nil {
		return err
	}
	defer release()
	counts, err := newStores(c, logger, traces)
	if err != nil {
		return err
	}
	defer counts.Close()
	lim, err := limiter.New(counts.Store, limiter.Options{
		NearLimit:    c.NearLimit,
		DropRejected: c.StopCounting,
		Shadow:       c.Shadow,
		Quota:        c.Quota,
		NeedRules:    c.overXDS(), // as the original: what then becomes of a request is Envoy's to say
	})
	if err != nil {
		return err
	}
	reloader, err := reload.New(c.rules(lim, counts.Granularity(), logger))
	if err != nil {
		return err
	}
	over, err := signals.Load(reloader, logger)
	if over {
		return nil
	}
	if err != nil {
		if !c.ForceStart || !missing(err) {
			return err
		}
		logger.LogAttrs(ctx, slog.LevelWarn, "there are no rules yet", slog.String("error", err.Error()))
		lim.DoWithoutRules(time.Now())
	}
	if err := counts.Unfit(signals.Stop()); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	feed, err := c.XDS.feed(c, reloader, lim, registry, logger)
	if err != nil {
		return err
	}
	s, err := server.New(server.Options{
		Limiter:               lim,
		Logger:                logger,
		Registry:              registry,
		Stats:                 counts.Stats,
		Remote:                counts.Remote(),
		Ready:                 feed.Ready(c.ready(lim, counts)),
		Sources:               c.sources(),
		Reload:                reloader.Reload,
		MaxConnectionAge:      c.GRPCAge,
		MaxConnectionAgeGrace: c.GRPCGrace,
		TLS:                   secure,
		Tracer:                traces.Tracer(),
		Propagator:            traces.Propagator(),
		Headers:               server.Headers{RateLimit: c.Headers, Limit: c.LimitHeader, Remaining: c.RemainingHeader, Reset: c.ResetHeader},
		DynamicMetadata:       c.DynamicMetadata,
	})
	if err != nil {
		return err
	}
	defer s.Close()
	figures, tell, err := c.Stats.start(s, lim, counts, registry, logger)
	if err != nil {
		return err
	}
	p := serving.Process{
		Logger:       logger,
		Server:       s,
		Reloader:     reloader,
		Endpoints:    c.endpoints(s, figures.WriteText),
		Traces:       traces,
		DrainTimeout: drainTimeout,
		Background:   []func(context.Context) error{feed.Run, tell},
	}
	return p.Serve(ctx, signals)
}

// rules returns how rules are read: from files, or not at all where they come by xDS.
func (c *config) rules(lim *limiter.Limiter, granularity time.Duration, logger *slog.Logger) reload.Options {
	o := reload.Options{
		Limiter:      lim,
		Granularity:  granularity,
		MergeDomains: c.Merge,
		DropRejected: c.StopCounting,
		OriginalKeys: c.Backend == backendRedis && c.Keys.original(),
		Hint:         c.Files.Dir + ": RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY say where their files are",
		Logger:       logger,
	}
	if c.overXDS() {
		o.Pushed = true
	} else {
		o.Paths, o.Files = []string{c.Files.Dir}, ruleFiles(c.Files.DotFiles)
	}
	return o
}

// missing reports whether an error of loading rules is that there are none, rather than that they have mistakes.
func missing(err error) bool {
	return errors.Is(err, reload.ErrNoRules) || errors.Is(err, reload.ErrNoFiles) || errors.Is(err, fs.ErrNotExist)
}

// sources returns where rules come from.
func (c *config) sources() []string {
	if c.overXDS() {
		return []string{c.XDS.source()}
	}
	return []string{c.Files.Dir}
}

// ready returns what tells whether health is good, but for rules that have to come by xDS; nil where it always is.
func (c *config) ready(lim *limiter.Limiter, counts *serving.Stores) func() error {
	if !c.HealthyWithRules && !c.HealthyWithRedis {
		return nil
	}
	return func() error {
		if c.HealthyWithRules && len(lim.Status().Rules.Domains()) == 0 {
			return reload.ErrNoRules
		}
		if c.HealthyWithRedis {
			return counts.Ready()
		}
		return nil
	}
}

// endpoints returns where everything is served. The original shares its ports with other processes, those of figures and of debug
// pages left out.
func (c *config) endpoints(s *server.Server, stats func(io.Writer) error) []serving.Endpoint {
	return []serving.Endpoint{
		{
			Setting: "GRPC_HOST, GRPC_PORT", Name: "grpc", Network: "tcp", Address: c.GRPCAddress, GRPC: s.GRPC(),
			Shared: true, TLS: c.GRPCTLS.On,
		},
		{Setting: "GRPC_UDS", Name: "grpc", Network: "unix", Address: c.GRPCSocket, Mode: 0o660, GRPC: s.GRPC()},
		{Setting: "HOST, PORT", Name: "http", Network: "tcp", Address: c.HTTPAddress, Shared: true, HTTP: s.Legacy()},
		{Setting: "DEBUG_HOST, DEBUG_PORT", Name: "debug", Network: "tcp", Address: c.DebugAddress, HTTP: s.Debug(stats)},
		{Setting: "PROMETHEUS_ADDR", Name: "metrics", Network: "tcp", Address: c.Stats.Prometheus, HTTP: s.Metrics(c.Stats.Path)},
	}
}
