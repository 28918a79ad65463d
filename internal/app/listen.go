package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/weirproxy/weir/internal/admin"
	"github.com/weirproxy/weir/internal/statistics"
	"github.com/weirproxy/weir/internal/wire"
	"github.com/weirproxy/weir/pkg/server"
)

// endpoint is an Endpoint and its server: GRPC or HTTP.
type endpoint struct {
	Endpoint
	name    string                   // in the log
	network string                   // tcp or unix
	tls     bool                     // in the log
	grpc    func(net.Listener) error // serves until a stop; nil: http
	http    http.Handler
	bound   *wire.Connections    // nil: no bound
	allow   func(net.Addr) error // an error for an address that must not serve; nil: any address
}

// endpoints returns every endpoint, also endpoints that are off.
func (c *Config) endpoints(s *server.Server, all *admin.Server, reader *statistics.Reader, b bounds) []endpoint {
	pages := all.HTTP()
	if c.Legacy {
		pages = all.Legacy()
	}
	return []endpoint{
		{Endpoint: c.GRPC, name: "grpc", network: "tcp", tls: c.Server.TLS != nil, grpc: s.Serve, bound: b["grpc"]},
		{Endpoint: c.Socket, name: "grpc", network: "unix", grpc: s.Serve, bound: b["grpc"]},
		{Endpoint: c.HTTP, name: "http", network: "tcp", http: pages, bound: b["http"]},
		{Endpoint: c.Debug, name: "debug", network: "tcp", http: all.Debug(reader.WriteText), bound: b["debug"]},
		{Endpoint: c.Metrics, name: "metrics", network: "tcp", http: all.Metrics(cmp.Or(c.MetricsPath, "/metrics")), bound: b["metrics"]},
		{
			Endpoint: c.Admin, name: "admin", network: "tcp", tls: c.AdminAccess.TLS.Certificate.Path != "", grpc: all.Serve,
			bound: b["admin"], allow: c.AdminAccess.allow,
		},
	}
}

func (e *endpoint) listen(ctx context.Context) (net.Listener, error) {
	open := func() (net.Listener, error) { return listenOn(ctx, e.network, e.Address, e.Mode) }
	if e.Shared {
		open = func() (net.Listener, error) { return listenShared(ctx, e.Address) }
	}
	l, err := open()
	if err == nil && e.allow != nil {
		if err = e.allow(l.Addr()); err != nil {
			_ = l.Close() // nobody has connected
		}
	}
	if err != nil || e.bound == nil {
		return l, err
	}
	return e.bound.Listen(l), nil
}

// listener is the listener of an endpoint.
type listener struct {
	net.Listener
	of endpoint
}

// listen opens a listener for each endpoint that is on, and logs its address. When one fails it
// closes all, and returns every error.
func (p *process) listen(ctx context.Context) ([]listener, error) {
	var (
		all  []listener
		errs []error
	)
	for _, e := range p.endpoints {
		if e.Address == "" {
			continue
		}
		switch l, err := e.listen(ctx); {
		case err == nil:
			all = append(all, listener{l, e})
		case e.Spare:
			p.config.Logger.LogAttrs(ctx, slog.LevelWarn, "an endpoint is off",
				slog.String("server", e.name), slog.String("setting", e.Setting), slog.String("error", err.Error()))
		default:
			errs = append(errs, fmt.Errorf("%s: %w", e.Setting, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		for _, l := range all {
			_ = l.Close() // nobody has connected
		}
		return nil, err
	}
	for _, l := range all {
		attrs := []slog.Attr{
			slog.String("server", l.of.name),
			slog.String("network", l.Addr().Network()), slog.String("address", l.Addr().String()),
		}
		if l.of.tls {
			attrs = append(attrs, slog.Bool("tls", true))
		}
		p.config.Logger.LogAttrs(ctx, slog.LevelInfo, "listening", attrs...)
		if l.of.name == "admin" {
			p.config.AdminAccess.warn(ctx, l.Addr(), p.config.Logger)
		}
	}
	return all, nil
}
