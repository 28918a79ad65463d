package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/pkg/limiter"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

type recordFlags struct {
	followFlags
	salt     string
	hash     []string
	maxBytes int64
}

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
			if err := f.check(); err != nil {
				return err
			}
			o := records.Options{
				Dir: args[0], MaxBytes: f.maxBytes, HashValues: f.hash, Writable: true,
				Logger: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)),
			}
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
	flags := cmd.Flags()
	flags.SortFlags = false
	f.add(cmd, 100_000)
	flags.Int64Var(&f.maxBytes, "max-bytes", records.DefaultMaxBytes, "most bytes of all files together; at the bound the oldest is removed")
	flags.StringSliceVar(&f.hash, "hash-values", nil, "`key` of entries; the record has hashes in place of its values; repeatable")
	flags.StringVar(&f.salt, "hash-salt-file", "", "`file` with a salt of at least 16 bytes; without it the salt is random")
	return cmd
}

// record records until the watch ends.
func (f *recordFlags) record(cmd *cobra.Command, o records.Options) error {
	missed := missed{most: f.count}
	var recorder *records.Recorder
	writing, stop := context.WithCancel(context.Background())
	var going sync.WaitGroup
	err := f.follow(cmd, new(adminv1.WatchRequest), func(adminv1.AdminServiceClient) (err error) {
		if recorder, err = records.NewRecorder(cmd.Context(), o); err != nil {
			return err
		}
		going.Go(func() { _ = recorder.Run(writing) }) // nil
		cmd.PrintErrf("recording in %s\n", o.Dir)
		return nil
	}, func(answer *adminv1.WatchResponse) error { return missed.pass(answer, recorder) })
	stop()
	going.Wait()
	if recorder == nil {
		return err
	}
	s := recorder.Stats()
	fmt.Fprintf(cmd.OutOrStdout(), "%s recorded; %d left out, %d lost, %d failed\n",
		count(int(s.Recorded), "request"), missed.leftOut, missed.lost+s.Dropped+s.Lost, missed.failed)
	if s.Failures > 0 && s.Recorded == 0 {
		return fmt.Errorf("%s: nothing could be recorded", o.Dir)
	}
	return err
}

// missed counts requests that are not recorded.
type missed struct {
	leftOut, lost, failed uint64
	seen, most            uint64 // all requests that came, and the bound; 0: none

	request limiter.Request // used again
	verdict limiter.Verdict // likewise
}

// pass passes the requests of an answer on to a recorder.
func (m *missed) pass(answer *adminv1.WatchResponse, to *records.Recorder) error {
	m.leftOut, m.lost = m.leftOut+answer.GetLeftOut(), m.lost+answer.GetLost()
	for _, r := range answer.GetRequests() {
		if r.GetError() == "" {
			m.verdict.OverLimit = r.GetOverLimit()
			watchedRequest(r, &m.request)
			to.Observe(limiter.Observed{Begun: r.GetAt().AsTime(), Request: &m.request, Verdict: &m.verdict})
		} else {
			m.failed++
		}
		if m.seen++; m.seen == m.most {
			return errEnough
		}
	}
	return nil
}

// watchedRequest fills in the request that a watch showed.
func watchedRequest(from *adminv1.WatchedRequest, to *limiter.Request) {
	to.Reset()
	to.Domain = from.GetDomain()
	for _, d := range from.GetDescriptors() {
		out := to.Add()
		out.Entries = append(out.Entries, render.Entries(d.GetEntries())...)
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
