// Package app runs a rate limit service from one Config: it connects stores, rules, servers and
// listeners, and handles signals and the drain. The programs of this project translate their
// settings to a Config and call Run.
package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/admin"
	"github.com/weirproxy/weir/internal/admin/grants"
	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/internal/lockfile"
	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/rules/xds"
	"github.com/weirproxy/weir/internal/snapshots"
	"github.com/weirproxy/weir/internal/statistics"
	"github.com/weirproxy/weir/internal/tracing"
	"github.com/weirproxy/weir/internal/version"
	"github.com/weirproxy/weir/internal/wire/certificates"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/server"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// RulesError is the failure of the first load: each line is about one mistake in the rules.
type RulesError struct{ error }

// Unwrap returns the error of package reload.
func (e RulesError) Unwrap() error { return e.error }

// errStopped ends a start without an error of Run.
var errStopped = errors.New("stopped")

// Run serves until ctx ends, a signal says stop or something fails. Rules with mistakes end it
// before it listens, with a RulesError. The error of one part of the Config is a [*PartError]. A
// process calls Run once.
func Run(ctx context.Context, c Config) error {
	p := &process{Config: c, signals: notify(ctx), registry: prometheus.NewRegistry()}
	defer p.close()
	p.onClose(p.signals.close)
	limitMemory(ctx, c.Logger)
	p.onClose(keepHeadroom())
	for _, start := range []func(context.Context) error{
		p.startTracing,
		p.secureGRPC,
		p.openAdmin,
		p.openStores,
		p.loadRules,
		p.meetStores,
		p.keepState,
		p.startWithoutRedis,
		p.keepGrants,
		p.followXDS,
		p.newServers,
		p.record,
		p.report,
		p.serve, // until a stop, then drains
	} {
		switch err := start(ctx); {
		case errors.Is(err, errStopped):
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

// process is everything that runs. A part that is off stays nil.
type process struct {
	Config
	signals   *signals
	registry  *prometheus.Registry
	traces    *tracing.Tracing
	stores    *Stores
	limiter   *limiter.Limiter
	reloader  *reload.Reloader
	source    *xds.Client
	directory *lockfile.Directory // of the counts and the grants
	state     *snapshots.Keeper
	server    *server.Server
	pages     *admin.Server
	figures   *statistics.Reader

	background []func(context.Context) error // run beside the servers; an error ends the process
	closers    []func()                      // in the order of the start
}

// onClose adds a cleanup. The last one added runs first.
func (p *process) onClose(end func()) { p.closers = append(p.closers, end) }

func (p *process) close() {
	for _, end := range slices.Backward(p.closers) {
		end()
	}
}

func (p *process) beside(run func(context.Context) error) { p.background = append(p.background, run) }

func (p *process) register(c prometheus.Collector) error {
	if err := p.registry.Register(c); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

func (p *process) startTracing(ctx context.Context) (err error) {
	if p.Tracing == nil {
		return nil // a nil Tracing makes no spans
	}
	p.Tracing.Logger = p.Logger
	if p.traces, err = tracing.New(ctx, *p.Tracing); err != nil {
		return err
	}
	p.onClose(func() {
		over, cancel := context.WithCancel(ctx)
		cancel() // waits for no collector
		p.traces.Close(over)
	})
	return nil
}

// secure opens the certificates of an endpoint; nil without TLS.
func (p *process) secure(t TLS) (*tls.Config, error) {
	if t.Certificate.Path == "" {
		return nil, nil //nolint:nilnil // see above
	}
	keeper, err := certificates.Open(certificates.Options{Files: t.Files, Logger: p.Logger})
	if err != nil {
		return nil, err
	}
	p.onClose(keeper.Close)
	return keeper.Server(t.ClientNames), nil
}

func (p *process) secureGRPC(context.Context) (err error) {
	p.Server.TLS, err = p.secure(p.TLS)
	return err
}

func (p *process) openAdmin(context.Context) (err error) {
	access := &p.Pages.Access
	access.Hosts = p.Hosts
	if access.Token, err = p.AdminAccess.token(p.Logger); err != nil {
		return err
	}
	access.TLS, err = p.secure(p.AdminAccess.TLS)
	return err
}

func (p *process) openStores(context.Context) (err error) {
	o := p.Store
	o.Logger, o.Traces, o.Savable = p.Logger, p.traces, p.State.Dir != ""
	if p.stores, err = NewStores(o); err != nil {
		return err
	}
	p.onClose(p.stores.Close)
	if err := p.stores.register(p.registry); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	p.Limiter.Now, p.Limiter.OnNotice = time.Now, logNotices(p.Logger)
	if p.limiter, err = limiter.New(p.stores.Store, p.Limiter); err == nil {
		p.stores.follow(p.limiter)
	}
	return err
}

// loadRules loads the first rules. Missing rules may come later, where StartWithoutRules allows it.
func (p *process) loadRules(ctx context.Context) (err error) {
	o := p.Rules
	o.Limiter, o.Granularity, o.Logger, o.Pushed = p.limiter, p.stores.Granularity(), p.Logger, p.XDS.Address != ""
	if p.reloader, err = reload.New(o); err != nil {
		return err
	}
	switch err = p.signals.load(p.reloader, p.Logger); {
	case err == nil || errors.Is(err, errStopped):
		return err
	case !p.StartWithoutRules || !missing(err):
		return RulesError{err}
	}
	p.Logger.LogAttrs(ctx, slog.LevelWarn, "there are no rules yet", slog.String("error", err.Error()))
	p.reloader.DoWithoutRules()
	return nil
}

func missing(err error) bool {
	return errors.Is(err, reload.ErrNoRules) || errors.Is(err, reload.ErrNoFiles) || errors.Is(err, fs.ErrNotExist)
}

func (p *process) meetStores(context.Context) error { return p.stores.Unfit(p.signals.stop) }

func (p *process) keepState(ctx context.Context) (err error) {
	if p.State.Dir == "" {
		return nil
	}
	p.directory = lockfile.NewDirectory(p.State.Dir, "states")
	p.onClose(p.directory.Close)
	o := snapshots.Options{Dir: p.directory, Store: p.stores.memory, Logger: p.Logger}
	if p.stores.redis != nil {
		o.Fleet, o.Member, o.Return = p.stores.countedFleet, p.stores.redis.Name, p.stores.redis.Return
	}
	if p.state, err = snapshots.Open(ctx, o); err != nil {
		return &PartError{PartState, err}
	}
	p.onClose(func() { // keeps the owed hits and holders for the next process; nobody uses the stores any more
		if left := p.stores.leave(); len(left) > 0 {
			_ = p.state.Leave(context.WithoutCancel(ctx), left) // logged
		}
	})
	p.beside(p.state.Run)
	return p.register(p.state.Metrics())
}

// keepGrants loads the grants that are kept in Redis or in the directory of the counts.
func (p *process) keepGrants(context.Context) error {
	o := grants.Options{Limiter: p.limiter, Dir: p.State.Dir, Lock: p.directory, Logger: p.Logger}
	if p.stores.redis != nil {
		o.Redis = p.stores.redis
	}
	keeper, err := grants.Open(p.signals.stop, o)
	if err != nil {
		return fmt.Errorf("grants: %w", err)
	}
	p.onClose(keeper.Close)
	p.beside(keeper.Run)
	p.Pages.Grants = keeper
	return p.register(keeper.Metrics())
}

// followXDS starts the client of xDS. Without XDSRequired, no rules are in force until then.
func (p *process) followXDS(context.Context) (err error) {
	if p.XDS.Address == "" {
		return nil
	}
	o := p.XDS
	o.Push, o.Logger, o.Bounds = p.reloader.Push, p.Logger, p.Rules.Options
	if p.source, err = xds.New(o); err != nil {
		return fmt.Errorf("xds: %w", err)
	}
	if !p.XDSRequired {
		p.reloader.DoWithoutRules()
	}
	p.beside(p.source.Run)
	return p.register(p.source.Metrics())
}

// ready returns why Envoy should not ask yet.
func (p *process) ready() error {
	if p.source != nil && p.XDSRequired {
		if err := p.source.Ready(); err != nil {
			return err
		}
	}
	if p.ReadyRequiresRules && len(p.limiter.Rules().Domains()) == 0 {
		return reload.ErrNoRules
	}
	if p.ReadyRequiresStore {
		return p.stores.Ready()
	}
	return nil
}

func (p *process) loads() *adminv1.RulesPage {
	s := p.reloader.Status()
	timestamp := func(t time.Time) *timestamppb.Timestamp {
		if t.IsZero() {
			return nil
		}
		return timestamppb.New(t)
	}
	var unconfirmed time.Time
	if p.source != nil {
		unconfirmed = p.source.Status().Unconfirmed
	}
	return &adminv1.RulesPage{
		Hash: s.Hash, LoadedAt: timestamp(s.LoadedAt), AttemptedAt: timestamp(s.AttemptedAt), Errors: s.Errors, Warnings: s.Warnings,
		Loads: uint32(s.Loads), Refusals: uint32(s.Refusals), UnconfirmedSince: timestamp(unconfirmed),
	}
}

func (p *process) newServers(context.Context) (err error) {
	s := p.Server
	s.Limiter, s.Logger, s.Registry, s.Ready = p.limiter, p.Logger, p.registry, p.ready
	s.JSON.Hosts = p.Hosts
	if p.stores.redis != nil {
		s.Parts = p.stores.redis
	}
	s.Tracer, s.Propagator = p.traces.Tracer(), p.traces.Propagator()
	if p.server, err = server.New(s); err != nil {
		return err
	}
	p.onClose(p.server.Close)

	build := version.Read()
	o := p.Pages
	o.Limiter, o.Logger, o.Registry, o.Ready = p.limiter, p.Logger, p.registry, p.ready
	o.Service, o.Reflection, o.Version, o.Revision = p.server, s.Reflection, build.Version, build.Revision
	o.Memory = p.stores.memory.Stats
	if p.stores.redis != nil {
		o.Store = p.stores.Health
	}
	o.Reload = p.reloader.Reload
	o.Loads = p.loads
	o.Sources = slices.Clone(p.Rules.Paths)
	if p.XDS.Address != "" {
		o.Sources = append(o.Sources, xds.Prefix+p.XDS.Address)
	}
	if p.Rules.Settings != "" {
		o.Sources = append(o.Sources, p.Rules.Settings)
	}
	if p.pages, err = admin.New(o); err != nil {
		return err
	}
	p.onClose(p.pages.Close)
	return nil
}

func (p *process) record(ctx context.Context) error {
	if p.Record.Dir == "" {
		return nil
	}
	recorder, err := p.Record.open(ctx, p.Logger)
	if err != nil {
		return &PartError{PartRecord, err}
	}
	p.server.Observe(recorder)
	p.beside(recorder.Run)
	return p.register(recorder.Metrics())
}

func (r *Record) open(ctx context.Context, logger *slog.Logger) (*records.Recorder, error) {
	o := records.Options{Dir: r.Dir, MaxBytes: int64(r.MaxBytes), HashValues: r.Hash, Logger: logger}
	if r.SaltFile != "" {
		var err error
		if o.Salt, err = records.ReadSalt(r.SaltFile); err != nil {
			return nil, fmt.Errorf("salt: %w", err)
		}
	}
	return records.NewRecorder(ctx, o)
}

// report serves and sends metrics under the original's names.
func (p *process) report(context.Context) (err error) {
	o := statistics.Options{
		Limiter: p.limiter, Spent: p.server.Spent, Lost: p.server.Lost, DecidedWithout: p.stores.DecidedWithout,
		Loads: func() (succeeded, refused uint64) { now := p.reloader.Status(); return now.Loads, now.Refusals },
	}
	if p.stores.shared != nil && p.Limiter.Remembered {
		o.LocalCache = func() int { return p.stores.shared.Stats().Denials.Keys }
	}
	p.figures, err = statistics.New(o)
	if err != nil {
		return err
	}
	if p.Statistics.Prometheus {
		collector, err := p.figures.NewCollector(p.Statistics.Collector)
		if err == nil {
			err = p.registry.Register(collector)
		}
		if err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	if p.Statistics.StatsD.Address == "" {
		return nil
	}
	p.Statistics.StatsD.Logger = p.Logger
	reporter, err := p.figures.NewReporter(p.Statistics.StatsD)
	if err != nil {
		return fmt.Errorf("StatsD: %w", err)
	}
	p.beside(func(ctx context.Context) error { reporter.Run(ctx); return nil })
	return nil
}
