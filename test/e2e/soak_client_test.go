package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	reflectiongrpc "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
)

// mixed makes one connection, asks all kinds of questions on it, and closes it. The first question
// has number first: so some connections begin with another method.
func mixed(ctx context.Context, target string, secure credentials.TransportCredentials, first int) error {
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(secure))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	questions := []func(context.Context, *grpc.ClientConn) error{passes, isHealthy, passes, isOver, lists, isCancelled, passes}
	for i := range 3 * len(questions) {
		n := (first + i) % len(questions)
		if err := questions[n](ctx, conn); err != nil {
			return fmt.Errorf("question %d, the %d. of its connection: %w", n, i+1, err)
		}
	}
	return nil
}

func passes(ctx context.Context, conn *grpc.ClientConn) error {
	return codeIs(ctx, conn, "alice", ratelimitv3.RateLimitResponse_OK)
}

func isOver(ctx context.Context, conn *grpc.ClientConn) error {
	return codeIs(ctx, conn, "banned", ratelimitv3.RateLimitResponse_OVER_LIMIT)
}

func codeIs(ctx context.Context, conn *grpc.ClientConn, user string, want ratelimitv3.RateLimitResponse_Code) error {
	answer, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request(1, "user", user))
	if err == nil && answer.GetOverallCode() != want {
		err = fmt.Errorf("%s: got %v, want %v", user, answer.GetOverallCode(), want)
	}
	return err
}

func isHealthy(ctx context.Context, conn *grpc.ClientConn) error {
	answer, err := healthgrpc.NewHealthClient(conn).Check(ctx, &healthgrpc.HealthCheckRequest{})
	if err == nil && answer.GetStatus() != healthgrpc.HealthCheckResponse_SERVING {
		err = fmt.Errorf("health: %v", answer.GetStatus())
	}
	return err
}

// lists asks reflection, a stream. cmd/ratelimit has none, and says so.
func lists(ctx context.Context, conn *grpc.ClientConn) error {
	stream, err := reflectiongrpc.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return err
	}
	err = stream.Send(&reflectiongrpc.ServerReflectionRequest{MessageRequest: &reflectiongrpc.ServerReflectionRequest_ListServices{}})
	if err != nil && !errors.Is(err, io.EOF) { // the stream has ended, and Recv says why
		return err
	}
	answer, err := stream.Recv()
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	if err == nil && len(answer.GetListServicesResponse().GetService()) == 0 {
		err = errors.New("reflection: no service")
	}
	return errors.Join(err, stream.CloseSend())
}

// isCancelled cancels a call at once, which resets its stream before, within or after the answer.
func isCancelled(ctx context.Context, conn *grpc.ClientConn) error {
	call, cancel := context.WithCancel(ctx)
	asked := make(chan error, 1)
	go func() { asked <- passes(call, conn) }()
	cancel()
	if err := <-asked; err != nil && status.Code(err) != codes.Canceled {
		return err
	}
	return nil
}
