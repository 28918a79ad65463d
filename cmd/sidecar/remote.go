package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/app"
	"github.com/weirproxy/weir/internal/wire/certificates"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// defaultServer is where a sidecar with default settings has its admin service.
const defaultServer = "127.0.0.1:8082"

// answerTimeout is the time for one call.
const answerTimeout = 10 * time.Second

// remote is the flags of a command that asks a running sidecar.
type remote struct{ server, output string }

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

func newReset() *cobra.Command {
	var c remote
	cmd := &cobra.Command{
		Use:   "reset [--server ADDRESS] DOMAIN KEY=VALUE[,KEY=VALUE…]",
		Short: "Make a running sidecar forget the counts of a descriptor",
		Long: `Make a running sidecar forget the counts under the keys of a descriptor. The keys are reset afterwards.
Blocks of limits with escalate end.

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
	addServer(cmd, &c.server)
	c.addOutput(cmd)
	return cmd
}

func addServer(cmd *cobra.Command, server *string) {
	cmd.Flags().StringVar(server, "server", defaultServer, "`address` of the admin service, host:port; the port is needed")
	addAccess(cmd)
}

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

// addAccess adds the flags that open the admin service of a sidecar: a token, and TLS.
func addAccess(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.String("token-file", "", "`file` that holds the token of the admin service, as --admin-token-file of serve")
	flags.Bool("tls", false, "connect with TLS; the authorities are the system's, or the ones in --tls-ca")
	flags.String("tls-ca", "", "`file` with the authorities of the server's certificate, PEM; implies --tls")
	flags.String("tls-cert", "", "`file` with the certificate to show to the server, PEM; implies --tls")
	flags.String("tls-key", "", "`file` with the key of --tls-cert, PEM")
}

// maxAnswer bounds a message of the admin service, in bytes. Many grants, or the nearest misses of
// many descriptors, take more than the 4 MiB that gRPC allows by default.
const maxAnswer = 256 << 20

// serverAddress accepts host:port, as [grpc.NewClient] would take 443 for a missing port.
func serverAddress(s string) error {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(s, "dns:///"))
	if err != nil || port == "" || strings.Contains(host, "/") {
		return usage("--server: %q: must be host:port, such as %s or [::1]:8082", s, defaultServer)
	}
	return nil
}

// connect returns a connection to the admin service, with the token and the certificates of the
// flags of addAccess. The caller closes it.
func connect(cmd *cobra.Command, server string) (*grpc.ClientConn, error) {
	if err := serverAddress(server); err != nil {
		return nil, err
	}
	flag := func(name string) string { return cmd.Flag(name).Value.String() }
	options := []grpc.DialOption{grpc.WithNoProxy(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer))}
	files := certificates.Files{
		Certificate: certificates.File{Name: "--tls-cert", Path: flag("tls-cert")},
		Key:         certificates.File{Name: "--tls-key", Path: flag("tls-key")},
		Authorities: certificates.File{Name: "--tls-ca", Path: flag("tls-ca")},
	}
	secure := insecure.NewCredentials()
	if flag("tls") == "true" || files.Certificate.Path != "" || files.Key.Path != "" || files.Authorities.Path != "" {
		set, err := files.Read()
		if err != nil {
			return nil, usage("%w", err)
		}
		secure = credentials.NewTLS(set.Client("")) // the name is the host of the server
	}
	options = append(options, grpc.WithTransportCredentials(secure))
	if path := flag("token-file"); path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, usage("--token-file: %w", err)
		}
		token, err := app.ParseToken(certificates.File{Name: "--token-file", Path: path}, data)
		if err != nil {
			return nil, usage("%w", err)
		}
		options = append(options, grpc.WithPerRPCCredentials(bearer(token)))
	}
	conn, err := grpc.NewClient(server, options...)
	if err != nil {
		return nil, usage("--server: %w", err)
	}
	return conn, nil
}

// bearer is a token that every call carries.
type bearer string

// GetRequestMetadata implements [credentials.PerRPCCredentials].
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements [credentials.PerRPCCredentials]. The admin service is on
// loopback by default, without TLS.
func (b bearer) RequireTransportSecurity() bool { return false }
