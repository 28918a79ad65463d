package parts

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weirproxy/weir/internal/testing/certtest"
)

// Certificates are PEM files of an authority and of two certificates that the authority signed,
// valid for a day. One is for a server, and as replicas need also for a client. The other is for a
// client.
type Certificates struct {
	CA                    string // path of the authority's certificate
	ServerCert, ServerKey string // paths
	ClientCert, ClientKey string // paths

	trusted *x509.CertPool
	client  tls.Certificate
	name    string // of the server
}

// NewCertificates makes an authority and its two certificates, and writes the files into dir. The
// server's certificate is for the names, by default for localhost and 127.0.0.1.
func NewCertificates(dir string, names ...string) (*Certificates, error) {
	if len(names) == 0 {
		names = []string{"localhost", "127.0.0.1"}
	}
	c := &Certificates{
		CA:         filepath.Join(dir, "ca.pem"),
		ServerCert: filepath.Join(dir, "server.pem"),
		ServerKey:  filepath.Join(dir, "server-key.pem"),
		ClientCert: filepath.Join(dir, "client.pem"),
		ClientKey:  filepath.Join(dir, "client-key.pem"),
		name:       names[0],
	}
	if err := c.make(names); err != nil {
		return nil, fmt.Errorf("making certificates: %w", err)
	}
	return c, nil
}

// make makes the certificates, and writes the files.
func (c *Certificates) make(names []string) error {
	ca, err := certtest.NewAuthority("weir test authority")
	if err != nil {
		return err
	}
	c.trusted = ca.Pool
	server, err := ca.Sign(names...)
	if err != nil {
		return err
	}
	client, err := ca.Sign("client")
	if err != nil {
		return err
	}
	if c.client, err = tls.X509KeyPair(client.Certificate, client.Key); err != nil {
		return err
	}
	for path, data := range map[string][]byte{
		c.CA: ca.PEM, c.ServerCert: server.Certificate, c.ServerKey: server.Key, c.ClientCert: client.Certificate, c.ClientKey: client.Key,
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// ClientConfig returns a configuration that trusts the authority alone, and shows the client's
// certificate.
func (c *Certificates) ClientConfig() *tls.Config {
	return &tls.Config{RootCAs: c.trusted, Certificates: []tls.Certificate{c.client}, ServerName: c.name}
}
