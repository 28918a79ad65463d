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

// listen opens all listeners that are on and logs where each is; or none, with every reason.
func (i *instance) listen(ctx context.Context) ([]listener, error) {
	c := &i.config
	var (
		all  []listener
		errs []error
	)
	for _, want := range []struct {
		setting, server, network, address string
		mode                              fs.FileMode
	}{
		{"grpc-address", grpcServer, "tcp", c.GRPCAddress, 0},
		{"grpc-socket", grpcServer, "unix", c.GRPCSocket, c.GRPCSocketMode},
		{"http-address", httpServer, "tcp", c.HTTPAddress, 0},
		{"admin-address", adminServer, "tcp", c.AdminAddress, 0},
	} {
		if want.address == "" {
			continue
		}
		l, err := server.Listen(ctx, want.network, want.address, want.mode)
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
		i.logger.LogAttrs(ctx, slog.LevelInfo, "listening", slog.String("server", l.server),
			slog.String("network", l.Addr().Network()), slog.String("address", l.Addr().String()))
	}
	return all, nil
}
