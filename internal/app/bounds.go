package app

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/metrics"
	"github.com/weirproxy/weir/internal/wire"
)

// Bounds of connections that no setting changes.
const (
	// DefaultMaxConnections is the bound of Config.MaxConnections where none is given.
	DefaultMaxConnections = 1000
	// adminConnections is enough for operators' tools and browsers, which open six for a page.
	adminConnections = 64
	// httpConnections is enough for probes and scrapers. Each may hold 16 KiB of headers.
	httpConnections = 128
	// writeTimeout is the longest wait for a gRPC client that does not read.
	writeTimeout = 10 * time.Second
	// socketBuffer bounds the bytes in the system's buffer of a gRPC connection, in each direction.
	// Linux takes twice as many. A container with cgroup version 2 pays for the buffers: 1000
	// connections with answers that nobody reads must leave room.
	socketBuffer = 16 << 10
	// httpBuffer is the same for pages.
	httpBuffer = 64 << 10
)

// bounds are the bounds of the connections of each server, by its name in the log.
type bounds map[string]*wire.Connections

func (p *process) newBounds() bounds {
	all := make(bounds)
	for name, most := range map[string]int{"grpc": cmp.Or(p.MaxConnections, DefaultMaxConnections), "admin": adminConnections} {
		all[name] = wire.NewConnections(wire.ConnectionOptions{
			Server: name, Max: most, WriteTimeout: writeTimeout, SocketBuffer: socketBuffer, Logger: p.Logger,
		})
	}
	for name, e := range map[string]Endpoint{"http": p.HTTP, "debug": p.Debug, "metrics": p.Metrics} {
		if e.Address != "" {
			all[name] = wire.NewConnections(wire.ConnectionOptions{
				Server: name, Max: httpConnections, SocketBuffer: httpBuffer, QuietFirst: true, Logger: p.Logger,
			}) // pages set their own deadlines of writes
		}
	}
	return all
}

func (b bounds) collector() prometheus.Collector {
	return metrics.NewCollector("weir_", nil, func(to metrics.Scrape) {
		for name, bound := range b {
			s := bound.Stats()
			to.Gauge("connections", float64(s.Open), name)
			to.Gauge("max_connections", float64(s.Max), name)
			to.Counter("connections_refused_total", s.Refused, name)
			to.Counter("connections_replaced_total", s.Replaced, name)
		}
	},
		metrics.New("connections", "Open connections of a server.", "server"),
		metrics.New("max_connections", "The bound of the open connections of a server.", "server"),
		metrics.New("connections_refused_total", "New connections that were closed at once, because all others were busy.", "server"),
		metrics.New("connections_replaced_total", "Idle connections, and busy ones without answers, that were closed for a new one.", "server"),
	)
}
