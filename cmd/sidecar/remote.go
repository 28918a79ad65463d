package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// defaultServer is where a sidecar with default settings has its admin service.
const defaultServer = "127.0.0.1:8082"

// patience is how long a running sidecar has for an answer.
const patience = 10 * time.Second

// newReset returns the command that forgets counts of a running sidecar.
func newReset() *cobra.Command {
	var server, output string
	cmd := &cobra.Command{
		Use:   "reset [--server ADDRESS] DOMAIN KEY=VALUE[,KEY=VALUE…]",
		Short: "Have a running sidecar forget what it counted of a descriptor",
		Long: `Have a running sidecar forget what it counted under the keys of a descriptor, so that they are as if never used.

` + entriesHelp,
		Args: arguments(2, -1, "DOMAIN DESCRIPTOR…"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := outputFormat(output); err != nil {
				return usage("%w", err)
			}
			all, err := parseDescriptors(args[1:], nil)
			if err != nil {
				return err
			}
			return ask(cmd, server, output, func(ctx context.Context, c adminv1.AdminServiceClient) (proto.Message, error) {
				return c.Reset(ctx, &adminv1.ResetRequest{Domain: args[0], Descriptors: all})
			})
		},
	}
	addServer(cmd, &server)
	cmd.Flags().StringVar(&output, "output", outputText, "text|json")
	return cmd
}

// addServer adds the flag that says which sidecar to ask.
func addServer(cmd *cobra.Command, server *string) {
	cmd.Flags().StringVar(server, "server", defaultServer, "`address` of the admin service, host:port")
}

// explain asks a running sidecar what it would make of descriptors.
func explain(cmd *cobra.Command, server, domain string, args []string, hits uint32, output string) error {
	all, err := parseDescriptors(args, &hits)
	if err != nil {
		return err
	}
	return ask(cmd, server, output, func(ctx context.Context, c adminv1.AdminServiceClient) (proto.Message, error) {
		return c.Explain(ctx, &adminv1.ExplainRequest{Domain: domain, Descriptors: all})
	})
}

// parseDescriptors reads descriptors as the command line has them.
func parseDescriptors(args []string, hits *uint32) ([]*adminv1.Descriptor, error) {
	var all []*adminv1.Descriptor
	for _, arg := range args {
		entries, err := parseEntries(arg)
		if err != nil {
			return nil, usage("%w", err)
		}
		d := &adminv1.Descriptor{Hits: hits}
		for _, e := range entries {
			d.Entries = append(d.Entries, &adminv1.Entry{Key: e.Key, Value: e.Value})
		}
		all = append(all, d)
	}
	return all, nil
}

// ask makes one call to the admin service and writes the answer.
func ask(
	cmd *cobra.Command, server, output string,
	call func(context.Context, adminv1.AdminServiceClient) (proto.Message, error),
) error {
	conn, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return usage("--server: %w", err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(cmd.Context(), patience)
	defer cancel()
	answer, err := call(ctx, adminv1.NewAdminServiceClient(conn))
	if err != nil {
		s := status.Convert(err)
		return fmt.Errorf("%s: %s: %s", server, s.Code(), s.Message())
	}
	if output == outputJSON {
		data, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(answer)
		if err != nil {
			return err
		}
		return writeJSON(cmd.OutOrStdout(), json.RawMessage(data)) // protojson varies the space between, writeJSON does not
	}
	_, err = io.WriteString(cmd.OutOrStdout(), answerText(answer))
	return err
}

// answerText says what is in an answer for people.
func answerText(answer proto.Message) string {
	var b strings.Builder
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-7s "+format+"\n", append([]any{label}, args...)...)
	}
	switch a := answer.(type) {
	case *adminv1.ResetResponse:
		for _, key := range a.GetKeys() {
			line("key", "%s", key)
		}
		if len(a.GetKeys()) == 0 {
			line("key", "none: no limit applies")
		}
		line("forgot", "%s that had been used", count(int(a.GetForgotten()), "key"))
	case *adminv1.ExplainResponse:
		for i, d := range a.GetDescriptors() {
			if i > 0 {
				b.WriteString("\n")
			}
			line("why", "%s", d.GetWhy())
			if r := d.GetRule(); r != nil {
				line("rule", "%s (%s)", r.GetPath(), place(r.GetFile(), int(r.GetLine())))
			}
			for _, l := range d.GetLimits() {
				line("limit", "%s", limitText(l.GetLimit()))
				line("key", "%s", l.GetKey())
				line("now", "%s", stateText(l))
			}
		}
	}
	return b.String()
}

// limitText says what a limit is, as describe does.
func limitText(l *adminv1.Limit) string {
	text := fmt.Sprintf("%d per %s, %s", l.GetRequests(), span(l.GetPeriod().AsDuration()), l.GetAlgorithm())
	if burst := l.GetBurst(); burst != 0 && burst != l.GetRequests() {
		text += fmt.Sprintf(", burst %d", burst)
	}
	if l.GetCountRejected() {
		text += ", denied hits count too"
	}
	if policy := l.GetOnStoreError(); policy != "" {
		text += ", on store error: " + policy
	}
	return text
}

// stateText says what the hits that were asked for would find.
func stateText(l *adminv1.LimitExplanation) string {
	if l.GetAllowed() {
		return fmt.Sprintf("allowed, %d left after that, as if never used in %v", l.GetRemaining(), l.GetResetAfter().AsDuration())
	}
	return fmt.Sprintf("denied, %d left, the same hits pass in %v, as if never used in %v",
		l.GetRemaining(), l.GetRetryAfter().AsDuration(), l.GetResetAfter().AsDuration())
}
