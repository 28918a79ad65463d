package server

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/wire/certificates"
)

// rotated is a directory of certificates that the server reads every millisecond.
type rotated struct {
	dir    string
	ca     *certtest.Authority
	keeper *certificates.Keeper
	logs   *logtest.Log
}

// newRotated makes a certificate for localhost, and asks clients for one of the same authority.
func newRotated(t *testing.T) *rotated {
	t.Helper()
	r := &rotated{dir: t.TempDir(), ca: certtest.New(t, "ca"), logs: new(logtest.Log)}
	certificate, key := r.ca.Issue(t, "localhost").Write(t, r.dir)
	var err error
	r.keeper, err = certificates.Open(certificates.Options{
		Files: certificates.Files{
			Certificate: certificates.File{Name: "cert", Path: certificate},
			Key:         certificates.File{Name: "key", Path: key},
			Authorities: certificates.File{Name: "ca", Path: certtest.Write(t, filepath.Join(r.dir, "ca.crt"), r.ca.PEM)},
		},
		Every:  time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(r.logs, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.keeper.Close)
	return r
}

// client is a client that trusts the authority, and always shows the certificate.
func (r *rotated) client(t *testing.T, pairs ...tls.Certificate) credentials.TransportCredentials {
	t.Helper()
	config := &tls.Config{RootCAs: r.ca.Pool, ServerName: "localhost"}
	for _, pair := range pairs {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return credentials.NewTLS(config)
}

// await waits for the certificate of the name.
func (r *rotated) await(t *testing.T, name string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); r.keeper.Now().Certificate.Leaf.Subject.CommonName != name; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come in force:\n%s", name, r.logs)
		}
	}
}

// serveOn serves the service on a listener and returns its target.
func (f *fixture) serveOn(t *testing.T, network, address string) string {
	t.Helper()
	l := must.Get(new(net.ListenConfig).Listen(t.Context(), network, address))(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() { _ = f.server.Serve(l) }()
	if network == "unix" {
		return "unix:" + address
	}
	return l.Addr().String()
}

// ask asks once over a connection of its own.
func askOver(t *testing.T, target string, creds credentials.TransportCredentials) error {
	t.Helper()
	conn := must.Get(grpc.NewClient(target, grpc.WithTransportCredentials(creds)))(t)
	defer conn.Close()
	return askOn(t.Context(), conn)
}

// askOn asks once.
func askOn(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx,
		&ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: []*commonv3.RateLimitDescriptor{descriptor("user", "x")}})
	return err
}

func TestTLSIsForTCPAndNotForTheUnixSocket(t *testing.T) {
	onceForStores(t)
	r := newRotated(t)
	f := start(t, spanRules, func(o *Options) { o.TLS = r.keeper.Server([]string{"envoy"}) })
	dir := must.Get(os.MkdirTemp("", "weir-"))(t) //nolint:usetesting // a socket's path may have about 100 bytes: t.TempDir can be longer
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	tcp, unix := f.serveOn(t, "tcp", "127.0.0.1:0"), f.serveOn(t, "unix", filepath.Join(dir, "s"))
	if err := askOver(t, unix, insecure.NewCredentials()); err != nil {
		t.Errorf("by the Unix socket: %v", err)
	}
	if err := askOver(t, tcp, r.client(t, r.ca.Issue(t, "envoy").TLS(t))); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	for name, refused := range map[string]struct { // each with a server of its own: a line a second is logged
		creds  credentials.TransportCredentials
		logged string
	}{
		"plain":               {insecure.NewCredentials(), "first record does not look like a TLS handshake"},
		"no certificate":      {r.client(t), "client didn't provide a certificate"},
		"another's":           {r.client(t, certtest.New(t, "other").Issue(t, "envoy").TLS(t)), "certificate signed by unknown authority"},
		"one of another name": {r.client(t, r.ca.Issue(t, "thief").TLS(t)), `client certificate is for [\"thief\"], must be for envoy`},
	} {
		f := start(t, spanRules, func(o *Options) { o.TLS = r.keeper.Server([]string{"envoy"}) })
		tcp := f.serveOn(t, "tcp", "127.0.0.1:0")
		if err := askOver(t, tcp, refused.creds); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: got %v, want Unavailable", name, err)
		}
		f.server.GracefulStop() // so that all is logged
		if log := f.logs.Take(); !strings.Contains(log, refused.logged) || !strings.Contains(log, "TLS handshake failed") {
			t.Errorf("%s: the log does not say %s:\n%s", name, refused.logged, log)
		}
	}
}

func TestWhoOnlyTriesThePortIsNotLogged(t *testing.T) {
	onceForStores(t)
	r := newRotated(t)
	f := start(t, spanRules, func(o *Options) { o.TLS = r.keeper.Server(nil) })
	tcp := f.serveOn(t, "tcp", "127.0.0.1:0")
	for range 20 {
		conn := must.Get(net.Dial("tcp", tcp))(t)
		_ = conn.Close()
	}
	f.server.GracefulStop() // waits for all of them
	if log := f.logs.Take(); log != "" {
		t.Errorf("logged:\n%s", log)
	}
}

