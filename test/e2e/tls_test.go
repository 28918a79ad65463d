package e2e

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/test/parts"
)

// upstreamTLS is Envoy's transport socket for a sidecar that is called weir.
const upstreamTLS = `
name: envoy.transport_sockets.tls
typed_config:
  "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
  sni: weir
  common_tls_context:
    alpn_protocols: [h2]
    tls_certificates:
    - certificate_chain: { filename: %[1]q }
      private_key: { filename: %[2]q }
    validation_context:
      trusted_ca: { filename: %[3]q }
      match_typed_subject_alt_names:
      - { san_type: DNS, matcher: { exact: weir } }
`

const tlsRules = `
domain: e2e
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 2, unit: year}
`

// secure is the files of TLS of a sidecar called weir.
type secure struct {
	dir string
	ca  *certtest.Authority
}

func newSecure(t *testing.T) *secure {
	t.Helper()
	s := &secure{dir: t.TempDir(), ca: certtest.New(t, "ca")}
	s.ca.Issue(t, "weir").Write(t, s.dir)
	certtest.Write(t, s.path("ca.crt"), s.ca.PEM)
	return s
}

func (s *secure) path(name string) string { return filepath.Join(s.dir, name) }

// args are the settings that name them.
func (s *secure) args() []string {
	return []string{"--grpc-tls-cert=" + s.path("tls.crt"), "--grpc-tls-key=" + s.path("tls.key"), "--grpc-tls-client-ca=" + s.path("ca.crt")}
}

func TestEnvoyAsksWithACertificateAndSeesNothingOfARotation(t *testing.T) {
	t.Parallel()
	files, client := newSecure(t), t.TempDir()
	certificate, key := files.ca.Issue(t, "envoy").Write(t, client)
	s := startSidecar(t, tlsRules, append(files.args(), "--grpc-tls-client-san=envoy")...)
	e := startEnvoy(t, envoyConfig{
		RateLimits: byUser, Endpoints: []string{tcpAddress(t, s.GRPC)}, FailureModeDeny: true, HealthChecked: true,
		Transport: fmt.Sprintf(upstreamTLS, certificate, key, files.path("ca.crt")),
	})
	if diff := cmp.Diff([]int{200, 200, 429}, e.codes(t, 3, "/", "x-user: alice")); diff != "" {
		t.Errorf("with TLS (-want +got):\n%s", diff)
	}
	// Two new certificates under traffic: Weir answers every request, and no connection goes.
	var asking sync.WaitGroup
	enough := make(chan struct{})
	seen := make(map[int]int)
	asking.Go(func() {
		for {
			select {
			case <-enough:
				return
			default:
			}
			a, err := e.try(parts.Soon(t), "/", "x-user: alice")
			if err != nil {
				a.code = -1
			}
			seen[a.code]++
		}
	})
	for range 2 {
		mark := s.Mark()
		files.ca.Issue(t, "weir").Write(t, files.dir)
		if _, err := s.AwaitMessage(parts.Soon(t), mark, "certificates loaded"); err != nil {
			t.Error(err)
		}
	}
	mark := s.Mark()
	certtest.Write(t, files.path("tls.key"), []byte("bad"))
	if _, err := s.AwaitMessage(parts.Soon(t), mark, "certificates refused"); err != nil {
		t.Error(err)
	}
	close(enough)
	asking.Wait()
	if seen[429] == 0 || len(seen) != 1 { // any failure would be 500
		t.Errorf("codes: got %v, want 429 alone", seen)
	}
	t.Logf("codes during rotations: %v", seen)
	if got := e.stat(t, "cluster.rls.ssl.handshake"); got == 0 {
		t.Error("Envoy has made no handshake")
	}
	if got := e.stat(t, "cluster.rls.upstream_cx_destroy"); got != 0 {
		t.Errorf("connections that went: got %d, want 0", got)
	}
}

// TestWhatTheSystemTrustsIsNoClient checks a difference to envoyproxy/ratelimit, which accepts a
// client whose certificate any authority of the system signed.
func TestWhatTheSystemTrustsIsNoClient(t *testing.T) {
	files, public := newSecure(t), certtest.New(t, "public")
	t.Setenv("SSL_CERT_FILE", certtest.Write(t, filepath.Join(t.TempDir(), "roots.pem"), bytes.Join([][]byte{public.PEM, files.ca.PEM}, nil)))
	t.Setenv("SSL_CERT_DIR", t.TempDir())
	s := startSidecar(t, tlsRules, files.args()...)
	for name, test := range map[string]struct {
		of   *certtest.Authority
		want codes.Code
	}{"its own": {files.ca, codes.OK}, "the system's": {public, codes.Unavailable}} {
		pair := test.of.Issue(t, "envoy").TLS(t)
		conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			RootCAs: files.ca.Pool, ServerName: "weir",
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
		})))
		if err != nil {
			t.Fatal(err)
		}
		_, err = ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(parts.Soon(t), request(1, "user", "x"))
		_ = conn.Close()
		if status.Code(err) != test.want {
			t.Errorf("a client of %s authority: got %v, want %v", name, err, test.want)
		}
	}
	line, err := s.AwaitMessage(parts.Soon(t), 0, "TLS handshake failed")
	if err != nil || !strings.Contains(line, "certificate signed by unknown authority") {
		t.Errorf("the log: got %s, %v", line, err)
	}
}
