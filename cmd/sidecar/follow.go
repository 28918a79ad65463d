package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/printable"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// followFlags is the flags of the commands that watch a sidecar: its address, the rate of the
// requests, and the end.
type followFlags struct {
	server    string
	perSecond uint32
	count     uint64 // requests; 0: no bound
	duration  time.Duration
}

// add adds the flags, with a default for the rate.
func (f *followFlags) add(cmd *cobra.Command, perSecond uint32) {
	addServer(cmd, &f.server)
	flags := cmd.Flags()
	flags.Uint32Var(&f.perSecond, "max-per-second", perSecond, "at most this `number` of requests per second, up to 100000")
	flags.Uint64Var(&f.count, "count", 0, "end after this `number` of requests; 0 = do not")
	addDuration(flags, &f.duration, "for", 0, "end after this time, such as 10m; 0 = do not")
}

// check returns the mistake in the flags that the server cannot see.
func (f *followFlags) check() error {
	if f.perSecond == 0 { // which the server takes for its default
		return usage("--max-per-second: 0: must be from 1 to 100000")
	}
	if f.duration < 0 {
		return usage("--for: %v: must not be negative", f.duration)
	}
	return nil
}

// errEnough ends a watch after --count requests.
var errEnough = errors.New("enough requests")

// follow calls begun when the watch has begun, and then next for each answer. The context, a
// signal, --for and errEnough end the watch without an error. Any other error of begun and next
// ends the watch too.
func (f *followFlags) follow(
	cmd *cobra.Command, request *adminv1.WatchRequest, begun func(adminv1.AdminServiceClient) error, next func(*adminv1.WatchResponse) error,
) error {
	conn, err := connect(cmd, f.server)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)() // a second signal ends the process, which may wait for a pipe that nobody reads
	request.MaxPerSecond = f.perSecond
	client := adminv1.NewAdminServiceClient(conn)
	stream, err := client.Watch(ctx, request)
	began := false
	if err == nil {
		header, failure := stream.Header()
		began, err = header != nil, failure // without a header the call has failed, and Recv says why
	}
	if began && err == nil {
		if f.duration > 0 {
			timer := time.AfterFunc(f.duration, cancel)
			defer timer.Stop()
		}
		if err := begun(client); err != nil {
			return err
		}
	}
	for err == nil {
		var answer *adminv1.WatchResponse
		if answer, err = stream.Recv(); err != nil {
			break
		}
		if err := next(answer); errors.Is(err, errEnough) {
			return nil
		} else if err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	why := status.Convert(err)
	return fmt.Errorf("%s: %s: %s", f.server, why.Code(), printable.Text(why.Message()))
}
