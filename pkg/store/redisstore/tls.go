package redisstore

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// certificates are the files of TLS. They are read for every connection that is made, so that one who renews certificates
// need not restart anything.
type certificates struct {
	ca, cert, key string // "" means the system's authorities, and no certificate
	name          string // "" means the host dialed
}

// check returns all that is wrong with the files now.
func (c *certificates) check() []error {
	var mistakes []error
	if _, err := c.authorities(); err != nil {
		mistakes = append(mistakes, err)
	}
	if (c.cert == "") != (c.key == "") {
		return append(mistakes, errors.New("a client certificate needs its key, and a key its certificate: set both or none"))
	}
	if _, err := c.pair(); err != nil {
		mistakes = append(mistakes, err)
	}
	return mistakes
}

// authorities are those to trust; nil means the system's.
func (c *certificates) authorities() (*x509.CertPool, error) {
	if c.ca == "" {
		return nil, nil
	}
	text, err := os.ReadFile(c.ca)
	if err != nil {
		return nil, fmt.Errorf("reading the CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("reading the CA: %s: no certificate in it, want PEM", c.ca)
	}
	return pool, nil
}

// pair is the client certificate; nil means none.
func (c *certificates) pair() (*tls.Certificate, error) {
	if c.cert == "" {
		return nil, nil
	}
	cert, err := os.ReadFile(c.cert)
	if err != nil {
		return nil, fmt.Errorf("reading the client certificate: %w", err)
	}
	key, err := os.ReadFile(c.key)
	if err != nil {
		return nil, fmt.Errorf("reading the key of the client certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("reading the client certificate: %s and %s: %w", c.cert, c.key, err)
	}
	return &pair, nil
}

// config is for one connection to an address.
func (c *certificates) config(address string) (*tls.Config, error) {
	roots, err := c.authorities()
	if err != nil {
		return nil, err
	}
	pair, err := c.pair()
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		RootCAs:    roots,
		ServerName: cmp.Or(c.name, host(address)),
	}
	if pair != nil {
		// Unlike Certificates it shows the certificate whatever authorities the server names: a server that does not want it
		// then says why.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair, nil }
	}
	return config, nil
}
