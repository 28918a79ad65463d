// Package certtest makes authorities and certificates for tests. The certificates are valid for a
// day.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	PEM  []byte         // the authority's certificate
	Pool *x509.CertPool // of this authority alone

	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// New is NewAuthority, and fails the test on an error.
func New(tb testing.TB, name string) *Authority {
	tb.Helper()
	a, err := NewAuthority(name)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// NewAuthority makes an authority that signs itself.
func NewAuthority(name string) (*Authority, error) { return newAuthority(name, nil) }

// Below makes an authority that this one signs.
func (a *Authority) Below(tb testing.TB, name string) *Authority {
	tb.Helper()
	below, err := newAuthority(name, a)
	if err != nil {
		tb.Fatal(err)
	}
	return below
}

// newAuthority makes an authority that by signs; nil means that the authority signs itself.
func newAuthority(name string, by *Authority) (*Authority, error) {
	t := template(name, tomorrow())
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if by == nil {
		by = &Authority{certificate: t, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, by.certificate, key.Public(), by.key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a := &Authority{PEM: encode("CERTIFICATE", der), Pool: x509.NewCertPool(), certificate: certificate, key: key}
	a.Pool.AddCert(certificate)
	return a, nil
}

// Pair is a certificate and its key, both PEM.
type Pair struct{ Certificate, Key []byte }

// Issue is Sign, and fails the test on an error.
func (a *Authority) Issue(tb testing.TB, names ...string) Pair {
	tb.Helper()
	return a.IssueUntil(tb, tomorrow(), names...)
}

// IssueUntil is Issue with an end of validity.
func (a *Authority) IssueUntil(tb testing.TB, end time.Time, names ...string) Pair {
	tb.Helper()
	pair, err := a.signUntil(end, names)
	if err != nil {
		tb.Fatal(err)
	}
	return pair
}

// Sign makes a certificate, for servers and clients, that has these alternative names: IP
// addresses, URIs, the rest DNS. The first is its common name.
func (a *Authority) Sign(names ...string) (Pair, error) { return a.signUntil(tomorrow(), names) }

// signUntil is Sign with an end of validity.
func (a *Authority) signUntil(end time.Time, names []string) (Pair, error) {
	t := template(names[0], end)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, name := range names {
		ip := net.ParseIP(name)
		uri, err := url.Parse(name)
		switch {
		case ip != nil:
			t.IPAddresses = append(t.IPAddresses, ip)
		case err == nil && uri.Scheme != "":
			t.URIs = append(t.URIs, uri)
		default:
			t.DNSNames = append(t.DNSNames, name)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.certificate, key.Public(), a.key)
	return Pair{Certificate: encode("CERTIFICATE", der), Key: encode("PRIVATE KEY", private)}, err
}

// TLS returns the pair for crypto/tls.
func (p Pair) TLS(tb testing.TB) tls.Certificate {
	tb.Helper()
	pair, err := tls.X509KeyPair(p.Certificate, p.Key)
	if err != nil {
		tb.Fatal(err)
	}
	return pair
}

// Write writes the pair to tls.crt and tls.key in dir.
func (p Pair) Write(tb testing.TB, dir string) (certificate, key string) {
	tb.Helper()
	return Write(tb, filepath.Join(dir, "tls.crt"), p.Certificate), Write(tb, filepath.Join(dir, "tls.key"), p.Key)
}

// Write writes a file under another name, renames the file to path, and returns path.
func Write(tb testing.TB, path string, data []byte) string {
	tb.Helper()
	if err := os.WriteFile(path+".next", data, 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		tb.Fatal(err)
	}
	return path
}

func tomorrow() time.Time { return time.Now().Add(24 * time.Hour) }

// encode returns one block of PEM.
func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// template returns the fields of all certificates.
func template(name string, end time.Time) *x509.Certificate {
	return &x509.Certificate{ // CreateCertificate chooses the serial number
		Subject:   pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-2 * time.Hour),
		NotAfter:  end,
	}
}
