package parts

import (
	"context"
	"os"
	"slices"
)

// A Ratelimit is a running `ratelimit` that said that it is ready. An address is empty when that
// listener is off.
type Ratelimit struct {
	*Process
	GRPC    string // host:port of Envoy's rate limit service
	HTTP    string // host:port of /json and /healthcheck
	Debug   string // host:port of /rlconfig and /stats
	Metrics string // host:port of Prometheus's page
}

// StartRatelimit runs the program at binary and waits until it is ready. environ holds variables as
// NAME=value. The defaults are ports of 127.0.0.1 that the system chooses, no StatsD, and a log of
// JSON lines. Of two values of a variable the later counts. The program gets WEIR_GRPC_SERVER of
// this process, so that all tests can run over either server, and no other variable.
func StartRatelimit(ctx context.Context, binary string, environ ...string) (*Ratelimit, error) {
	return StartRatelimitBelow(ctx, "", binary, environ...)
}

// StartRatelimitBelow is StartRatelimit for a program with another root directory, see StartBelow.
func StartRatelimitBelow(ctx context.Context, root, binary string, environ ...string) (*Ratelimit, error) {
	if server := os.Getenv("WEIR_GRPC_SERVER"); server != "" {
		environ = append([]string{"WEIR_GRPC_SERVER=" + server}, environ...)
	}
	process, err := StartBelow(root, slices.Concat([]string{
		"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
		"PROMETHEUS_ADDR=127.0.0.1:0", "WEIR_ADMIN_ADDRESS=127.0.0.1:0", "USE_STATSD=false", "LOG_LEVEL=info", "LOG_FORMAT=json",
	}, environ), "ratelimit", binary)
	if err != nil {
		return nil, err
	}
	r := &Ratelimit{Process: process}
	return r, process.awaitReady(ctx, r.listening)
}

// listening keeps the address of one "listening" line.
func (r *Ratelimit) listening(entry LogEntry) {
	switch entry.Server {
	case "grpc":
		r.GRPC = entry.Address
	case "http":
		r.HTTP = entry.Address
	case "debug":
		r.Debug = entry.Address
	case "metrics":
		r.Metrics = entry.Address
	}
}
