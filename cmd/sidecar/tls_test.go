package main

import (
	"crypto/tls"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/testing/certtest"
)

func TestMistakesOfTLSAreAllTold(t *testing.T) {
	dir, ca := t.TempDir(), certtest.New(t, "ca")
	certificate, key := ca.Issue(t, "localhost").Write(t, dir)
	other := certtest.Write(t, filepath.Join(dir, "other.key"), ca.Issue(t, "localhost").Key)
	missing := filepath.Join(dir, "missing")
	tests := []struct {
		name string
		args []string
		want []string
	}{
		{"no key", []string{"--grpc-tls-cert", certificate}, []string{"grpc-tls-cert, grpc-tls-key: must both be given, or neither"}},
		{"no certificate", []string{"--grpc-tls-key", key}, []string{"grpc-tls-cert, grpc-tls-key: must both be given, or neither"}},
		{"another's key, and no authorities", []string{"--grpc-tls-cert", certificate, "--grpc-tls-key", other, "--grpc-tls-client-ca", missing, "--max-keys=0"}, []string{
			`--max-keys: "0": must be a whole number from 1 to 2147483647`,
		}},
		{"another's key, no authorities, and more", []string{"--grpc-tls-cert", certificate, "--grpc-tls-key", other, "--grpc-tls-client-ca", missing, "--store=redis"}, []string{
			"grpc-tls-client-ca: open " + missing + ": no such file or directory",
			"grpc-tls-cert, grpc-tls-key: " + certificate + " and " + other + ": private key does not match public key",
			"redis-url: is missing: --store redis needs the address of Redis, such as redis://127.0.0.1:6379",
		}},
		{"clients without a server's", []string{"--grpc-tls-client-ca", certificate}, []string{
			"grpc-tls-cert: is missing: clients can only show certificates to a server with grpc-tls-cert and grpc-tls-key",
		}},
		{"names that nobody vouches for", []string{"--grpc-tls-cert", certificate, "--grpc-tls-key", key, "--grpc-tls-client-san=envoy"}, []string{
			"grpc-tls-client-san: no authority signs the names: needs grpc-tls-client-ca",
		}},
		{"nothing to secure", []string{"--grpc-address=", "--grpc-socket=@weir", "--grpc-tls-cert", certificate, "--grpc-tls-key", key}, []string{
			"grpc-tls-cert: there is nothing to secure: TLS is for grpc-address, which is off; the Unix socket has its permissions",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := run(t.Context(), append([]string{"--rules", rulesFile(t, rulesOf("5"))}, test.args...), strings.NewReader(""), io.Discard, io.Discard)
			if err == nil {
				t.Fatal("got no error")
			}
			if diff := cmp.Diff(test.want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
			if code := report(io.Discard, err); code != exitBad {
				t.Errorf("exit code: got %d, want %d", code, exitBad)
			}
		})
	}
}

// dialTLS connects to the gRPC service with a certificate.
func (r *running) dialTLS(t *testing.T, ca *certtest.Authority, pairs ...tls.Certificate) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(r.address["grpc tcp"], grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: ca.Pool, ServerName: "localhost", Certificates: pairs,
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestASecretThatIsMountedAnewComesInForceAndBreaksNothing(t *testing.T) {
	dir, ca := t.TempDir(), certtest.New(t, "ca")
	// As Kubernetes mounts a Secret.
	turn := func(version string) {
		t.Helper()
		to := filepath.Join(dir, version)
		if err := os.Mkdir(to, 0o700); err != nil {
			t.Fatal(err)
		}
		ca.Issue(t, version, "localhost").Write(t, to)
		certtest.Write(t, filepath.Join(to, "ca.crt"), ca.PEM)
		if err := os.Symlink(version, filepath.Join(dir, "..next")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..next"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	turn("..first")
	for _, file := range []string{"tls.crt", "tls.key", "ca.crt"} {
		if err := os.Symlink(filepath.Join("..data", file), filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
	}
	r := start(t, "--rules", rulesFile(t, rulesOf("5")), "--grpc-tls-cert", filepath.Join(dir, "tls.crt"), "--grpc-tls-key", filepath.Join(dir, "tls.key"),
		"--grpc-tls-client-ca", filepath.Join(dir, "ca.crt"), "--grpc-tls-client-san=other,spiffe://edge/envoy")
	shown := func(address string) string {
		t.Helper()
		conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: ca.Pool, ServerName: "localhost", NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	envoy := ca.Issue(t, "envoy", "spiffe://edge/envoy").TLS(t)
	before := r.dialTLS(t, ca, envoy)
	if got := limitFor(t, before); got != 5 {
		t.Errorf("limit in force: got %d, want 5", got)
	}
	if got := shown(r.address["grpc tcp"]); got != "..first" {
		t.Errorf("certificate: got %s, want the first", got)
	}
	turn("..second")
	r.await(t, "certificates loaded")
	if got := shown(r.address["grpc tcp"]); got != "..second" {
		t.Errorf("certificate: got %s, want the second", got)
	}
	if got := limitFor(t, before); got != 5 || before.GetState().String() != "READY" {
		t.Errorf("the connection of before: got limit %d, state %v", got, before.GetState())
	}
	if got := limitFor(t, r.dialTLS(t, ca, envoy)); got != 5 {
		t.Errorf("a new connection: got limit %d, want 5", got)
	}
	thief := r.dialTLS(t, ca, ca.Issue(t, "thief").TLS(t))
	if err := thief.Invoke(t.Context(), "/grpc.health.v1.Health/Check", requestFor("x"), requestFor("x")); status.Code(err) != codes.Unavailable {
		t.Errorf("a client of another name: got %v, want Unavailable", err)
	}
	raise(t, syscall.SIGTERM)
	r.awaitEnd(t)
}

func TestAddressesOfIPv6(t *testing.T) {
	for text, ok := range map[string]bool{
		"[::]:8081": true, "[::1]:8081": true, ":8081": true, "[fe80::1%eth0]:8081": true,
		"::": false, ":::8081": false, "[::]": false, "::1:8081": false,
	} {
		err := address(text)
		if (err == nil) != ok {
			t.Errorf("%s: got %v", text, err)
		}
		if err != nil && !strings.Contains(err.Error(), "[::]:8081") {
			t.Errorf("%s: %v does not say how it is written", text, err)
		}
	}
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		t.Skip("there is no IPv6")
	}
	r := start(t, "--rules", rulesFile(t, rulesOf("5")), "--grpc-address=[::]:0", "--http-address=[::1]:0")
	_, port, _ := strings.Cut(r.address["grpc tcp"], "]:")
	for _, host := range []string{"[::1]:", "127.0.0.1:"} {
		if got := limitFor(t, r.dial(t, host+port)); got != 5 {
			t.Errorf("%s: got limit %d, want 5", host, got)
		}
	}
	if code, _ := r.get(t, "/readyz"); code != 200 {
		t.Errorf("/readyz over IPv6: got %d", code)
	}
}
