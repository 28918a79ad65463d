package main

import (
	"context"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirproxy/weir/internal/app"
	"github.com/weirproxy/weir/internal/wire/certificates"
)

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
