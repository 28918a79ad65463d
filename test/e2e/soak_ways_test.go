package e2e

import (
	"crypto/tls"
	"fmt"
	"net"
	"testing"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirproxy/weir/test/parts"
)

// serverTLS is upstreamTLS without a certificate of Envoy.
const serverTLS = `
name: envoy.transport_sockets.tls
typed_config:
  "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
  sni: weir
  common_tls_context:
    alpn_protocols: [h2]
    validation_context:
      trusted_ca: { filename: %[1]q }
      match_typed_subject_alt_names:
      - { san_type: DNS, matcher: { exact: weir } }
`

// A way is how clients reach the programs of a soak: through TCP or a Unix socket, plain or with
// TLS.
type way struct {
	unix      bool
	files     *secure // of TLS; nil: plain
	args      []string
	transport string // of Envoy
	client    credentials.TransportCredentials
}

func plainWay(*testing.T) way { return way{client: insecure.NewCredentials()} }

func unixWay(*testing.T) way { return way{unix: true, client: insecure.NewCredentials()} }

func tlsWay(t *testing.T) way {
	t.Helper()
	files := newSecure(t)
	return way{
		files: files, args: []string{"--grpc-tls-cert=" + files.path("tls.crt"), "--grpc-tls-key=" + files.path("tls.key")},
		transport: fmt.Sprintf(serverTLS, files.path("ca.crt")),
		client:    credentials.NewTLS(&tls.Config{RootCAs: files.ca.Pool, ServerName: "weir"}),
	}
}

func mutualWay(t *testing.T) way {
	t.Helper()
	files := newSecure(t)
	pair := files.ca.Issue(t, "envoy")
	certificate, key := pair.Write(t, t.TempDir())
	return way{
		files: files, args: append(files.args(), "--grpc-tls-client-san=envoy"),
		transport: fmt.Sprintf(upstreamTLS, certificate, key, files.path("ca.crt")),
		client:    credentials.NewTLS(&tls.Config{RootCAs: files.ca.Pool, ServerName: "weir", Certificates: []tls.Certificate{pair.TLS(t)}}),
	}
}

// address returns an address for a program that starts again there.
func (w *way) address(t *testing.T) string {
	t.Helper()
	if w.unix {
		return socketPath(t)
	}
	address, err := parts.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// start starts a sidecar with the rules at path.
func (w *way) start(t *testing.T, path, address string) *sidecar {
	t.Helper()
	args := []string{"--grpc-address=" + address}
	if w.unix {
		args = []string{"--grpc-address=", "--grpc-socket=" + address}
	}
	return startSidecarOn(t, path, append(args, w.args...)...)
}

// endpoint is the address as Envoy writes it.
func (w *way) endpoint(t *testing.T, address string) string {
	t.Helper()
	if w.unix {
		return pipeAddress(address)
	}
	return tcpAddress(t, address)
}

// target is the address as gRPC writes it.
func (w *way) target(address string) string {
	if w.unix {
		return "unix:" + address
	}
	return address
}

// aged starts cmd/ratelimit, which asks connections to go after a second.
func (w *way) aged(t *testing.T, root, address string) *ratelimit {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return startRatelimit(t, "GRPC_HOST="+host, "GRPC_PORT="+port, "RUNTIME_ROOT="+root, "GRPC_MAX_CONNECTION_AGE=1s")
}
