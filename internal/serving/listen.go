package serving

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"

	"google.golang.org/grpc"

	"github.com/weirproxy/weir/pkg/server"
)

// Endpoint is an address and what serves there: GRPC or HTTP, one of which must be given.
type Endpoint struct {
	Setting string // that names the address, for errors
	Name    string // of what serves, for the log
	Network string // tcp or unix
	Address string // "" for off

	Mode   fs.FileMode // of a Unix socket
	Shared bool        // with other processes
	TLS    bool        // for the log

	GRPC *grpc.Server
	HTTP http.Handler
}

func (e *Endpoint) listen(ctx context.Context) (net.Listener, error) {
	if e.Shared {
		return server.ListenShared(ctx, e.Address)
	}
	return server.Listen(ctx, e.Network, e.Address, e.Mode)
}

// listener is a listener of an endpoint.
type listener struct {
	net.Listener
	of Endpoint
}

// listen opens all listeners that are on and logs where each is; or none, with every reason.
func (p *Process) listen(ctx context.Context) ([]listener, error) {
	var (
		all  []listener
		errs []error
	)
	for _, want := range p.Endpoints {
		if want.Address == "" {
			continue
		}
		l, err := want.listen(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", want.Setting, err))
			continue
		}
		all = append(all, listener{l, want})
	}
	if err := errors.Join(errs...); err != nil {
		for _, l := range all {
			_ = l.Close() // nobody has connected
		}
		return nil, err
	}
	for _, l := range all {
		attrs := []slog.Attr{
			slog.String("server", l.of.Name),
			slog.String("network", l.Addr().Network()), slog.String("address", l.Addr().String()),
		}
		if l.of.TLS {
			attrs = append(attrs, slog.Bool("tls", true))
		}
		p.Logger.LogAttrs(ctx, slog.LevelInfo, "listening", attrs...)
	}
	return all, nil
}
