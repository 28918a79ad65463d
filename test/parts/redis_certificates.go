package parts

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Certificates are the certificate of an authority that nobody else trusts and two that it signed, all as PEM files, good for a day:
// one for a server on 127.0.0.1 or localhost, which is also one for a client, as replicas need it; and one for a client alone.
type Certificates struct {
	CA                    string // path of the authority's certificate
	ServerCert, ServerKey string // paths
	ClientCert, ClientKey string // paths

	trusted *x509.CertPool
	client  tls.Certificate
}

// NewCertificates makes an authority and its two certificates and writes them into dir.
func NewCertificates(dir string) (*Certificates, error) {
	c, err := newCertificates(dir)
	if err != nil {
		return nil, fmt.Errorf("making certificates: %w", err)
	}
	return c, nil
}

// newCertificates is NewCertificates.
func newCertificates(dir string) (*Certificates, error) {
	c := &Certificates{
		CA:         filepath.Join(dir, "ca.pem"),
		ServerCert: filepath.Join(dir, "server.pem"),
		ServerKey:  filepath.Join(dir, "server-key.pem"),
		ClientCert: filepath.Join(dir, "client.pem"),
		ClientKey:  filepath.Join(dir, "client-key.pem"),
		trusted:    x509.NewCertPool(),
	}
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	if err := writePEM(c.CA, "CERTIFICATE", ca.certificate.Raw); err != nil {
		return nil, err
	}
	c.trusted.AddCert(ca.certificate)
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if err := ca.sign("server", both, c.ServerCert, c.ServerKey); err != nil {
		return nil, err
	}
	if err := ca.sign("client", both[1:], c.ClientCert, c.ClientKey); err != nil {
		return nil, err
	}
	c.client, err = tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	return c, err
}

// ClientConfig trusts the authority alone and shows the client's certificate.
func (c *Certificates) ClientConfig() *tls.Config {
	return &tls.Config{RootCAs: c.trusted, Certificates: []tls.Certificate{c.client}, ServerName: "localhost"}
}

// An authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// newAuthority makes an authority that signs itself.
func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := template("authority")
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &authority{certificate, key}, err
}

// sign writes a certificate for those uses, and its key.
func (a *authority) sign(name string, uses []x509.ExtKeyUsage, certPath, keyPath string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := template(name)
	t.KeyUsage, t.ExtKeyUsage = x509.KeyUsageDigitalSignature, uses
	t.IPAddresses, t.DNSNames = []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"}
	der, err := x509.CreateCertificate(rand.Reader, t, a.certificate, key.Public(), a.key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writePEM(certPath, "CERTIFICATE", der); err != nil {
		return err
	}
	return writePEM(keyPath, "PRIVATE KEY", private)
}

// template is what all certificates have.
func template(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: "weir test " + name},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(24 * time.Hour),
	}
}

// writePEM writes one block that only its owner can read.
func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
