// Package certificates reads a certificate, its key and the authorities to trust from files, for
// servers and for clients. A client reads the files for each connection. A server has a Keeper,
// which reads the files again after a change. After a change with mistakes the previous
// certificates stay in force.
//
// A change is a change of the contents: by a write, by a rename, or by a new symbolic link, as
// Kubernetes changes a Secret. A Keeper waits until two reads in a row return the same contents, so
// that a new certificate never meets an old key.
package certificates

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/weirproxy/weir/internal/regular"
)

// File is one of the files. The zero value means that there is no file.
type File struct {
	Name string // in errors, such as the setting of the path
	Path string // "" means no file
}

// Files are PEM files: a certificate with its intermediate certificates, the key, and the
// authorities to trust. Certificate and Key are both given, or neither.
type Files struct {
	Certificate, Key, Authorities File

	// Bundle skips invalid authorities, as long as one is valid. Users of a bundle cannot repair the
	// bundle.
	Bundle bool
}

// Set is the contents of the files. A Set does not change.
type Set struct {
	Certificate *tls.Certificate // with its leaf; nil without a Certificate in Files
	Authorities *x509.CertPool   // of the file alone; nil without Authorities in Files
}

type contents struct {
	certificate, key, authorities []byte
	errs                          []error
}

type fingerprint [sha256.Size]byte

// Read reads the files. The error has all mistakes.
func (f Files) Read() (*Set, error) { return f.parse(f.read()) }

// Check reads the files, and returns all mistakes.
func (f Files) Check() error {
	_, err := f.Read()
	return err
}

func (f *Files) half() bool { return (f.Certificate.Path == "") != (f.Key.Path == "") }

func (f *Files) read() contents {
	var c contents
	take := func(one File) []byte {
		if one.Path == "" {
			return nil
		}
		data, err := regular.Read(one.Path, maxFile)
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

// maxFile bounds a file, in bytes. A bundle of all public authorities has 0.3 MB.
const maxFile = 16 << 20

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

// pool reads certificates, at least one. Unlike [x509.CertPool.AppendCertsFromPEM], pool skips
// invalid certificates only in a bundle.
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