func TestRotationUnderTrafficFailsNoRequest(t *testing.T) {
	onceForStores(t)
	r := newRotated(t)
	f := start(t, spanRules, func(o *Options) { o.TLS = r.keeper.Server([]string{"envoy"}) })
	target := f.serveOn(t, "tcp", "127.0.0.1:0")
	creds := r.client(t, r.ca.Issue(t, "envoy").TLS(t))
	held := must.Get(grpc.NewClient(target, grpc.WithTransportCredentials(creds)))(t)
	defer held.Close()
	must.Do(t, askOn(t.Context(), held))
	var (
		asked, failed atomic.Int64
		asking        sync.WaitGroup
		enough        = make(chan struct{})
	)
	fail := func(what string, err error) {
		if failed.Add(1) == 1 {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, ask := range []func(){
		func() {
			if err := askOn(t.Context(), held); err != nil {
				fail("over a connection that was there before", err)
			}
		},
		func() {
			if err := askOver(t, target, creds); err != nil {
				fail("over a new connection", err)
			}
		},
	} {
		asking.Go(func() {
			for {
				select {
				case <-enough:
					return
				default:
					ask()
					asked.Add(1)
				}
			}
		})
	}
	line := 0 // of the log
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		second := r.ca.Issue(t, name, "localhost")
		second.Write(t, r.dir)
		r.await(t, name)
		// Files that are not a pair change nothing.
		certtest.Write(t, filepath.Join(r.dir, "tls.key"), []byte("secret"))
		_, line = r.logs.Await(t, line, logtest.Has("certificates refused"))
		from := asked.Load()
		for deadline := time.Now().Add(time.Minute); asked.Load() < from+10 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
	close(enough)
	asking.Wait()
	if held.GetState().String() != "READY" {
		t.Errorf("the connection of before: got %v", held.GetState())
	}
	t.Logf("%d requests, %d failed", asked.Load(), failed.Load())
}

func TestAClientOfAnAuthorityThatIsGoneIsRefused(t *testing.T) {
	onceForStores(t)
	r := newRotated(t)
	f := start(t, spanRules, func(o *Options) { o.TLS = r.keeper.Server(nil) })
	target := f.serveOn(t, "tcp", "127.0.0.1:0")
	next := certtest.New(t, "next")
	before, after := r.client(t, r.ca.Issue(t, "envoy").TLS(t)), r.client(t, next.Issue(t, "envoy").TLS(t))
	must.Do(t, askOver(t, target, before))
	authorities := filepath.Join(r.dir, "ca.crt")
	turn := func(pem []byte) {
		old := r.keeper.Now()
		certtest.Write(t, authorities, pem)
		for deadline := time.Now().Add(time.Minute); r.keeper.Now() == old; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the authorities do not come in force")
			}
		}
	}
	turn(append(append([]byte{}, r.ca.PEM...), next.PEM...)) // both, while clients change theirs
	for name, creds := range map[string]credentials.TransportCredentials{"before": before, "after": after} {
		if err := askOver(t, target, creds); err != nil {
			t.Errorf("with both authorities, %s: %v", name, err)
		}
	}
	turn(next.PEM)
	if err := askOver(t, target, before); status.Code(err) != codes.Unavailable {
		t.Errorf("of the authority that is gone: got %v", err)
	}
	if err := askOver(t, target, after); err != nil {
		t.Errorf("of the new one: %v", err)
	}
}

// A client without a certificate may send 256 KiB as a certificate, and crypto/tls would keep them.
func TestTLSKeepsFewBytesOfAHandshakeThatIsNotComplete(t *testing.T) {
	onceForStores(t)
	r := newRotated(t)
	f := start(t, spanRules, func(o *Options) { o.TLS = r.keeper.Server(nil) })
	conn := must.Get(net.Dial("tcp", f.serveOn(t, "tcp", "127.0.0.1:0")))(t)
	defer conn.Close()
	record := append([]byte{22, 3, 1, 16384 >> 8, 0}, make([]byte, 16384)...) // of a ClientHello of 65535 bytes
	copy(record[5:], []byte{1, 0, 255, 255})
	go func() {
		for range 4 { // 4 bytes are missing in the end
			_, _ = conn.Write(record)
		}
	}()
	answer, err := io.ReadAll(conn) // waits for the end of the connection: 10 seconds without the bound
	if len(answer) > 100 {
		t.Errorf("the answer has %d bytes: %v", len(answer), err)
	}
	f.server.GracefulStop()
	if log := f.logs.Take(); !strings.Contains(log, "24576 bytes") {
		t.Errorf("the log does not say 24576 bytes:\n%s", log)
	}
}

func TestAConnectionWithTLSCarriesManyRequests(t *testing.T) {
	onceForStores(t)
	r := newRotated(t)
	f := start(t, spanRules, func(o *Options) { o.TLS = r.keeper.Server(nil) })
	address := f.serveOn(t, "tcp", "127.0.0.1:0")
	for name, call := range map[string]func(context.Context, *grpc.ClientConn) error{
		"ShouldRateLimit": askOn,
		"health Check": func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := healthgrpc.NewHealthClient(conn).Check(ctx, new(healthgrpc.HealthCheckRequest))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn := must.Get(grpc.NewClient(address, grpc.WithTransportCredentials(r.client(t, r.ca.Issue(t, "envoy").TLS(t)))))(t)
			defer conn.Close()
			for range 1000 { // each has some 80 bytes
				must.Do(t, call(t.Context(), conn))
			}
		})
	}
}
