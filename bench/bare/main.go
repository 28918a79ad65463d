// Bare is the smallest gRPC rate limit service in Go: a grpc-go server with default options whose
// ShouldRateLimit answers a constant. Bare costs as much as grpc-go and generated code; grpcbench
// measures Weir against Bare.
package main

import (
	"context"
	"flag"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/weirproxy/weir/bench/drive"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	err := run(ctx, logger)
	stop()
	if err != nil {
		logger.LogAttrs(ctx, slog.LevelError, "stopped", slog.Any("error", err))
		os.Exit(1)
	}
}

// run serves until ctx ends, by default on any port of loopback, and says where as sidecar does.
func run(ctx context.Context, logger *slog.Logger) error {
	socket := flag.String("socket", "", "`path` of a Unix socket to listen on, in place of a port")
	flag.Parse()
	network, address := "tcp", "127.0.0.1:0"
	if *socket != "" {
		network, address = "unix", *socket
	}
	l, err := new(net.ListenConfig).Listen(ctx, network, address)
	if err != nil {
		return err
	}
	g := grpc.NewServer()
	ratelimitv3.RegisterRateLimitServiceServer(g, constant{})
	context.AfterFunc(ctx, g.Stop)
	logger.LogAttrs(ctx, slog.LevelInfo, "listening",
		slog.String("server", "grpc"), slog.String("network", network), slog.String("address", l.Addr().String()))
	return g.Serve(l)
}

// constant always gives the same answer.
type constant struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
}

// ShouldRateLimit answers that one descriptor is within its limit.
func (constant) ShouldRateLimit(context.Context, *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	return drive.Constant(), nil
}
