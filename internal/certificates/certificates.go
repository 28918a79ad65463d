// Package certificates reads a certificate, its key and the authorities to trust from files, for servers and for clients. A
// client reads them for each connection. For a server a Keeper keeps them: they are read again when they change, and what is
// wrong leaves in force what was right before.
//
// A change is what the files contain, whatever became of them: written over, renamed, or behind a symbolic link that was
// turned, as Kubernetes does with a Secret. It is put in force as one, once two looks in a row have seen the same, so that a
// certificate and a key of different times are no pair and no mistake.
package certificates

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
)

// File is one of the files. The zero value is none.
type File struct {
	Name string // what messages call it, such as the setting that names it
	Path string // "" is none
}

// Files are a certificate with those that lead from it to its authority, the key of it, and the authorities to trust, all PEM.
// Certificate and key are there together, or neither is.
type Files struct {
	Certificate, Key, Authorities File

	// Bundle passes over authorities that cannot be read, as long as one can: who trusts a collection that others keep cannot
	// mend it.
	Bundle bool
}

// Set is what the files hold. It does not change.
type Set struct {
	Certificate *tls.Certificate // with its leaf; nil when Files has none
	Authorities *x509.CertPool   // these and no others; nil when Files has none
}

// contents is what was read.
type contents struct {
	certificate, key, authorities []byte
	errs                          []error
}

// fingerprint stands for contents.
type fingerprint [sha256.Size]byte

// Read reads the files. The error says everything that is wrong with them.
func (f Files) Read() (*Set, error) { return f.parse(f.read()) }

// Check returns everything that is wrong with the files now.
func (f Files) Check() error {
	_, err := f.Read()
	return err
}

// half reports whether there is a certificate without a key, or a key without a certificate.
func (f *Files) half() bool { return (f.Certificate.Path == "") != (f.Key.Path == "") }

// read reads the files.
func (f *Files) read() contents {
	var c contents
	take := func(one File) []byte {
		if one.Path == "" {
			return nil
		}
		data, err := readRegular(one.Path)
		if err != nil {
			c.errs = append(c.errs, fmt.Errorf("%s: %w", one.Name, err))
		}
		return data
	}
	if !f.half() {
		c.certificate, c.key = take(f.Certificate), take(f.Key)
	}
	c.authorities = take(f.Authorities)
	return c
}

// readRegular reads a file that has an end.
func readRegular(path string) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is no file", path)
	}
	return os.ReadFile(path)
}

// fingerprint returns what other contents do not have.
func (c *contents) fingerprint() fingerprint {
	h := sha256.New()
	for _, data := range [][]byte{c.certificate, c.key, c.authorities} {
		fmt.Fprintln(h, len(data)) // a hash cannot fail
		_, _ = h.Write(data)
	}
	for _, err := range c.errs {
		fmt.Fprintln(h, err)
	}
	return fingerprint(h.Sum(nil))
}

// parse makes a set of contents, or says everything that is wrong with them.
func (f *Files) parse(c contents) (*Set, error) {
	errs := c.errs
	if f.half() {
		errs = append(errs, fmt.Errorf("%s, %s: must both be given, or neither", f.Certificate.Name, f.Key.Name))
	}
	set := new(Set)
	if c.certificate != nil && c.key != nil {
		pair, err := tls.X509KeyPair(c.certificate, c.key)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, %s: %s and %s: %s", f.Certificate.Name, f.Key.Name,
				f.Certificate.Path, f.Key.Path, strings.TrimPrefix(err.Error(), "tls: ")))
		}
		set.Certificate = &pair
	}
	if c.authorities != nil {
		var err error
		if set.Authorities, err = pool(c.authorities, f.Bundle); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", f.Authorities.Name, f.Authorities.Path, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return set, nil
}

// pool reads certificates, one at least. Unlike [x509.CertPool.AppendCertsFromPEM] it passes over those that it cannot read only
// in a bundle.
func pool(data []byte, bundle bool) (*x509.CertPool, error) {
	all, n := x509.NewCertPool(), 0
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil && bundle {
			continue
		}
		n++
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %s", n, strings.TrimPrefix(err.Error(), "x509: "))
		}
		all.AddCert(certificate)
	}
	if n == 0 {
		return nil, errors.New("holds no certificate: must be PEM")
	}
	return all, nil
}
