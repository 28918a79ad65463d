package model

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // requests may be compressed
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
)

// Serve serves as a program that the suite starts, with the variables of its environment, until
// SIGTERM. The result is the exit code.
func Serve(h Hooks) (int, error) {
	if address := os.Getenv("RLS_REDIS"); address != "" {
		h.Store = store(h.Store, address)
	}
	s := New(h, os.Getenv("RLS_UNCOUNTED") != "")
	directory := os.Getenv("RLS_RULES")
	rules, err := load(directory)
	if err != nil {
		return 1, err
	}
	s.SetRules(rules)
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("RLS_PORT"))
	if err != nil {
		return 1, err
	}
	server := grpc.NewServer(append(h.Options, grpc.MaxRecvMsgSize(h.MaxMessage))...)
	ratelimitv3.RegisterRateLimitServiceServer(server, s)
	check := health.NewServer()
	if len(h.Health) > 0 {
		for _, name := range h.Health {
			check.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
		}
		healthpb.RegisterHealthServer(server, check)
	}
	if h.Reflection {
		reflection.Register(server)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if !h.NoWatch {
		go watch(ctx, s, directory)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(h.Listen(listener)) }()
	select {
	case err := <-ended:
		return 1, err
	case <-ctx.Done():
	}
	return h.Terminate(check.Shutdown, func() { drain(server) }), nil
}

// drain answers the requests under way, and breaks streams that do not end.
func drain(server *grpc.Server) {
	done := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
		server.Stop()
	}
}

// watch reads the rules again when a file has changed.
func watch(ctx context.Context, s *Service, directory string) {
	before := stamp(directory)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
		now := stamp(directory)
		if now == before {
			continue
		}
		before = now
		rules, err := load(directory)
		if err != nil {
			s.rulesMu.RLock()
			old := s.rules
			s.rulesMu.RUnlock()
			rules = s.hooks.Broken(old)
		}
		s.SetRules(rules)
	}
}

// stamp changes when a file of the directory does.
func stamp(directory string) string {
	files, err := os.ReadDir(directory)
	if err != nil {
		return ""
	}
	var text strings.Builder
	for _, f := range files {
		if info, err := f.Info(); err == nil {
			fmt.Fprintf(&text, "%s %d %d;", f.Name(), info.Size(), info.ModTime().UnixNano())
		}
	}
	return text.String()
}

// store names the Redis of the service to a hook.
func store(next func(context.Context) error, address string) func(context.Context) error {
	return func(ctx context.Context) error { return next(context.WithValue(ctx, addressKey{}, address)) }
}

type addressKey struct{}

// Ping asks the Redis of a service for a sign of life.
func Ping(ctx context.Context) error {
	address, _ := ctx.Value(addressKey{}).(string)
	if address == "" {
		return nil
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, set := ctx.Deadline(); set {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 16))
	return err
}
