package admin

import (
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/admin/watch"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Watch implements the AdminService. The headers go out when the watch has begun. While the client
// does not read, Send waits, and the watcher loses requests.
func (a *service) Watch(in *adminv1.WatchRequest, stream grpc.ServerStreamingServer[adminv1.WatchResponse]) error {
	w, err := a.hub.Subscribe(in)
	if err != nil {
		if _, ok := errors.AsType[*watch.InvalidError](err); ok {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	defer w.Close()
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	for {
		m, err := w.Next(stream.Context())
		if err != nil {
			return a.options.Service.Status(err)
		}
		if err := stream.SendMsg([]byte(m)); err != nil {
			return err
		}
	}
}
