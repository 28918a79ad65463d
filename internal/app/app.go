// Package app runs a rate limit service from one Config: it connects stores, rules, servers and
// listeners, and handles signals and the drain. The programs of this project translate their
// settings to a Config and call Run.
package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/admin"
	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/rules/xds"
	"github.com/weirproxy/weir/internal/statistics"
	"github.com/weirproxy/weir/internal/tracing"
	"github.com/weirproxy/weir/internal/version"
	"github.com/weirproxy/weir/internal/wire/certificates"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/server"
)

// RulesError is the failure of the first load: each line is about one mistake in the rules.
type RulesError struct{ error }

// Unwrap returns the error of package reload.
func (e RulesError) Unwrap() error { return e.error }

// Run serves until ctx ends, a signal says stop or something fails. Rules with mistakes end it
// before it listens, with a RulesError. A process calls Run once.
func Run(ctx context.Context, c Config) error {
	signals := notify(ctx)
	defer signals.close()
	limitMemory(ctx, c.Logger)

	traces, err := c.trace(ctx)
	if err != nil {
		return err
	}
	defer traces.Close(canceled())
	keeper, err := c.keepCertificates()
	if err != nil {
		return err
	}
	if keeper != nil {
		defer keeper.Close()
		c.Server.TLS = keeper.Server(c.TLS.ClientNames)
	}
	adminKeeper, err := c.AdminAccess.open(&c.Pages.Access, c.Logger)
	if err != nil {
		return err
	}
	if adminKeeper != nil {
		defer adminKeeper.Close()
	}
	c.Store.Logger, c.Store.Traces, c.Store.Savable = c.Logger, traces, c.State.Dir != ""
	stores, err := NewStores(c.Store)
	if err != nil {
		return err
	}
	defer stores.Close()
	c.Limiter.Now = time.Now
	lim, err := limiter.New(stores.Store, c.Limiter)
	if err != nil {
		return err
	}
	c.Rules.Limiter, c.Rules.Granularity, c.Rules.Logger = lim, stores.Granularity(), c.Logger
	c.Rules.Pushed = c.XDS.Address != ""
	reloader, err := reload.New(c.Rules)
	if err != nil {
		return err
	}
	stopped, err := signals.load(reloader, c.Logger)
	if stopped {
		return nil
	}
	if err != nil {
		if !c.StartWithoutRules || !missing(err) {
			return RulesError{err}
		}
		c.Logger.LogAttrs(ctx, slog.LevelWarn, "there are no rules yet", slog.String("error", err.Error()))
		reloader.DoWithoutRules()
	}
	if err := stores.Unfit(signals.stop); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	if err := stores.register(registry); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	state, err := c.keepState(ctx, stores, registry)
	if err != nil {
		return err
	}
	if state != nil {
		defer state.Close()
	}
	keptGrants, err := c.keepGrants(signals.stop, lim, stores, registry)
	if err != nil {
		return err
	}
	defer keptGrants.Close()
	c.Pages.Grants = keptGrants
	source, err := c.follow(reloader, registry)
	if err != nil {
		return err
	}
	s, pages, err := c.newServers(lim, stores, reloader, source, registry, traces)
	if err != nil {
		return err
	}
	defer s.Close()
	defer pages.Close()
	recorder, err := c.record(ctx, registry)
	if err != nil {
		return err
	}
	connected, err := c.newBounds(registry)
	if err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	reader, reporter, err := c.newStatistics(s, lim, stores, reloader, registry)
	if err != nil {
		return err
	}
	p := process{config: &c, server: s, pages: pages, reloader: reloader, traces: traces, state: state}
	p.endpoints = c.endpoints(s, pages, reader, connected)
	p.background = append(p.background, keptGrants.Run)
	if source != nil {
		p.background = append(p.background, source.Run)
	}
	if state != nil {
		p.background = append(p.background, state.Run)
	}
	if recorder != nil {
		s.Observe(recorder)
		p.background = append(p.background, recorder.Run)
	}
	if reporter != nil {
		p.background = append(p.background, func(ctx context.Context) error { reporter.Run(ctx); return nil })
	}
	return p.serve(ctx, signals)
}

// trace starts to send spans. A nil Tracing makes no spans.
func (c *Config) trace(ctx context.Context) (*tracing.Tracing, error) {
	if c.Tracing == nil {
		return nil, nil //nolint:nilnil // see above
	}
	c.Tracing.Logger = c.Logger
	return tracing.New(ctx, *c.Tracing)
}

