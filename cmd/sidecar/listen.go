package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"

	"github.com/weirproxy/weir/pkg/server"
)

// What serves on a listener, as the log names it.
const (
	grpcServer  = "grpc"
	httpServer  = "http"
	adminServer = "admin"
)

// listener is a listener and what serves on it.
type listener struct {
	net.Listener
	server string
}

// endpoint is where one of them listens.
type endpoint struct {
	setting, server, network, address string

	mode   fs.FileMode // of a Unix socket
	shared bool        // with other processes
}

func (e *endpoint) listen(ctx context.Context) (net.Listener, error) {
	if e.shared {
		return server.ListenShared(ctx, e.address)
	}
	return server.Listen(ctx, e.network, e.address, e.mode)
}

// listen opens all listeners that are on and logs where each is; or none, with every reason.
func (i *instance) listen(ctx context.Context) ([]listener, error) {
	c := &i.config
	var (
		all  []listener
		errs []error
	)
	for _, want := range []endpoint{
		{setting: "grpc-address", server: grpcServer, network: "tcp", address: c.GRPCAddress, shared: c.GRPCReusePort},
		{setting: "grpc-socket", server: grpcServer, network: "unix", address: c.GRPCSocket, mode: c.GRPCSocketMode},
		{setting: "http-address", server: httpServer, network: "tcp", address: c.HTTPAddress},
		{setting: "admin-address", server: adminServer, network: "tcp", address: c.AdminAddress},
	} {
		if want.address == "" {
			continue
		}
		l, err := want.listen(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", want.setting, err))
			continue
		}
		all = append(all, listener{l, want.server})
	}
	if err := errors.Join(errs...); err != nil {
		for _, l := range all {
			_ = l.Close() // nobody has connected
		}
		return nil, err
	}
	for _, l := range all {
		attrs := []slog.Attr{
			slog.String("server", l.server),
			slog.String("network", l.Addr().Network()), slog.String("address", l.Addr().String()),
		}
		if l.server == grpcServer && l.Addr().Network() == "tcp" && c.GRPCTLS.CertFile != "" {
			attrs = append(attrs, slog.Bool("tls", true))
		}
		i.logger.LogAttrs(ctx, slog.LevelInfo, "listening", attrs...)
	}
	return all, nil
}
