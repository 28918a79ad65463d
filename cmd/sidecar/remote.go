package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// defaultServer is where a sidecar with default settings has its admin service.
const defaultServer = "127.0.0.1:8082"

// answerTimeout is the time for one call.
const answerTimeout = 10 * time.Second

// remote is the flags of a command that asks a running sidecar.
type remote struct{ server, output string }

// add adds the flags that say which sidecar to ask.
func (c *remote) add(cmd *cobra.Command) { addServer(cmd, &c.server) }

// addOutput adds the flag of the form of output.
func (c *remote) addOutput(cmd *cobra.Command) { addOutput(cmd, &c.output, "text|json") }

// method is a method of the admin service.
type method[Q, A proto.Message] func(adminv1.AdminServiceClient, context.Context, Q, ...grpc.CallOption) (A, error)

// show makes one call to the admin service and writes the answer: as JSON, or as the text of it.
func show[Q, A proto.Message](cmd *cobra.Command, c *remote, call method[Q, A], request Q, text func(A) string) error {
	answer, err := ask(cmd, c.server, call, request)
	if err != nil {
		return err
	}
	return writeAnswer(cmd.OutOrStdout(), c.output, answer, text(answer))
}

// ask makes one call to the admin service and returns the answer.
func ask[Q, A proto.Message](cmd *cobra.Command, server string, call method[Q, A], request Q) (A, error) {
	var none A
	conn, err := connect(cmd, server)
	if err != nil {
		return none, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(cmd.Context(), answerTimeout)
	defer cancel()
	answer, err := call(adminv1.NewAdminServiceClient(conn), ctx, request)
	if err != nil {
		s := status.Convert(err)
		return none, fmt.Errorf("%s: %s: %s", server, s.Code(), s.Message())
	}
	return answer, nil
}

// newReset returns the command that forgets counts of a running sidecar.
func newReset() *cobra.Command {
	var c remote
	cmd := &cobra.Command{
		Use:   "reset [--server ADDRESS] DOMAIN KEY=VALUE[,KEY=VALUE…]",
		Short: "Make a running sidecar forget the counts of a descriptor",
		Long: `Make a running sidecar forget the counts under the keys of a descriptor. The keys are idle afterwards.

` + entriesHelp,
		Args: arguments(2, -1, "DOMAIN DESCRIPTOR…"),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := parseDescriptors(args[1:], nil)
			if err != nil {
				return err
			}
			return show(cmd, &c, adminv1.AdminServiceClient.Reset, &adminv1.ResetRequest{Domain: args[0], Descriptors: all}, resetText)
		},
	}
	c.add(cmd)
	c.addOutput(cmd)
	return cmd
}

// addServer adds the flags that say which sidecar to ask.
func addServer(cmd *cobra.Command, server *string) {
	cmd.Flags().StringVar(server, "server", defaultServer, "`address` of the admin service, host:port; the port is needed")
	addAccess(cmd)
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
