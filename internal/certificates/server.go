package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strings"
)

// Server returns what a server of HTTP/2 needs for TLS 1.2 and later. Each handshake takes what is in force then; connections
// that are there already stay. The keeper must have a certificate.
//
// When it has authorities, clients must show a certificate that one of them signed, directly or through others; those of the
// system count for nothing. With names, one of them must be among the certificate's alternative names, whatever their kind (DNS
// without regard to case, email, IP, URI): names are compared whole, and the common name is none of them.
func (k *Keeper) Server(names []string) *tls.Config {
	base := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"},
		// Connections of gRPC last; a ticket would only carry a client past authorities that have changed.
		SessionTicketsDisabled: true,
	}
	if k.options.Files.Authorities.Path != "" {
		base.ClientAuth = tls.RequireAndVerifyClientCert
	}
	if len(names) > 0 {
		base.VerifyConnection = func(state tls.ConnectionState) error { return named(state.PeerCertificates, names) }
	}
	config := base.Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		set, own := k.Now(), base.Clone()
		own.Certificates = []tls.Certificate{*set.Certificate}
		own.ClientCAs = set.Authorities // nil would be those of the system, but then no certificate is asked for
		return own, nil
	}
	return config
}

// named returns an error unless the first certificate has one of the names.
func named(chain []*x509.Certificate, names []string) error {
	if len(chain) == 0 {
		return fmt.Errorf("client shows no certificate, must be one for %s", strings.Join(names, " or "))
	}
	leaf := chain[0]
	for _, name := range names {
		if slices.ContainsFunc(leaf.DNSNames, func(own string) bool { return strings.EqualFold(own, name) }) ||
			slices.Contains(leaf.EmailAddresses, name) {
			return nil
		}
		for _, own := range leaf.URIs {
			if own.String() == name {
				return nil
			}
		}
		if ip := net.ParseIP(name); ip != nil && slices.ContainsFunc(leaf.IPAddresses, ip.Equal) {
			return nil
		}
	}
	return fmt.Errorf("client certificate is for %q, must be for %s", alternatives(leaf), strings.Join(names, " or "))
}

// alternatives returns the alternative names of a certificate.
func alternatives(leaf *x509.Certificate) []string {
	all := slices.Concat(leaf.DNSNames, leaf.EmailAddresses)
	for _, ip := range leaf.IPAddresses {
		all = append(all, ip.String())
	}
	for _, uri := range leaf.URIs {
		all = append(all, uri.String())
	}
	return all
}
