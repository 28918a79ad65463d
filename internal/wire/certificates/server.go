package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strings"
)

// Server returns the configuration of an HTTP/2 server, for TLS 1.2 and later. Each handshake uses
// the set in force; open connections stay. The keeper must have a certificate.
//
// With authorities, clients must show a certificate that one of the authorities signed, directly or
// through intermediates. The system's authorities do not count. With names, the certificate must
// have one of them as an alternative name: DNS, email, IP or URI. Names must be equal as a whole,
// DNS names except for case. The common name does not count.
func (k *Keeper) Server(names []string) *tls.Config {
	base := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"},
		// gRPC's connections are long. A ticket would let a client past changed authorities.
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
		own.ClientCAs = set.Authorities // nil means the system's authorities, but then ClientAuth asks for no certificate
		return own, nil
	}
	return config
}

func named(chain []*x509.Certificate, names []string) error {
	if len(chain) == 0 {
		return fmt.Errorf("client shows no certificate, must be one for %s", strings.Join(names, " or "))
	}
	leaf := chain[0]
	all := alternatives(leaf)
	for _, name := range names {
		ip := net.ParseIP(name)
		if slices.Contains(all, name) || ip != nil && slices.ContainsFunc(leaf.IPAddresses, ip.Equal) ||
			slices.ContainsFunc(leaf.DNSNames, func(own string) bool { return strings.EqualFold(own, name) }) {
			return nil
		}
	}
	return fmt.Errorf("client certificate is for %q, must be for %s", all, strings.Join(names, " or "))
}

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