// keepCertificates opens the certificates of the gRPC endpoint; nil without TLS.
func (c *Config) keepCertificates() (*certificates.Keeper, error) {
	if c.TLS.Certificate.Path == "" {
		return nil, nil //nolint:nilnil // see above
	}
	return certificates.Open(certificates.Options{Files: c.TLS.Files, Logger: c.Logger})
}

// missing reports whether rules are missing, rather than wrong.
func missing(err error) bool {
	return errors.Is(err, reload.ErrNoRules) || errors.Is(err, reload.ErrNoFiles) || errors.Is(err, fs.ErrNotExist)
}

// follow returns the client of the xDS server, nil without one, and registers its metrics. Where
// its rules are not required, an empty set of rules is in force until they come.
func (c *Config) follow(r *reload.Reloader, registry prometheus.Registerer) (*xds.Client, error) {
	if c.XDS.Address == "" {
		return nil, nil //nolint:nilnil // see above
	}
	c.XDS.Push, c.XDS.Logger, c.XDS.Bounds = r.Push, c.Logger, c.Rules.Options
	client, err := xds.New(c.XDS)
	if err != nil {
		return nil, fmt.Errorf("xds: %w", err)
	}
	if err := registry.Register(client.Metrics()); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if !c.XDSRequired {
		r.DoWithoutRules()
	}
	return client, nil
}

// newServers returns the server of the rate limit service, and the server of the admin service and
// all pages.
func (c *Config) newServers(
	l *limiter.Limiter, stores *Stores, r *reload.Reloader, source *xds.Client, registry *prometheus.Registry, traces *tracing.Tracing,
) (*server.Server, *admin.Server, error) {
	o := c.Server
	o.Limiter, o.Logger, o.Registry = l, c.Logger, registry
	o.JSON.Hosts = c.Hosts
	o.Tracer, o.Propagator = traces.Tracer(), traces.Propagator()
	o.Ready = func() error {
		if source != nil && c.XDSRequired {
			if err := source.Ready(); err != nil {
				return err
			}
		}
		if c.ReadyRequiresRules && len(l.Rules().Domains()) == 0 {
			return reload.ErrNoRules
		}
		if c.ReadyRequiresStore {
			return stores.Ready()
		}
		return nil
	}
	s, err := server.New(o)
	if err != nil {
		return nil, nil, err
	}
	p := c.Pages
	p.Limiter, p.Logger, p.Registry, p.Service, p.Ready, p.Reflection = l, c.Logger, registry, s, o.Ready, o.Reflection
	build := version.Read()
	p.Version, p.Revision = build.Version, build.Revision
	p.Memory = stores.Memory
	if stores.redis != nil {
		p.Store = stores.Health
	}
	p.Reload = r.Reload
	p.Loads = func() admin.LoadStatus { return admin.LoadStatus(r.Status()) }
	p.Sources = append(p.Sources, c.Rules.Paths...)
	if c.XDS.Address != "" {
		p.Sources = append(p.Sources, xds.Prefix+c.XDS.Address)
	}
	if c.Rules.Settings != "" {
		p.Sources = append(p.Sources, c.Rules.Settings)
	}
	pages, err := admin.New(p)
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, pages, nil
}

// newStatistics returns the reader of the metrics under the original's names, and the reporter to
// StatsD, which is nil without one. The collector for Prometheus is registered here.
func (c *Config) newStatistics(
	s *server.Server, l *limiter.Limiter, stores *Stores, r *reload.Reloader, registry prometheus.Registerer,
) (*statistics.Reader, *statistics.Reporter, error) {
	reader, err := statistics.New(statistics.Options{
		Limiter: l, Spent: s.Spent, Lost: s.Lost, DeniedLocally: stores.DeniedLocally, DecidedWithout: stores.DecidedWithout,
		Loads: func() (succeeded, refused uint64) { now := r.Status(); return now.Loads, now.Refusals },
	})
	if err != nil {
		return nil, nil, err
	}
	if c.Statistics.Prometheus {
		collector, err := reader.NewCollector(c.Statistics.Collector)
		if err == nil {
			err = registry.Register(collector)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	if c.Statistics.StatsD.Address == "" {
		return reader, nil, nil
	}
	c.Statistics.StatsD.Logger = c.Logger
	reporter, err := reader.NewReporter(c.Statistics.StatsD)
	if err != nil {
		return nil, nil, fmt.Errorf("StatsD: %w", err)
	}
	return reader, reporter, nil
}

// canceled returns a context that is over, for a Close that must not wait.
func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
