package server

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// textCrowded is the reason of RESOURCE_EXHAUSTED while clients make the server hold too much.
const textCrowded = "too many bytes are in flight: see max-bytes-in-flight"

// guard returns an error for a call whose message must not be read. The message is compressed, or
// the connection has more than its share of the bytes in flight. gRPC calls handlers before the
// message is read.
//
// Compression is refused here, because gRPC accepts any that is registered in the process: the
// exporter of traces registers gzip. A message of 4 KB may hold 4 MB.
func (s *service) guard(ctx context.Context) error {
	if stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string }); ok {
		if name := stream.RecvCompress(); name != "" && name != "identity" {
			return status.Errorf(codes.Unimplemented, "grpc-encoding %q: compressed requests are refused, send them without compression", name)
		}
	}
	if s.bound.Crowded() && !s.bound.Admits(connection(ctx)) {
		return status.Error(codes.ResourceExhausted, textCrowded)
	}
	return nil
}

// guardStream guards a method with streams. A request of reflection has some bytes, and its answer
// 70 KB of descriptors.
func (s *service) guardStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := s.guard(stream.Context()); err != nil {
		return err
	}
	if strings.HasPrefix(info.FullMethod, "/grpc.reflection.") {
		if !connection(stream.Context()).LargeAnswer() {
			return status.Error(codes.ResourceExhausted, textCrowded)
		}
	}
	return handle(service, stream)
}

// guarded is a gRPC server that guards the unary methods of every service. An interceptor would
// come too late: gRPC calls interceptors after it has read and decompressed the message.
type guarded struct {
	*grpc.Server
	service *service
}

// RegisterService implements [grpc.ServiceRegistrar].
func (g guarded) RegisterService(d *grpc.ServiceDesc, service any) {
	all := *d
	all.Methods = nil
	for _, m := range d.Methods {
		handle := m.Handler
		m.Handler = func(service any, ctx context.Context, dec func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
			if err := g.service.guard(ctx); err != nil {
				return nil, err
			}
			return handle(service, ctx, dec, i)
		}
		all.Methods = append(all.Methods, m)
	}
	g.Server.RegisterService(&all, service)
}
