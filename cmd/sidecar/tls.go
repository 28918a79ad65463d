package main

import (
	"crypto/tls"
	"errors"
	"log/slog"

	"github.com/weirproxy/weir/internal/certificates"
)

// tlsConfig is the settings of TLS on the gRPC address.
type tlsConfig struct {
	CertFile     string // "" for no TLS
	KeyFile      string
	ClientCAFile string   // "" for clients without certificates
	ClientNames  []string // none for clients of any name
}

// files names the files and the settings that do.
func (c *tlsConfig) files() certificates.Files {
	return certificates.Files{
		Certificate: certificates.File{Name: "grpc-tls-cert", Path: c.CertFile},
		Key:         certificates.File{Name: "grpc-tls-key", Path: c.KeyFile},
		Authorities: certificates.File{Name: "grpc-tls-client-ca", Path: c.ClientCAFile},
	}
}

// check returns what is wrong with the settings and their files. What would leave a connection less secure than somebody meant
// is a mistake.
func (c *tlsConfig) check(address string) []error {
	if c.CertFile == "" && c.KeyFile == "" && c.ClientCAFile == "" && len(c.ClientNames) == 0 {
		return nil
	}
	var errs []error
	if address == "" {
		errs = append(errs, errors.New("grpc-tls-cert: there is nothing to secure: TLS is for grpc-address, which is off; the Unix socket has its permissions"))
	}
	if c.CertFile == "" && c.KeyFile == "" {
		errs = append(errs, errors.New("grpc-tls-cert: there is none: clients can only show certificates to a server that has one, with grpc-tls-key"))
	}
	if c.ClientCAFile == "" && len(c.ClientNames) > 0 {
		errs = append(errs, errors.New("grpc-tls-client-san: nobody vouches for the names: needs grpc-tls-client-ca"))
	}
	if err := c.files().Check(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// keep reads the files again when they change, until end is called, and returns what the server needs of them; nil without
// TLS.
func (c *tlsConfig) keep(logger *slog.Logger) (config *tls.Config, end func(), err error) {
	if c.CertFile == "" {
		return nil, func() {}, nil
	}
	keeper, err := certificates.Open(certificates.Options{Files: c.files(), Logger: logger})
	if err != nil {
		return nil, nil, err
	}
	return keeper.Server(c.ClientNames), keeper.Close, nil
}
