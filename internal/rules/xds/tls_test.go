package xds

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

func newCertificates(t *testing.T) *parts.Certificates {
	t.Helper()
	c := must.Get(parts.NewCertificates(t.TempDir()))(t)
	return c
}

// startSecurePlane serves with a certificate of the authority, to clients with a certificate of the
// same authority.
func startSecurePlane(t *testing.T, c *parts.Certificates) *plane {
	t.Helper()
	own := must.Get(tls.LoadX509KeyPair(c.ServerCert, c.ServerKey))(t)
	ca := must.Get(os.ReadFile(c.CA))(t)
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(ca)
	p := startPlane(t, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{own}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert,
	})))
	p.set("1", config("r1", "a", 1))
	return p
}

func secure(ca, certificate, key, server string) *TLS {
	o := &TLS{ServerName: server}
	o.Authorities.Path, o.Certificate.Path, o.Key.Path = ca, certificate, key
	return o
}

func TestBothSidesShowCertificates(t *testing.T) {
	c := newCertificates(t)
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			for _, name := range []string{"", "localhost"} { // a name of the certificate that is not in the address
				p := startSecurePlane(t, c)
				s := startClient(t, p, Options{Delta: delta, TLS: secure(c.CA, c.ClientCert, c.ClientKey, name)})
				s.await(t, map[string]uint32{"a": 1})
			}
		})
	}
}

func TestAnUntrustedServerIsIgnored(t *testing.T) {
	c, other := newCertificates(t), newCertificates(t)
	tests := map[string]struct {
		tls  *TLS
		want string
	}{
		"a server of another authority": {secure(other.CA, c.ClientCert, c.ClientKey, ""), "signed by unknown authority"},
		"a server of another name":      {secure(c.CA, c.ClientCert, c.ClientKey, "xds.example"), "xds.example"},
		"a client without certificate":  {secure(c.CA, "", "", ""), "certificate required"},
		"a client of another authority": {secure(c.CA, other.ClientCert, other.ClientKey, ""), "tls: "},
		"a client without TLS":          {nil, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := startSecurePlane(t, c)
			s := startClient(t, p, Options{TLS: test.tls})
			eventually(t, func() string {
				if err := s.Ready(); s.Status().Failures == 0 || err == nil || !strings.Contains(err.Error(), test.want) {
					return fmt.Sprintf("Ready: got %v, want an error with %q", err, test.want)
				}
				return ""
			})
			if len(s.inForce()) != 0 || len(p.Requests()) != 0 {
				t.Errorf("rules %v, requests %v: want none", s.inForce(), p.Requests())
			}
		})
	}
}

func TestCertificatesAreReadAgainForEachConnection(t *testing.T) {
	c, other := newCertificates(t), newCertificates(t)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	replace := func(by string) {
		t.Helper()
		data, err := os.ReadFile(by)
		if err == nil {
			err = os.WriteFile(ca, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	replace(other.CA)
	p := startSecurePlane(t, c)
	s := startClient(t, p, Options{TLS: secure(ca, c.ClientCert, c.ClientKey, "")})
	eventually(t, func() string {
		if s.Status().Failures == 0 {
			return "no failure with the wrong authority"
		}
		return ""
	})
	replace(c.CA)
	s.await(t, map[string]uint32{"a": 1})
}
