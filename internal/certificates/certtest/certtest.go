// Package certtest makes authorities and certificates for tests. Nobody else trusts them, and they are good for a day.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	PEM  []byte         // its certificate
	Pool *x509.CertPool // that trusts it alone

	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// New makes an authority that signs itself.
func New(tb testing.TB, name string) *Authority {
	tb.Helper()
	t := template(name, time.Now().Add(24*time.Hour))
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	a := &Authority{certificate: t, key: newKey(tb), Pool: x509.NewCertPool()}
	der := a.sign(tb, t, a.key)
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	a.certificate = certificate
	a.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	a.Pool.AddCert(certificate)
	return a
}

// Pair is a certificate and its key, both PEM.
type Pair struct{ Certificate, Key []byte }

// Issue makes a certificate, for servers and clients, that has these alternative names: IP addresses, URIs, the rest DNS. The
// first is its common name.
func (a *Authority) Issue(tb testing.TB, names ...string) Pair {
	tb.Helper()
	return a.IssueUntil(tb, time.Now().Add(24*time.Hour), names...)
}

// IssueUntil is Issue with the end of the certificate's time.
func (a *Authority) IssueUntil(tb testing.TB, end time.Time, names ...string) Pair {
	tb.Helper()
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
	key := newKey(tb)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return Pair{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.sign(tb, t, key)}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
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

// Write writes a file beside its place, renames it and returns the path.
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

// sign returns a certificate of a public key.
func (a *Authority) sign(tb testing.TB, t *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, t, a.certificate, key.Public(), a.key)
	if err != nil {
		tb.Fatal(err)
	}
	return der
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// template is what all certificates have.
func template(name string, end time.Time) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62)) // never fails
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-2 * time.Hour),
		NotAfter:     end,
	}
}
