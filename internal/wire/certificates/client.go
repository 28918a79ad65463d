package certificates

import (
	"crypto/tls"
	"crypto/x509"
)

// Client returns the configuration of a client, for TLS 1.2 and later. The server's certificate
// must be for the name, and signed, directly or through intermediates, by an authority of the set.
// Without authorities in the set the system's count. The client shows the certificate of the set,
// if the set has one.
func (s *Set) Client(name string) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.Authorities, ServerName: name}
	if s.Certificate != nil {
		// Unlike Certificates, GetClientCertificate shows the certificate to a server that names other
		// authorities. So the server's error says why the server refuses the certificate.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return s.Certificate, nil }
	}
	return config
}

// AnyName makes a client accept a certificate for any name. A trusted authority must still have
// signed the certificate.
func AnyName(client *tls.Config) {
	client.InsecureSkipVerify = true // skips both checks; VerifyConnection checks the authority
	client.VerifyConnection = func(state tls.ConnectionState) error {
		o := x509.VerifyOptions{Roots: client.RootCAs, Intermediates: x509.NewCertPool()}
		for _, between := range state.PeerCertificates[1:] {
			o.Intermediates.AddCert(between)
		}
		if _, err := state.PeerCertificates[0].Verify(o); err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
		}
		return nil
	}
}
