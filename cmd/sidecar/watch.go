package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/internal/printable"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

type watchFlags struct {
	followFlags
	output, rule string
	outcomes     []string
	oneIn        uint32
}

func newWatch() *cobra.Command {
	var f watchFlags
	cmd := &cobra.Command{
		Use:   "watch [--server ADDRESS] [DOMAIN [KEY[=VALUE][,KEY[=VALUE]…]]]",
		Short: "Show requests of a running sidecar as it answers them, and why no rule matched",
		Long: `Show requests of a running sidecar as it answers them. Each request is a block of lines, one for each descriptor, with its
rule and the hits that are left. The first line is of the descriptor that decided, and has the time of the request and of its answer. Where
no rule has a limit, the line names the nearest miss: the entry that failed, and the entries of the rules in its place. Ctrl-C ends the
watch and prints a summary by rule.

Reports of Envoys with RLQS are shown too, and assignments that differ from the ones before. Such a line names the Envoy.

A domain, entries, --rule and --outcome choose requests with a descriptor that they all fit; a KEY alone stands for all its values. A watch
slows nobody: requests that this command cannot read in time are lost, and it prints their number.

` + entriesHelp,
		Example: `  sidecar watch
  sidecar watch edge client_id=c1
  sidecar watch --outcome unmatched,no_domain
  sidecar watch --outcome over_limit --count 100 --output json`,
		Args: arguments(0, 2, "none, DOMAIN, or DOMAIN DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := f.request(args)
			if err != nil {
				return usage("%w", err)
			}
			if err := f.check(); err != nil {
				return err
			}
			return f.watch(cmd, request)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.add(cmd, 1000)
	flags.StringVar(&f.rule, "rule", "", "only descriptors of the rule with this `path`, such as path=/search,client_id")
	flags.StringSliceVar(&f.outcomes, "outcome", nil, "only descriptors with one of these: "+strings.Join(render.OutcomeNames(), ", "))
	flags.Uint32Var(&f.oneIn, "one-in", 1, "of the chosen requests only one in this `number`, by chance")
	addOutput(cmd, &f.output, "text|json; json is a line for each request")
	return cmd
}

// request returns the filters of the command line.
func (f *watchFlags) request(args []string) (*adminv1.WatchRequest, error) {
	in := &adminv1.WatchRequest{Rule: f.rule, OneIn: f.oneIn, Quotas: true}
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

func (f *watchFlags) watch(cmd *cobra.Command, request *adminv1.WatchRequest) error {
	shown := &watched{out: cmd.OutOrStdout(), notes: cmd.ErrOrStderr(), json: f.output == outputJSON, most: f.count}
	err := f.follow(cmd, request, func(client adminv1.AdminServiceClient) error { return shown.begin(cmd.Context(), client) }, shown.next)
	if ended := shown.end(); ended != nil {
		return ended
	}
	return err
}

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

func (w *watched) begin(ctx context.Context, client adminv1.AdminServiceClient) error {
	w.begun = true
	if !w.json {
		w.lines.Sources = sources(ctx, client)
		w.write([]byte(w.lines.Header()))
	}
	return w.failed
}

// sources returns where a server reads its rules; nil where it does not say so soon. Then places
// have whole paths.
func sources(ctx context.Context, client adminv1.AdminServiceClient) []string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	status, err := client.Status(ctx, new(adminv1.StatusRequest))
	if err != nil {
		return nil
	}
	return status.GetLoads().GetSources()
}

func (w *watched) next(answer *adminv1.WatchResponse) error {
	w.leftOut, w.lost = w.leftOut+answer.GetLeftOut(), w.lost+answer.GetLost()
	var b bytes.Buffer
	for _, r := range answer.GetRequests() {
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
	return w.failed
}

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
	if err := json.Compact(b, printable.JSON(data)); err != nil { // protojson varies the space between tokens
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
