package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/admin/render"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// defaultServer is where a sidecar with default settings has its admin service.
const defaultServer = "127.0.0.1:8082"

// answerTimeout is the time for one call.
const answerTimeout = 10 * time.Second

// newReset returns the command that forgets counts of a running sidecar.
func newReset() *cobra.Command {
	var server, output string
	cmd := &cobra.Command{
		Use:   "reset [--server ADDRESS] DOMAIN KEY=VALUE[,KEY=VALUE…]",
		Short: "Make a running sidecar forget the counts of a descriptor",
		Long: `Make a running sidecar forget the counts under the keys of a descriptor. The keys are idle afterwards.

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
			answer, err := ask(cmd, server, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.ResetResponse, error) {
				return c.Reset(ctx, &adminv1.ResetRequest{Domain: args[0], Descriptors: all})
			})
			if err != nil {
				return err
			}
			return writeAnswer(cmd.OutOrStdout(), output, answer, resetText(answer))
		},
	}
	addServer(cmd, &server)
	cmd.Flags().StringVar(&output, "output", outputText, "text|json")
	return cmd
}

// addServer adds the flag that says which sidecar to ask.
func addServer(cmd *cobra.Command, server *string) {
	cmd.Flags().StringVar(server, "server", defaultServer, "`address` of the admin service, host:port; the port is needed")
	addAccess(cmd)
}

// explain asks a running sidecar to explain descriptors.
func explain(cmd *cobra.Command, server, domain string, args []string, hits uint32, output string, expected []string) error {
	all, err := parseDescriptors(args, &hits)
	if err != nil {
		return err
	}
	answer, err := ask(cmd, server, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.ExplainResponse, error) {
		return c.Explain(ctx, &adminv1.ExplainRequest{Domain: domain, Descriptors: all})
	})
	if err != nil {
		return err
	}
	return writeExplanation(cmd, output, answer, render.ExplanationText(domain, answer, true), expected)
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

// ask makes one call to the admin service and returns the answer.
func ask[M proto.Message](cmd *cobra.Command, server string, call func(context.Context, adminv1.AdminServiceClient) (M, error)) (M, error) {
	var none M
	conn, err := connect(cmd, server)
	if err != nil {
		return none, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(cmd.Context(), answerTimeout)
	defer cancel()
	answer, err := call(ctx, adminv1.NewAdminServiceClient(conn))
	if err != nil {
		s := status.Convert(err)
		return none, fmt.Errorf("%s: %s: %s", server, s.Code(), s.Message())
	}
	return answer, nil
}

// resetText returns the answer to a reset as text for people.
func resetText(r *adminv1.ResetResponse) string {
	var b strings.Builder
	for _, key := range r.GetKeys() {
		fmt.Fprintf(&b, "key     %s\n", key)
	}
	if len(r.GetKeys()) == 0 {
		b.WriteString("key     none: no limit applies\n")
	}
	fmt.Fprintf(&b, "forgot  %s that had been used\n", count(int(r.GetForgotten()), "key"))
	return b.String()
}
