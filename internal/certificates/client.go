package certificates

import (
	"crypto/tls"
	"crypto/x509"
)

// Client returns what a client of TLS 1.2 and later needs to reach a server whose certificate is for that name and signed,
// directly or through others, by an authority of the set; by one of the system's where the set has none. It shows the
// certificate of the set, if there is one.
func (s *Set) Client(name string) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.Authorities, ServerName: name}
	if s.Certificate != nil {
		// Unlike Certificates it shows the certificate whatever authorities the server names: a server that does not want it
		// then says why.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return s.Certificate, nil }
	}
	return config
}

// AnyName has a client accept a certificate for any name; that an authority it trusts has signed it is still asked for.
func AnyName(client *tls.Config) {
	client.InsecureSkipVerify = true // crypto/tls can leave out both checks or none; the one of the authority is done here
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
