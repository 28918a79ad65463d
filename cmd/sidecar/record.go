package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/records"
	"github.com/weirproxy/weir/internal/render"
	"github.com/weirproxy/weir/pkg/limiter"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// recordFlags is the flags of record.
type recordFlags struct {
	server, salt string
	hash         []string
	maxBytes     int64
	perSecond    uint32
	count        uint64
	duration     time.Duration
}

// newRecord returns the command that records the requests of a running sidecar.
func newRecord() *cobra.Command {
	var f recordFlags
	cmd := &cobra.Command{
		Use:   "record [--server ADDRESS] [--for DURATION] DIRECTORY",
		Short: "Record requests of a running sidecar, for simulate and suggest",
		Long: `Record requests of a running sidecar in compressed files, for simulate and suggest, until Ctrl-C, SIGTERM, --for or --count. The command watches the
sidecar: requests above --max-per-second are left out, and requests that come too fast are lost. At the end the command prints both numbers. Limits that come
with requests (overrides) are not recorded. serve --record records all requests with all their parts.`,
		Example: `  sidecar record --for 10m --hash-values client_id /tmp/record`,
		Args:    arguments(1, 1, "DIRECTORY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.duration < 0 {
				return usage("--for: %v: must not be negative", f.duration)
			}
			o := records.Options{Dir: args[0], MaxBytes: f.maxBytes, HashValues: f.hash, Logger: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))}
			var err error
			switch {
			case f.salt != "" && len(f.hash) == 0:
				return usage("--hash-salt-file: there is nothing to hash: needs --hash-values")
			case f.salt != "":
				if o.Salt, err = records.ReadSalt(f.salt); err != nil {
					return usage("--hash-salt-file: %w", err)
				}
			}
			return f.record(cmd, o)
		},
	}
	addServer(cmd, &f.server)
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.DurationVar(&f.duration, "for", 0, "end after this time, such as 10m; 0 = do not")
	flags.Uint64Var(&f.count, "count", 0, "end after this `number` of requests; 0 = do not")
	flags.Uint32Var(&f.perSecond, "max-per-second", 100_000, "at most this `number` of requests per second, up to 100000")
	flags.Int64Var(&f.maxBytes, "max-bytes", records.DefaultMaxBytes, "most bytes of all files together; at the bound the oldest is removed")
	flags.StringSliceVar(&f.hash, "hash-values", nil, "`key` of entries; the record has hashes in place of its values; repeatable")
	flags.StringVar(&f.salt, "hash-salt-file", "", "`file` with a salt of at least 16 bytes; without it the salt is random")
	return cmd
}

// record records until the context, a signal or the time ends it.
func (f *recordFlags) record(cmd *cobra.Command, o records.Options) error {
	conn, err := connect(cmd, f.server)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	recorder, err := records.NewRecorder(ctx, o)
	if err != nil {
		return err
	}
	writing, stop := context.WithCancel(context.Background())
	var going sync.WaitGroup
	going.Go(func() { _ = recorder.Run(writing) }) // nil
	end := func() { stop(); going.Wait() }
	defer end()
	stream, err := adminv1.NewAdminServiceClient(conn).Watch(ctx, &adminv1.WatchRequest{MaxPerSecond: f.perSecond})
	if err == nil {
		_, err = stream.Header() // the watch has begun
	}
	if err == nil && f.duration > 0 {
		timer := time.AfterFunc(f.duration, cancel)
		defer timer.Stop()
	}
	missed := missed{most: f.count}
	if err == nil {
		cmd.PrintErrf("recording in %s\n", o.Dir)
		err = missed.pass(stream, recorder)
	}
	ended := ctx.Err() != nil
	end()
	s := recorder.Stats()
	fmt.Fprintf(cmd.OutOrStdout(), "%s recorded; %d left out, %d lost, %d failed\n",
		count(int(s.Recorded), "request"), missed.leftOut, missed.lost+s.Dropped+s.Lost, missed.failed)
	switch {
	case s.Failures > 0 && s.Recorded == 0:
		return fmt.Errorf("%s: nothing could be recorded", o.Dir)
	case ended, errors.Is(err, errEnough), errors.Is(err, io.EOF):
		return nil
	}
	why := status.Convert(err)
	return fmt.Errorf("%s: %s: %s", f.server, why.Code(), render.Printable(why.Message()))
}

// missed counts requests that are not recorded.
type missed struct {
	leftOut, lost, failed uint64
	seen, most            uint64 // all requests that came, and the bound; 0: none
}

// pass passes the requests of a watch on to a recorder, and returns the error that ended the watch.
func (m *missed) pass(stream grpc.ServerStreamingClient[adminv1.WatchResponse], to *records.Recorder) error {
	var request limiter.Request
	var verdict limiter.Verdict
	for {
		in, err := stream.Recv()
		if err != nil {
			return err
		}
		m.leftOut, m.lost = m.leftOut+in.GetLeftOut(), m.lost+in.GetLost()
		for _, r := range in.GetRequests() {
			if r.GetError() == "" {
				verdict.OverLimit = r.GetOverLimit()
				watchedRequest(r, &request)
				to.Observe(limiter.Observed{Begun: r.GetAt().AsTime(), Request: &request, Verdict: &verdict})
			} else {
				m.failed++
			}
			if m.seen++; m.seen == m.most {
				return errEnough
			}
		}
	}
}

// watchedRequest fills in the request that a watch showed.
func watchedRequest(from *adminv1.WatchedRequest, to *limiter.Request) {
	to.Reset()
	to.Domain = from.GetDomain()
	for _, d := range from.GetDescriptors() {
		out := to.Add()
		for _, e := range d.GetEntries() {
			out.Entries = append(out.Entries, limiter.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		switch hits := d.GetHits(); {
		case hits < 0:
			out.Hits, out.Refund = uint64(-hits), true
		case hits == 0:
			out.Probe = true
		default:
			out.Hits = uint64(hits)
		}
	}
}
