package certificates

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/internal/testing/must"
)

// handshake connects a server and a client, and returns the client's state and both errors.
func handshake(t *testing.T, server, client *tls.Config) (state tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	done := make(chan error, 1)
	go func() {
		far, err := listener.Accept()
		if err != nil {
			done <- err
			return
		}
		defer far.Close()
		done <- tls.Server(far, server).HandshakeContext(context.WithoutCancel(t.Context()))
	}()
	near := must.Get(net.Dial("tcp", listener.Addr().String()))(t)
	defer near.Close()
	c := tls.Client(near, client)
	if clientErr = c.HandshakeContext(t.Context()); clientErr == nil {
		_, clientErr = c.Read(make([]byte, 1)) // with TLS 1.3 the server's verdict on the client's certificate comes with the first read
	}
	return c.ConnectionState(), <-done, clientErr
}

// serve keeps files, with or without authorities of clients.
func serve(t *testing.T, pair certtest.Pair, clients *certtest.Authority) *Keeper {
	t.Helper()
	dir := t.TempDir()
	pair.Write(t, dir)
	files := filesIn(dir)
	if clients == nil {
		files.Authorities.Path = ""
	} else {
		certtest.Write(t, filepath.Join(dir, "ca.crt"), clients.PEM)
	}
	k := must.Get(Open(Options{Files: files, Logger: slog.New(slog.DiscardHandler)}))(t)
	t.Cleanup(k.Close)
	return k
}

func TestAServerShowsItsCertificateToHTTP2FromTLS12On(t *testing.T) {
	ca := certtest.New(t, "ca")
	config := serve(t, ca.Issue(t, "localhost"), nil).Server(nil)
	for version, want := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		client := &tls.Config{RootCAs: ca.Pool, ServerName: "localhost", NextProtos: []string{"h2"}, MinVersion: version, MaxVersion: version}
		state, err, _ := handshake(t, config, client)
		if (err == nil) != want {
			t.Errorf("%s: got %v", tls.VersionName(version), err)
		}
		if want && state.NegotiatedProtocol != "h2" {
			t.Errorf("%s: got protocol %q, want h2", tls.VersionName(version), state.NegotiatedProtocol)
		}
	}
	stranger := &tls.Config{RootCAs: certtest.New(t, "other").Pool, ServerName: "localhost", NextProtos: []string{"h2"}}
	if _, _, err := handshake(t, config, stranger); err == nil {
		t.Error("a client that trusts another authority connects")
	}
}

func TestOnlyClientsOfTheAuthorityPass(t *testing.T) {
	ca, other := certtest.New(t, "ca"), certtest.New(t, "other")
	twin := certtest.New(t, "ca") // has the name and not the key
	// The system trusts `other`; this process may have read its roots already, which the end-to-end
	// tests go round.
	t.Setenv("SSL_CERT_FILE", certtest.Write(t, filepath.Join(t.TempDir(), "roots.pem"), other.PEM))
	config := serve(t, ca.Issue(t, "localhost"), ca).Server(nil)
	tests := []struct {
		name   string
		client []tls.Certificate
		want   string // of the server's error, "" for none
	}{
		{"its own", []tls.Certificate{ca.Issue(t, "envoy").TLS(t)}, ""},
		{"none", nil, "client didn't provide a certificate"},
		{"of another, which the system trusts", []tls.Certificate{other.Issue(t, "envoy").TLS(t)}, "certificate signed by unknown authority"},
		{"of one of the same name", []tls.Certificate{twin.Issue(t, "envoy").TLS(t)}, "certificate signed by unknown authority"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			client := &tls.Config{RootCAs: ca.Pool, ServerName: "localhost", NextProtos: []string{"h2"}}
			client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if test.client == nil {
					return new(tls.Certificate), nil
				}
				return &test.client[0], nil
			}
			_, err, clientErr := handshake(t, config, client)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("server: got %v, want %q", err, test.want)
			}
			if test.want != "" && !strings.Contains(clientErr.Error(), "remote error") {
				t.Errorf("client: got %v, want to be told", clientErr)
			}
		})
	}
}

func TestAClientNeedsOneOfTheNames(t *testing.T) {
	ca := certtest.New(t, "ca")
	k := serve(t, ca.Issue(t, "localhost"), ca)
	tests := []struct {
		name     string
		has, any []string
		want     bool
	}{
		{"DNS", []string{"envoy.edge"}, []string{"envoy.edge"}, true},
		{"DNS in another case", []string{"Envoy.edge"}, []string{"envoy.Edge"}, true},
		{"one of several", []string{"a", "b"}, []string{"c", "b"}, true},
		{"URI", []string{"spiffe://edge/ns/envoy"}, []string{"spiffe://edge/ns/envoy"}, true},
		{"IP", []string{"10.0.0.1"}, []string{"10.0.0.1"}, true},
		{"IPv6, written otherwise", []string{"fd00::1"}, []string{"fd00:0:0::1"}, true},
		{"another", []string{"envoy.edge"}, []string{"envoy.core"}, false},
		{"a part", []string{"envoy.edge.example"}, []string{"envoy.edge"}, false},
		{"a pattern of ours", []string{"envoy.edge"}, []string{"*.edge"}, false},
		{"a pattern of the certificate's", []string{"*.edge"}, []string{"envoy.edge"}, false},
		{"a URI that goes on", []string{"spiffe://edge/ns/envoy2"}, []string{"spiffe://edge/ns/envoy"}, false},
		{"an IP as DNS", []string{"dns.10.0.0.1"}, []string{"10.0.0.1"}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			client := &tls.Config{
				RootCAs: ca.Pool, ServerName: "localhost", NextProtos: []string{"h2"},
				Certificates: []tls.Certificate{ca.Issue(t, test.has...).TLS(t)},
			}
			_, err, _ := handshake(t, k.Server(test.any), client)
			if (err == nil) != test.want {
				t.Errorf("%q for %q: got %v", test.has, test.any, err)
			}
			if err != nil && !strings.Contains(err.Error(), "client certificate is for [") {
				t.Errorf("got %v, want the names", err)
			}
		})
	}
}
