package app

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"

	"github.com/weirproxy/weir/internal/wire"
)

// endpoint is an Endpoint and its server: GRPC or HTTP.
type endpoint struct {
	Endpoint
	part    Part
	name    string                   // in the log
	network string                   // tcp or unix
	tls     bool                     // in the log
	grpc    func(net.Listener) error // serves until a stop; nil: http
	http    http.Handler
	bound   *wire.Connections    // nil: no bound
	allow   func(net.Addr) error // an error for an address that must not serve; nil: any address
}

func (p *process) endpoints(b bounds) []endpoint {
	pages := p.pages.HTTP()
	if p.Legacy {
		pages = p.pages.Legacy()
	}
	all := []endpoint{
		{Endpoint: p.GRPC, part: PartGRPC, tls: p.Server.TLS != nil, grpc: p.server.Serve},
		{Endpoint: p.Socket, part: PartSocket, name: "grpc", network: "unix", grpc: p.server.Serve},
		{Endpoint: p.HTTP, part: PartHTTP, http: pages},
		{Endpoint: p.Debug, part: PartDebug, http: p.pages.Debug(p.figures.WriteText)},
		{Endpoint: p.Metrics, part: PartMetrics, http: p.pages.Metrics(cmp.Or(p.MetricsPath, "/metrics"))},
		{Endpoint: p.Admin, part: PartAdmin, tls: p.Pages.Access.TLS != nil, grpc: p.pages.Serve, allow: p.AdminAccess.allow},
	}
	for i := range all {
		e := &all[i]
		e.name, e.network = cmp.Or(e.name, string(e.part)), cmp.Or(e.network, "tcp")
		e.bound = b[e.name]
	}
	return all
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

type listener struct {
	net.Listener
	of endpoint
}

// listen opens every endpoint that is on, and logs its address; or none, and returns every error.
func (p *process) listen(ctx context.Context) ([]listener, error) {
	var (
		all  []listener
		errs []error
	)
	connections := p.newBounds()
	if err := p.register(connections.collector()); err != nil {
		return nil, err
	}
	for _, e := range p.endpoints(connections) {
		if e.Address == "" {
			continue
		}
		switch l, err := e.listen(ctx); {
		case err == nil:
			all = append(all, listener{l, e})
		case e.Spare != nil:
			e.Spare(err)
		default:
			errs = append(errs, &PartError{e.part, err})
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
		p.Logger.LogAttrs(ctx, slog.LevelInfo, "listening", attrs...)
		if l.of.name == "admin" {
			p.AdminAccess.warn(ctx, l.Addr(), p.Logger)
		}
	}
	return all, nil
}
