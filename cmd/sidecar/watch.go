package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/weirproxy/weir/internal/render"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// watchFlags is the flags of watch.
type watchFlags struct {
	server, output, rule string
	outcomes             []string
	oneIn, perSecond     uint32
	count                uint64
	duration             time.Duration
}

// newWatch returns the command that shows the requests of a running sidecar.
func newWatch() *cobra.Command {
	var f watchFlags
	cmd := &cobra.Command{
		Use:   "watch [--server ADDRESS] [DOMAIN [KEY[=VALUE][,KEY[=VALUE]…]]]",
		Short: "Show requests of a running sidecar as it answers them, and why no rule matched",
		Long: `Show requests of a running sidecar as it answers them. Each descriptor has a line with its rule, the hits that are left, and the time
that the answer took. Where no rule has a limit, the line names the nearest miss: the entry that failed, and the entries of the rules in its
place. Ctrl-C ends the watch and prints a summary by rule.

A domain, entries, --rule and --outcome choose requests with a descriptor that they all fit; a KEY alone stands for all its values. A watch
slows nobody: requests that this command cannot read in time are lost, and it prints their number.

` + entriesHelp,
		Example: `  sidecar watch
  sidecar watch edge client_id=c1
  sidecar watch --outcome unmatched,no_domain
  sidecar watch --outcome over_limit --count 100 --output json`,
		Args: arguments(0, 2, "none, DOMAIN, or DOMAIN DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := outputFormat(f.output); err != nil {
				return usage("%w", err)
			}
			request, err := f.request(args)
			if err != nil {
				return usage("%w", err)
			}
			if f.duration < 0 {
				return usage("--for: %v: must not be negative", f.duration)
			}
			return f.watch(cmd, request)
		},
	}
	addServer(cmd, &f.server)
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.rule, "rule", "", "only descriptors of the rule with this `path`, such as path=/search,client_id")
	flags.StringSliceVar(&f.outcomes, "outcome", nil, "only descriptors with one of these: "+strings.Join(render.OutcomeNames(), ", "))
	flags.Uint32Var(&f.oneIn, "one-in", 1, "of the chosen requests only one in this `number`, by chance")
	flags.Uint32Var(&f.perSecond, "max-per-second", 1000, "at most this `number` of requests per second, up to 100000")
	flags.Uint64Var(&f.count, "count", 0, "end after this `number` of requests; 0 = do not")
	flags.DurationVar(&f.duration, "for", 0, "end after this time, such as 10s; 0 = do not")
	flags.StringVar(&f.output, "output", outputText, "text|json; json is a line for each request")
	return cmd
}

// request returns the filters of the command line.
func (f *watchFlags) request(args []string) (*adminv1.WatchRequest, error) {
	in := &adminv1.WatchRequest{Rule: f.rule, OneIn: f.oneIn, MaxPerSecond: f.perSecond}
	if f.perSecond == 0 {
		return nil, errors.New("--max-per-second: 0: must be from 1 to 100000")
	}
	if len(args) > 0 {
		in.Domain = args[0]
	}
	if len(args) > 1 {
		entries, err := parseParts(args[1], true)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			in.Entries = append(in.Entries, &adminv1.Entry{Key: e.Key, Value: e.Value})
		}
	}
	for _, name := range f.outcomes {
		o := render.OutcomeOf(name)
		if o == adminv1.Outcome_OUTCOME_UNSPECIFIED {
			return nil, fmt.Errorf("--outcome: %q: must be %s", name, strings.Join(render.OutcomeNames(), ", "))
		}
		in.Outcomes = append(in.Outcomes, o)
	}
	return in, nil
}

// watch shows requests until the context, a signal, the count or the time ends it.
func (f *watchFlags) watch(cmd *cobra.Command, request *adminv1.WatchRequest) error {
	conn, err := connect(cmd, f.server)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	stream, err := adminv1.NewAdminServiceClient(conn).Watch(ctx, request)
	if err == nil {
		_, err = stream.Header() // the watch has begun
	}
	if err == nil && f.duration > 0 {
		timer := time.AfterFunc(f.duration, cancel)
		defer timer.Stop()
	}
	shown := &watched{out: cmd.OutOrStdout(), notes: cmd.ErrOrStderr(), json: f.output == outputJSON, most: f.count}
	if err == nil {
		err = shown.all(stream)
	}
	ended := shown.end()
	switch {
	case errors.Is(err, errEnough), ctx.Err() != nil:
		return ended
	case shown.failed != nil:
		return shown.failed
	}
	s := status.Convert(err)
	return fmt.Errorf("%s: %s: %s", f.server, s.Code(), render.Printable(s.Message()))
}

// errEnough ends a watch after --count requests.
var errEnough = errors.New("enough requests")

// watched writes requests as they come.
type watched struct {
	out, notes io.Writer
	json       bool
	most       uint64 // requests; 0: no bound
	failed     error  // of out

	begun         bool
	seen          uint64
	lines         render.Watched
	summary       render.WatchSummary
	leftOut, lost uint64    // not yet noted
	noted         time.Time // of the last note
}

// all writes all requests of a stream, and returns the error that ended it.
func (w *watched) all(stream grpc.ServerStreamingClient[adminv1.WatchResponse]) error {
	w.begun = true
	if !w.json {
		w.write([]byte(w.lines.Header()))
	}
	for w.failed == nil {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		w.leftOut, w.lost = w.leftOut+m.GetLeftOut(), w.lost+m.GetLost()
		var b bytes.Buffer
		for _, r := range m.GetRequests() {
			if err := w.append(&b, r); err != nil {
				return err
			}
			if w.seen++; w.seen == w.most {
				w.write(b.Bytes())
				return errEnough
			}
		}
		w.write(b.Bytes())
		if time.Since(w.noted) >= time.Second {
			w.note()
		}
	}
	return w.failed
}

// append adds the lines of a request.
func (w *watched) append(b *bytes.Buffer, r *adminv1.WatchedRequest) error {
	if !w.json {
		w.summary.Add(r)
		b.WriteString(w.lines.Lines(r))
		return nil
	}
	data, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(r)
	if err != nil {
		return err
	}
	if err := json.Compact(b, render.PrintableJSON(data)); err != nil { // protojson varies the space between tokens
		return err
	}
	b.WriteByte('\n')
	return nil
}

// write writes to out until that fails.
func (w *watched) write(data []byte) {
	if w.failed == nil && len(data) > 0 {
		_, w.failed = w.out.Write(data)
	}
}

// note says how many requests were not shown.
func (w *watched) note() {
	if w.leftOut > 0 {
		fmt.Fprintf(w.notes, "%s left out: raise --max-per-second, or choose fewer requests\n", count(int(w.leftOut), "request"))
	}
	if w.lost > 0 {
		fmt.Fprintf(w.notes, "%s lost: too many for this reader, or too large to show\n", count(int(w.lost), "request"))
	}
	if w.leftOut > 0 || w.lost > 0 {
		w.leftOut, w.lost, w.noted = 0, 0, time.Now()
	}
}

// end writes the summary of a watch that had begun.
func (w *watched) end() error {
	w.note()
	if w.begun && !w.json {
		w.write([]byte("\n" + w.summary.String()))
	}
	return w.failed
}
