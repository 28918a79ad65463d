package redisconn

import (
	"cmp"
	"crypto/tls"

	"github.com/weirproxy/weir/internal/wire/certificates"
)

// security is the TLS of connections. Each new connection reads the files, so that renewed
// certificates need no restart.
type security struct {
	ca, cert, key string // PEM files; "" means the system's authorities, and no certificate
	name          string // of the server's certificate; "" means the host dialed
	anyName       bool   // the server's certificate may be for any name
}

// files returns the files, with their names in errors.
func (s *security) files() certificates.Files {
	return certificates.Files{
		Certificate: certificates.File{Name: "client certificate", Path: s.cert},
		Key:         certificates.File{Name: "client key", Path: s.key},
		Authorities: certificates.File{Name: "CA", Path: s.ca},
		Bundle:      true,
	}
}

// config returns the TLS of one connection to an address.
func (s *security) config(address string) (*tls.Config, error) {
	set, err := s.files().Read()
	if err != nil {
		return nil, err
	}
	config := set.Client(cmp.Or(s.name, host(address)))
	if s.anyName {
		certificates.AnyName(config)
	}
	return config, nil
}
