package redisstore

import (
	"cmp"
	"crypto/tls"

	"github.com/weirproxy/weir/internal/certificates"
)

// security is how connections are secured. The files are read for every connection that is made, so that one who renews
// certificates need not restart anything.
type security struct {
	ca, cert, key string // "" means the system's authorities, and no certificate
	name          string // "" means the host dialed
	anyName       bool   // the server's certificate may be for any name
}

// files names the files.
func (s *security) files() certificates.Files {
	return certificates.Files{
		Certificate: certificates.File{Name: "client certificate", Path: s.cert},
		Key:         certificates.File{Name: "client key", Path: s.key},
		Authorities: certificates.File{Name: "CA", Path: s.ca},
		Bundle:      true,
	}
}

// config is for one connection to an address.
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
