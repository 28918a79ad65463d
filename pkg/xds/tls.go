package xds

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLS is how the connection to the control plane is secured. The files are read again for each connection, so that certificates
// may be renewed.
type TLS struct {
	CA         string // file with the certificates that sign the server's, PEM; "" means those of the system
	Cert       string // file with the certificate to show to the server, PEM; "" for none
	Key        string // file with its key, PEM
	ServerName string // name (SAN) that the server's certificate must have; "" means the host of the address
}

// Check reads the files and returns all that is wrong with them.
func (t *TLS) Check() error {
	_, err := t.config()
	return err
}

// config reads the files.
func (t *TLS) config() (*tls.Config, error) {
	var errs []error
	c := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		data, err := os.ReadFile(t.CA)
		c.RootCAs = x509.NewCertPool()
		if err == nil && !c.RootCAs.AppendCertsFromPEM(data) {
			err = fmt.Errorf("%s: holds no certificate, must be PEM", t.CA)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("tls ca: %w", err))
		}
	}
	switch {
	case (t.Cert == "") != (t.Key == ""):
		errs = append(errs, errors.New("tls cert, tls key: must both be given, or neither"))
	case t.Cert != "":
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			errs = append(errs, fmt.Errorf("tls cert %s, tls key %s: %w", t.Cert, t.Key, err))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, errors.Join(errs...)
}
