package xds

import (
	"crypto/tls"

	"github.com/weirproxy/weir/internal/wire/certificates"
)

// TLS secures the connection to the control plane. Each connection reads the files again, so that
// certificates may be renewed.
type TLS struct {
	CA         string // file with the authorities of the server's certificate, PEM; "" means the authorities of the system
	Cert       string // file with the certificate of this client, PEM; "" for no certificate
	Key        string // file with its key, PEM
	ServerName string // name (SAN) that the server's certificate must have; "" means the host of the address
}

// Check reads the files. The error joins every reason to refuse them.
func (t *TLS) Check() error { return t.files().Check() }

// files names the files.
func (t *TLS) files() certificates.Files {
	return certificates.Files{
		Certificate: certificates.File{Name: "tls cert", Path: t.Cert},
		Key:         certificates.File{Name: "tls key", Path: t.Key},
		Authorities: certificates.File{Name: "tls ca", Path: t.CA},
		Bundle:      true,
	}
}

// config reads the files.
func (t *TLS) config() (*tls.Config, error) {
	set, err := t.files().Read()
	if err != nil {
		return nil, err
	}
	return set.Client(t.ServerName), nil
}
